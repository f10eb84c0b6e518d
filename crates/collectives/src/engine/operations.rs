//! Operations of this crate's engine, by the algorithm of the current tag.

use std::sync::Arc;

use super::backend::{Backend, Shared};
use super::ending::ExitActions;
use super::traits::{Description, Engine, Lifetime, Movement, Reductions, Services};
use crate::algorithms::cost::CostModel;
use crate::algorithms::{Messages, gathered, grid, halving, hierarchical, push_pull, ring, single, tree};
use crate::buffer::{SliceMut, on_slice};
use crate::control::Control;
use crate::dtype::{Element, ReduceOp};
use crate::error::{CommError, Result};
use crate::failure::{Cause, Failure};
use crate::mailbox::Mailbox;
use crate::operation::{Algorithm, Kind, Scope, Tag};
use crate::partition::pieces;
use crate::recorder::OperationRecord;
use crate::reduce::Reduction;
use crate::shared::Region;
use crate::simulated::Clock;

impl Backend {
    fn all_reduce_by<T: Element>(&mut self, values: &mut [T], reduction: Reduction) -> Result<()> {
        let all = self.all_ranks();
        match self.tag.algorithm {
            Algorithm::Direct => self.direct_all_reduce(values, reduction),
            Algorithm::Ring | Algorithm::Auto => ring::all_reduce(self, &all, values, reduction),
            Algorithm::Tree => tree::all_reduce(self, &all, values, reduction),
            Algorithm::HalvingDoubling => halving::all_reduce(self, &all, values, reduction),
            Algorithm::Hierarchical => hierarchical::all_reduce(self, values, reduction),
            Algorithm::SingleReducer => single::all_reduce(self, &all, values, reduction),
            Algorithm::PushPull => push_pull::all_reduce(self, &all, values, reduction),
            Algorithm::Grid => grid::all_reduce(self, &all, values, reduction),
        }
    }

    fn reduce_scatter_by<T: Element>(&mut self, values: &mut [T], reduction: Reduction) -> Result<()> {
        let all = self.all_ranks();
        match self.tag.algorithm {
            Algorithm::Direct => self.direct_reduce_scatter(values, reduction),
            Algorithm::HalvingDoubling => halving::reduce_scatter(self, &all, values, reduction),
            Algorithm::PushPull => push_pull::reduce_scatter(self, &all, values, reduction),
            _ => ring::reduce_scatter(self, &all, values, reduction),
        }
    }

    fn all_gather_by<T: Element>(&mut self, values: &mut [T]) -> Result<()> {
        let all = self.all_ranks();
        match self.tag.algorithm {
            Algorithm::Direct => self.direct_all_gather(values),
            Algorithm::HalvingDoubling => halving::all_gather(self, &all, values),
            Algorithm::PushPull => push_pull::all_gather(self, &all, values),
            _ => ring::all_gather(self, &all, values),
        }
    }

    fn broadcast_by<T: Element>(&mut self, values: &mut [T], root: usize) -> Result<()> {
        let all = self.all_ranks();
        match self.tag.algorithm {
            Algorithm::Direct => self.direct_broadcast(values, root),
            Algorithm::Tree => tree::broadcast(self, &all, values, root),
            Algorithm::Hierarchical => hierarchical::broadcast(self, values, root),
            Algorithm::SingleReducer => single::broadcast(self, &all, values, root),
            _ => ring::broadcast(self, &all, values, root),
        }
    }

    fn reduce_by<T: Element>(&mut self, values: &mut [T], reduction: Reduction, root: usize) -> Result<()> {
        let all = self.all_ranks();
        match self.tag.algorithm {
            Algorithm::Direct => self.direct_reduce(values, reduction, root),
            Algorithm::Tree => tree::reduce(self, &all, values, reduction, root),
            Algorithm::SingleReducer => single::reduce(self, &all, values, reduction, root),
            _ => ring::reduce(self, &all, values, reduction, root),
        }
    }
}

impl Description for Backend {
    fn name(&self) -> &'static str {
        if self.is_direct() { "memory that ranks of a host share" } else { "messages between ranks" }
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn traffic(&self) -> (u64, u64) {
        (self.traffic.sent, self.traffic.received)
    }

    fn clock(&self) -> Clock {
        self.shared.port.as_ref().map_or(Clock::Wall, |port| port.clock())
    }

    fn offers(&self, kind: Kind, algorithm: Algorithm) -> bool {
        self.lacks(kind, algorithm).is_none()
    }

    fn under_way(&self) -> (u32, u64, Tag) {
        (self.id, self.sequence, self.tag)
    }

    fn hosts(&self) -> Vec<usize> {
        self.hosts.clone()
    }

    fn recent(&self) -> Vec<OperationRecord> {
        self.shared.recorder.recent()
    }
}

impl Lifetime for Backend {
    fn in_background(&mut self, yes: bool) {
        if let Some(memory) = &mut self.host_memory {
            memory.in_background(yes);
        }
    }

    fn begin(&mut self, scope: Scope, tag: Tag) -> Result<()> {
        self.enter(scope, tag)
    }

    fn end(&mut self, error: Option<&CommError>) {
        self.shared.recorder.end(self.id, error.is_none());
        let own = self.members[self.rank];
        let cause = match error {
            Some(
                error @ (CommError::Mismatch { .. }
                | CommError::Timeout { .. }
                | CommError::Altered { .. }
                | CommError::Nccl { .. }
                | CommError::Buffer(_)),
            ) => Some(Cause::Aborted(own, error.to_string())),
            Some(CommError::PeerLost { rank, .. }) => Some(Cause::Lost(*rank)),
            Some(CommError::Aborted { .. }) => None,
            _ => return,
        };
        if let Some(cause) = cause {
            self.shared.control.report(own, cause);
        }
        if let Some(flight) = &self.shared.flight {
            flight.write();
        }
    }

    fn costs(&mut self) -> Result<CostModel> {
        self.measured()
    }

    fn alloc(&mut self, bytes: usize) -> Result<Option<Region>> {
        self.alloc_region(bytes)
    }

    fn split(&mut self, groups: &[Vec<usize>], number: u32) -> Result<Box<dyn Engine>> {
        Ok(Box::new(self.part(groups, number)?))
    }

    fn ending(&self) -> ExitActions {
        ExitActions::of_part(&self.shared.control, self.members[self.rank])
    }

    fn label(&self, label: &Arc<str>) {
        self.shared.recorder.label(self.id, label);
    }
}

impl Services for Backend {
    fn mailbox(&self) -> std::result::Result<Mailbox, &'static str> {
        let Shared { mail, timeout, .. } = &self.shared;
        Ok(Mailbox {
            mail: mail.clone(),
            communicator: self.id,
            members: self.members.as_slice().into(),
            timeout: *timeout,
        })
    }

    fn control(&self) -> std::result::Result<Control, &'static str> {
        Ok(Control::of(&self.shared.control, self.members[self.rank]))
    }

    fn failure(&self) -> Option<Arc<Failure>> {
        Some(self.shared.failure.clone())
    }

    #[cfg(feature = "nccl")]
    fn backend(&mut self) -> Option<&mut Backend> {
        Some(self)
    }
}

impl Reductions for Backend {
    fn all_reduce(&mut self, values: SliceMut<'_>, op: ReduceOp) -> Result<()> {
        let reduction = Reduction::new(op, self.world_size);
        if self.world_size == 1 {
            return Ok(());
        }
        on_slice!(values, |values| self.all_reduce_by(values, reduction))
    }

    fn in_place(&mut self, region: &Region, op: ReduceOp) -> Result<()> {
        let reduction = Reduction::new(op, self.world_size);
        crate::dtype::on_dtype!(self.tag.dtype, T => self.direct_in_place::<T>(region, reduction))
    }

    fn reduce_scatter(&mut self, values: SliceMut<'_>, op: ReduceOp) -> Result<()> {
        let reduction = Reduction::new(op, self.world_size);
        if self.world_size == 1 {
            return Ok(());
        }
        on_slice!(values, |values| self.reduce_scatter_by(values, reduction))
    }

    fn reduce_scatter_into(
        &mut self,
        values: SliceMut<'_>,
        mut part: SliceMut<'_>,
        op: ReduceOp,
    ) -> Result<bool> {
        let reduction = Reduction::new(op, self.world_size);
        on_slice!(values, |values| self.cross_memory_reduce_scatter(values, part.typed(), reduction))
    }

    fn reduce(&mut self, values: SliceMut<'_>, op: ReduceOp, root: usize) -> Result<()> {
        let reduction = Reduction::new(op, self.world_size);
        if self.world_size == 1 {
            return Ok(());
        }
        on_slice!(values, |values| {
            // Algorithms by messages leave partial results in the buffers of ranks other than the root.
            let spoils = self.rank != root && self.tag.algorithm != Algorithm::Direct;
            let before = spoils.then(|| values.to_vec());
            self.reduce_by(values, reduction, root)?;
            if let Some(before) = before {
                values.copy_from_slice(&before);
            }
            Ok(())
        })
    }
}

impl Movement for Backend {
    fn all_gather(&mut self, values: SliceMut<'_>) -> Result<()> {
        if self.world_size == 1 {
            return Ok(());
        }
        on_slice!(values, |values| self.all_gather_by(values))
    }

    fn all_gather_from(&mut self, values: SliceMut<'_>, mut part: SliceMut<'_>) -> Result<bool> {
        on_slice!(values, |values| self.cross_memory_all_gather(values, part.typed()))
    }

    fn all_gatherv(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        if self.tag.algorithm == Algorithm::Direct {
            return self.direct_gather(own, None);
        }
        let all = self.all_ranks();
        gathered::all_gather(self, &all, own)
    }

    fn broadcast(&mut self, values: SliceMut<'_>, root: usize) -> Result<()> {
        if self.world_size == 1 {
            return Ok(());
        }
        on_slice!(values, |values| self.broadcast_by(values, root))
    }

    fn gather(&mut self, own: &[u8], root: usize) -> Result<Vec<Vec<u8>>> {
        if self.tag.algorithm == Algorithm::Direct {
            return self.direct_gather(own, Some(root));
        }
        let all = self.all_ranks();
        single::gather(self, &all, own, root)
    }

    fn scatter(&mut self, parts: &[&[u8]], root: usize) -> Result<Vec<u8>> {
        if self.tag.algorithm == Algorithm::Direct {
            return Ok(self.direct_scatter(parts, Some(root))?.swap_remove(root));
        }
        let all = self.all_ranks();
        single::scatter(self, &all, parts, root)
    }

    fn all_to_all(&mut self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        if self.tag.algorithm == Algorithm::Direct {
            return self.direct_scatter(parts, None);
        }
        let all = self.all_ranks();
        gathered::all_to_all(self, &all, parts)
    }

    fn send_to(&mut self, to: usize, bytes: &[u8]) -> Result<()> {
        pieces::<u8>(0..bytes.len()).try_for_each(|piece| self.send(to, &bytes[piece]))
    }

    fn receive_from(&mut self, from: usize, into: &mut [u8]) -> Result<()> {
        pieces::<u8>(0..into.len()).try_for_each(|piece| self.receive(from, &mut into[piece]))
    }

    fn send_recv(
        &mut self,
        to: usize,
        bytes: &[u8],
        from: usize,
        into: &mut [u8],
        incoming: usize,
    ) -> Result<()> {
        // The two directions have separate numbers, like a send and a receive.
        let sending = (self.sequence, self.tag);
        let receiving = (self.next_from(from), Tag { count: incoming as u64, ..self.tag });
        let (mut out, mut inn) = (pieces::<u8>(0..bytes.len()), pieces::<u8>(0..into.len()));
        loop {
            let (next_out, next_in) = (out.next(), inn.next());
            if let Some(piece) = next_out.clone() {
                (self.sequence, self.tag) = sending;
                self.send(to, &bytes[piece])?;
            }
            if let Some(piece) = next_in.clone() {
                (self.sequence, self.tag) = receiving;
                self.receive(from, &mut into[piece])?;
            }
            if next_out.is_none() && next_in.is_none() {
                return Ok(());
            }
        }
    }
}

impl Engine for Backend {}

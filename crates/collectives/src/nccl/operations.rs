//! Operations of the engine over NCCL.

use std::sync::Arc;

use super::calls::{self, Call};
use super::device::check_algorithm;
use super::engine::{NcclEngine, cut, exchange, read, written};
use crate::algorithms::cost::CostModel;
use crate::buffer::SliceMut;
use crate::control::Control;
use crate::dtype::ReduceOp;
use crate::engine::{
    Backend, Description, DeviceQueue, Engine, ExitActions, Facts, Lifetime, Movement, Reductions, Services,
};
use crate::error::{CommError, Result};
use crate::failure::Failure;
use crate::mailbox::Mailbox;
use crate::operation::{Scope, Tag};
use crate::partition::in_a_row;
use crate::recorder::OperationRecord;
use crate::shared::Region;

impl Description for NcclEngine {
    fn name(&self) -> &'static str {
        "NCCL"
    }

    fn rank(&self) -> usize {
        self.host.rank
    }

    fn world_size(&self) -> usize {
        self.host.world_size
    }

    fn traffic(&self) -> (u64, u64) {
        (self.host.traffic.sent + self.sent, self.host.traffic.received + self.received)
    }

    fn under_way(&self) -> (u32, u64, Tag) {
        self.host.under_way()
    }

    fn hosts(&self) -> Vec<usize> {
        self.host.hosts.clone()
    }

    fn recent(&self) -> Vec<OperationRecord> {
        self.host.recent()
    }
}

impl Lifetime for NcclEngine {
    fn begin(&mut self, scope: Scope, tag: Tag) -> Result<()> {
        check_algorithm(tag)?;
        self.host.enter_as(scope, tag)
    }

    fn end(&mut self, error: Option<&CommError>) {
        self.host.end(error);
    }

    fn agree(&mut self, facts: &Facts) -> Result<()> {
        let all = exchange(&mut self.host, &facts.message())?;
        facts.check(&all, self.host.rank).map_err(|(rank, _, theirs)| self.host.mismatch(rank, theirs))
    }

    fn costs(&mut self) -> Result<CostModel> {
        let problem = "NCCL chooses its ways by costs of its own, which it does not tell".to_owned();
        Err(CommError::Argument { operation: "costs", problem })
    }

    fn split(&mut self, groups: &[Vec<usize>], number: u32) -> Result<Box<dyn Engine>> {
        let host = self.host.part(groups, number)?;
        Ok(Box::new(Self::open(host, self.channel.context().clone())?))
    }

    fn ending(&self) -> ExitActions {
        self.host.ending()
    }
}

impl Services for NcclEngine {
    fn device(&self) -> Option<Arc<dyn DeviceQueue>> {
        Some(self.channel.clone())
    }

    fn mailbox(&self) -> std::result::Result<Mailbox, &'static str> {
        Err("NCCL")
    }

    fn control(&self) -> std::result::Result<Control, &'static str> {
        self.host.control()
    }

    fn failure(&self) -> Option<Arc<Failure>> {
        self.host.failure()
    }

    fn backend(&mut self) -> Option<&mut Backend> {
        Some(&mut self.host)
    }
}

impl Reductions for NcclEngine {
    fn all_reduce(&mut self, values: SliceMut<'_>, _: ReduceOp) -> Result<()> {
        let len = values.len();
        self.in_memory(values, 0..len)
    }

    fn in_place(&mut self, _: &Region, _: ReduceOp) -> Result<()> {
        // Others may have come with other buffers, and must not be left waiting.
        exchange(&mut self.host, &[])?;
        let problem =
            "the buffer lies in memory that another communicator allocated, and NCCL cannot use it there";
        Err(CommError::Argument { operation: self.operation(), problem: problem.to_owned() })
    }

    fn reduce_scatter(&mut self, values: SliceMut<'_>, _: ReduceOp) -> Result<()> {
        let own = self.member().own(values.len());
        self.in_memory(values, own)
    }

    fn reduce(&mut self, values: SliceMut<'_>, _: ReduceOp, root: usize) -> Result<()> {
        let back = if self.is(root) { 0..values.len() } else { 0..0 };
        self.in_memory(values, back)
    }
}

impl Movement for NcclEngine {
    fn all_gather(&mut self, values: SliceMut<'_>) -> Result<()> {
        let len = values.len();
        self.in_memory(values, 0..len)
    }

    fn all_gatherv(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let lengths = exchange(&mut self.host, &written([own.len()]))?;
        let (member, parts) = (self.member(), in_a_row(self.lengths(&lengths, 0)?));
        let incoming = parts.last().map_or(0, |part| part.end);
        let got = self
            .through_memory(&[own], incoming, |from, to| calls::all_gather_parts(member, from, to, &parts))?;
        Ok(cut(&got, &parts))
    }

    fn broadcast(&mut self, values: SliceMut<'_>, root: usize) -> Result<()> {
        let back = if self.is(root) { 0..0 } else { 0..values.len() };
        self.in_memory(values, back)
    }

    fn gather(&mut self, own: &[u8], root: usize) -> Result<Vec<Vec<u8>>> {
        let lengths = exchange(&mut self.host, &written([own.len()]))?;
        let parts = in_a_row(if self.is(root) { self.lengths(&lengths, 0)? } else { Vec::new() });
        let incoming = parts.last().map_or(0, |part| part.end);
        let got = self.through_memory(&[own], incoming, |from, to| {
            let mut calls = calls::receive_parts(to, &parts);
            calls.push(Call::Send { from, to: root });
            calls
        })?;
        Ok(cut(&got, &parts))
    }

    fn scatter(&mut self, parts: &[&[u8]], root: usize) -> Result<Vec<u8>> {
        let own = if self.is(root) { parts } else { &[] };
        let lengths = exchange(&mut self.host, &written(own.iter().map(|part| part.len())))?;
        let incoming = self.length(&read(&lengths[root]), root, self.host.rank)?;
        let out = in_a_row(own.iter().map(|part| part.len()));
        self.through_memory(own, incoming, |from, to| {
            let mut calls = calls::send_parts(from, &out);
            calls.push(Call::Receive { to, from: root });
            calls
        })
    }

    fn all_to_all(&mut self, parts: &[&[u8]]) -> Result<Vec<Vec<u8>>> {
        let lengths = exchange(&mut self.host, &written(parts.iter().map(|part| part.len())))?;
        let inn = in_a_row(self.lengths(&lengths, self.host.rank)?);
        let out = in_a_row(parts.iter().map(|part| part.len()));
        let incoming = inn.last().map_or(0, |part| part.end);
        let got = self.through_memory(parts, incoming, |from, to| {
            let mut calls = calls::send_parts(from, &out);
            calls.extend(calls::receive_parts(to, &inn));
            calls
        })?;
        Ok(cut(&got, &inn))
    }

    /// Through the host: a message of a communicator may be sent before its receiver has come, and NCCL's may not.
    fn send_to(&mut self, to: usize, bytes: &[u8]) -> Result<()> {
        self.host.send_to(to, bytes)
    }

    fn receive_from(&mut self, from: usize, into: &mut [u8]) -> Result<()> {
        self.host.receive_from(from, into)
    }

    fn send_recv(
        &mut self,
        to: usize,
        bytes: &[u8],
        from: usize,
        into: &mut [u8],
        incoming: usize,
    ) -> Result<()> {
        self.host.send_recv(to, bytes, from, into, incoming)
    }
}

impl Engine for NcclEngine {}

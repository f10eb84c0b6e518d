//! Operations with a separate buffer for a rank's own part.

use super::{Communicator, open};
use crate::buffer::{FlatBuffer, on_slice};
use crate::dtype::ReduceOp;
use crate::engine::Engine;
use crate::error::{CommError, Result};
use crate::handle::Handle;
use crate::operation::{Kind, Scope, Tag};
use crate::partition::chunk;

/// The kind of an operation with a separate part.
#[derive(Clone, Copy)]
enum PartOperation {
    /// The part receives its chunk of the reduction.
    ReduceScatter,
    /// The parts of all ranks make up the whole.
    AllGather,
}

impl PartOperation {
    fn kind(self) -> Kind {
        match self {
            Self::ReduceScatter => Kind::ReduceScatter,
            Self::AllGather => Kind::AllGather,
        }
    }

    fn run<B: FlatBuffer + ?Sized, P: FlatBuffer + ?Sized>(
        self,
        engine: &mut dyn Engine,
        tag: Tag,
        op: ReduceOp,
        (whole, part): (&mut B, &mut P),
    ) -> Result<()> {
        let (len, of_part) = (tag.count as usize, (tag.dtype, part.len()));
        let own = chunk(len, engine.world_size(), engine.rank());
        open(whole, (tag.dtype, len), &mut |mut whole| {
            open(part, of_part, &mut |mut part| {
                let (whole, part) = (&mut whole, &mut part);
                match self {
                    Self::ReduceScatter => {
                        if !engine.reduce_scatter_into(whole.reborrow(), part.reborrow(), op)? {
                            engine.reduce_scatter(whole.reborrow(), op)?;
                            on_slice!(part, |part| part.copy_from_slice(&whole.typed()[own.clone()]));
                        }
                    }
                    Self::AllGather => {
                        if !engine.all_gather_from(whole.reborrow(), part.reborrow())? {
                            on_slice!(&mut *part, |part| whole.typed()[own.clone()].copy_from_slice(part));
                            engine.all_gather(whole.reborrow())?;
                        }
                    }
                }
                Ok(())
            })
        })
    }
}

impl Communicator {
    fn of_part<B: FlatBuffer + ?Sized, P: FlatBuffer + ?Sized>(
        &self,
        operation: PartOperation,
        buffers: (&mut B, &mut P),
        op: Option<ReduceOp>,
    ) -> Result<()> {
        let (tag, with) = self.checked_part(operation, &*buffers.0, &*buffers.1, op)?;
        if let Some(under_way) = self.both_on_device(tag, buffers.0, buffers.1)? {
            return under_way.hand_over();
        }
        self.run(Scope::World, tag, |engine| operation.run(engine, tag, with, buffers))
    }

    fn of_part_async<B: FlatBuffer, P: FlatBuffer>(
        &self,
        operation: PartOperation,
        (mut whole, mut part): (B, P),
        op: Option<ReduceOp>,
    ) -> Handle<(B, P)> {
        let begun = self.checked_part(operation, &whole, &part, op).and_then(|(tag, with)| {
            let under_way = self.both_on_device(tag, &mut whole, &mut part)?;
            Ok((tag, with, under_way))
        });
        let counters = || self.inner.counters.clone();
        match begun {
            Err(error) => Handle::failed(error, counters()),
            Ok((_, _, Some(under_way))) => Handle::on_device((whole, part), under_way, counters()),
            Ok((tag, with, None)) => self.issue(Scope::World, tag, move |engine| {
                operation.run(engine, tag, with, (&mut whole, &mut part))?;
                Ok((whole, part))
            }),
        }
    }

    /// Describes the operation, if the part has the right length and the type can be reduced.
    fn checked_part<B: FlatBuffer + ?Sized, P: FlatBuffer + ?Sized>(
        &self,
        operation: PartOperation,
        whole: &B,
        part: &P,
        op: Option<ReduceOp>,
    ) -> Result<(Tag, ReduceOp)> {
        let own = chunk(whole.len(), self.world_size(), self.rank());
        if (part.dtype(), part.len()) != (whole.dtype(), own.len()) {
            let operation = operation.kind().name();
            let (is, holds) = (part.dtype().name(), part.len());
            let problem = format!(
                "rank {}'s part of {} {} is {} of them, not {holds} {is}",
                self.rank(),
                whole.len(),
                whole.dtype().name(),
                own.len()
            );
            return Err(CommError::Argument { operation, problem });
        }
        let tag = Tag::new(operation.kind(), whole.dtype(), whole.len());
        let with = op.unwrap_or(ReduceOp::Sum);
        with.check(tag.dtype)?;
        Ok((op.map_or(tag, |op| tag.with_op(op)), with))
    }

    /// Writes the reduction of elements `rank·len/world .. (rank + 1)·len/world` of all ranks' `whole` to this rank's `part`.
    /// Afterwards the content of `whole` is unspecified.
    ///
    /// # Errors
    /// [`CommError::Argument`] if the part has another length or type, [`CommError::Unsupported`] for the mean of integers;
    /// otherwise the error of the world.
    pub fn reduce_scatter_into<B: FlatBuffer + ?Sized, P: FlatBuffer + ?Sized>(
        &self,
        whole: &mut B,
        part: &mut P,
        op: ReduceOp,
    ) -> Result<()> {
        self.of_part(PartOperation::ReduceScatter, (whole, part), Some(op))
    }

    /// [`Communicator::reduce_scatter_into`] without waiting: [`Handle::wait`] returns both buffers.
    pub fn reduce_scatter_into_async<B: FlatBuffer, P: FlatBuffer>(
        &self,
        whole: B,
        part: P,
        op: ReduceOp,
    ) -> Handle<(B, P)> {
        self.of_part_async(PartOperation::ReduceScatter, (whole, part), Some(op))
    }

    /// Copies rank `rank`'s `part` to elements `rank·len/world .. (rank + 1)·len/world` of every rank's `whole`. The previous
    /// content of `whole` does not matter.
    ///
    /// # Errors
    /// [`CommError::Argument`] if the part has another length or type; otherwise the error of the world.
    pub fn all_gather_into<B: FlatBuffer + ?Sized, P: FlatBuffer + ?Sized>(
        &self,
        whole: &mut B,
        part: &mut P,
    ) -> Result<()> {
        self.of_part(PartOperation::AllGather, (whole, part), None)
    }

    /// [`Communicator::all_gather_into`] without waiting: [`Handle::wait`] returns both buffers.
    pub fn all_gather_into_async<B: FlatBuffer, P: FlatBuffer>(&self, whole: B, part: P) -> Handle<(B, P)> {
        self.of_part_async(PartOperation::AllGather, (whole, part), None)
    }
}

//! Operations that reduce values.

use super::{Communicator, open};
use crate::buffer::FlatBuffer;
use crate::dtype::{Element, ReduceOp};
use crate::engine::Engine;
use crate::error::Result;
use crate::handle::Handle;
use crate::operation::{Kind, Tag};
use crate::partition::chunk;

/// The action of an in-place operation on an opened buffer.
type InPlaceAction = fn(&mut dyn Engine, crate::SliceMut<'_>, ReduceOp) -> Result<()>;

/// An operation on one buffer that has the same length on every rank.
#[derive(Clone, Copy)]
pub(super) struct InPlace {
    kind: Kind,
    /// Its kind on memory that all ranks map.
    region: Kind,
    act: InPlaceAction,
}

const ALL_REDUCE: InPlace = InPlace {
    kind: Kind::AllReduce,
    region: Kind::AllReduceInPlace,
    act: |engine, slice, op| engine.all_reduce(slice, op),
};
const REDUCE_SCATTER: InPlace = InPlace {
    kind: Kind::ReduceScatter,
    region: Kind::ReduceScatterInPlace,
    act: |engine, slice, op| engine.reduce_scatter(slice, op),
};
pub(super) const ALL_GATHER: InPlace = InPlace {
    kind: Kind::AllGather,
    region: Kind::AllGatherInPlace,
    act: |engine, slice, _| engine.all_gather(slice),
};

impl InPlace {
    fn run<B: FlatBuffer + ?Sized>(
        self,
        engine: &mut dyn Engine,
        buffer: &mut B,
        tag: Tag,
        op: ReduceOp,
    ) -> Result<()> {
        let result = match buffer.region() {
            Some(region) => engine.in_place(region, op),
            None => {
                let of = (buffer.dtype(), tag.count as usize);
                open(buffer, of, &mut |slice| (self.act)(engine, slice, op))
            }
        };
        if result.is_err() {
            buffer.withdraw();
        }
        result
    }
}

impl Communicator {
    fn tag_in_place<B: FlatBuffer + ?Sized>(&self, what: InPlace, buffer: &B, op: Option<ReduceOp>) -> Tag {
        let kind = if buffer.region().is_some() { what.region } else { what.kind };
        let tag = Tag::new(kind, buffer.dtype(), buffer.len());
        op.map_or(tag, |op| tag.with_op(op))
    }

    pub(super) fn in_place<B: FlatBuffer + ?Sized>(
        &self,
        what: InPlace,
        buffer: &mut B,
        op: Option<ReduceOp>,
    ) -> Result<()> {
        let tag = self.tag_in_place(what, buffer, op);
        let with = op.unwrap_or(ReduceOp::Sum);
        with.check(tag.dtype)?;
        self.run_on(tag, buffer, |engine, buffer| what.run(engine, buffer, tag, with))
    }

    pub(super) fn in_place_async<B: FlatBuffer>(
        &self,
        what: InPlace,
        buffer: B,
        op: Option<ReduceOp>,
    ) -> Handle<B> {
        let tag = self.tag_in_place(what, &buffer, op);
        let with = op.unwrap_or(ReduceOp::Sum);
        if let Err(error) = with.check(tag.dtype) {
            return Handle::failed(error, self.inner.counters.clone());
        }
        self.issue_on(tag, buffer, move |engine, buffer| what.run(engine, buffer, tag, with))
    }

    /// Replaces every rank's buffer by the reduction of all. After an error its content is unspecified.
    ///
    /// # Errors
    /// [`CommError::Unsupported`](crate::CommError::Unsupported) for the mean of integers; otherwise the error of the world.
    pub fn all_reduce<B: FlatBuffer + ?Sized>(&self, buffer: &mut B, op: ReduceOp) -> Result<()> {
        self.in_place(ALL_REDUCE, buffer, Some(op))
    }

    /// [`Communicator::all_reduce`] without waiting: the buffer is reduced in place on the communication thread, and
    /// [`Handle::wait`] returns it.
    pub fn all_reduce_async<B: FlatBuffer>(&self, buffer: B, op: ReduceOp) -> Handle<B> {
        self.in_place_async(ALL_REDUCE, buffer, Some(op))
    }

    /// Returns this rank's part of the reduction of all buffers: elements `rank·len/world .. (rank + 1)·len/world`.
    ///
    /// # Errors
    /// [`CommError::Unsupported`](crate::CommError::Unsupported) for the mean of integers; otherwise the error of the world.
    pub fn reduce_scatter<T: Element>(&self, values: &[T], op: ReduceOp) -> Result<Vec<T>> {
        let mut copy = values.to_vec();
        self.reduce_scatter_in_place(&mut copy, op)?;
        Ok(copy[chunk(values.len(), self.world_size(), self.rank())].to_vec())
    }

    /// Replaces elements `rank·len/world .. (rank + 1)·len/world` of the buffer by the reduction of all ranks'. The rest is
    /// unspecified afterwards.
    ///
    /// # Errors
    /// [`CommError::Unsupported`](crate::CommError::Unsupported) for the mean of integers; otherwise the error of the world.
    pub fn reduce_scatter_in_place<B: FlatBuffer + ?Sized>(
        &self,
        buffer: &mut B,
        op: ReduceOp,
    ) -> Result<()> {
        self.in_place(REDUCE_SCATTER, buffer, Some(op))
    }

    /// [`Communicator::reduce_scatter_in_place`] without waiting: [`Handle::wait`] returns the buffer.
    pub fn reduce_scatter_in_place_async<B: FlatBuffer>(&self, buffer: B, op: ReduceOp) -> Handle<B> {
        self.in_place_async(REDUCE_SCATTER, buffer, Some(op))
    }

    /// Replaces the root's buffer by the reduction of all; the others keep theirs.
    ///
    /// # Errors
    /// [`CommError::Argument`](crate::CommError::Argument) if there is no such root,
    /// [`CommError::Unsupported`](crate::CommError::Unsupported) for the mean of integers; otherwise the error of the world.
    pub fn reduce<B: FlatBuffer + ?Sized>(&self, buffer: &mut B, op: ReduceOp, root: usize) -> Result<()> {
        let tag = self.reduce_tag(buffer, op, root)?;
        let of = (tag.dtype, tag.count as usize);
        self.run_on(tag, buffer, |engine, buffer| {
            open(buffer, of, &mut |slice| engine.reduce(slice, op, root))
        })
    }

    /// [`Communicator::reduce`] without waiting: [`Handle::wait`] returns the buffer.
    pub fn reduce_async<B: FlatBuffer>(&self, buffer: B, op: ReduceOp, root: usize) -> Handle<B> {
        let tag = match self.reduce_tag(&buffer, op, root) {
            Ok(tag) => tag,
            Err(error) => return Handle::failed(error, self.inner.counters.clone()),
        };
        let of = (tag.dtype, tag.count as usize);
        self.issue_on(tag, buffer, move |engine, buffer| {
            open(buffer, of, &mut |slice| engine.reduce(slice, op, root))
        })
    }

    fn reduce_tag<B: FlatBuffer + ?Sized>(&self, buffer: &B, op: ReduceOp, root: usize) -> Result<Tag> {
        op.check(buffer.dtype())?;
        self.check_root("reduce", root)?;
        Ok(Tag::new(Kind::Reduce, buffer.dtype(), buffer.len()).with_op(op).with_root(root))
    }
}

//! Operations that move values without changing them.

use super::reductions::ALL_GATHER;
use super::{Communicator, open};
use crate::buffer::{FlatBuffer, on_slice};
use crate::dtype::{DType, Element};
use crate::engine::same_facts;
use crate::error::{CommError, Result};
use crate::handle::Handle;
use crate::operation::{Kind, Scope, Tag};
use crate::partition::{chunk, in_a_row};

impl Communicator {
    /// Returns the buffers of all ranks, one after the other. They must have equal lengths.
    ///
    /// # Errors
    /// [`CommError::Mismatch`] if the lengths differ; otherwise the error of the world.
    pub fn all_gather<T: Element>(&self, values: &[T]) -> Result<Vec<T>> {
        let (len, rank, world) = (values.len(), self.rank(), self.world_size());
        let mut all = vec![T::zeroed(); len * world];
        all[rank * len..(rank + 1) * len].copy_from_slice(values);
        self.all_gather_in_place(&mut all)?;
        Ok(all)
    }

    /// Copies elements `rank·len/world .. (rank + 1)·len/world` of each rank's buffer to all others, in place.
    ///
    /// # Errors
    /// [`CommError::Mismatch`] if the lengths differ; otherwise the error of the world.
    pub fn all_gather_in_place<B: FlatBuffer + ?Sized>(&self, buffer: &mut B) -> Result<()> {
        self.in_place(ALL_GATHER, buffer, None)
    }

    /// [`Communicator::all_gather_in_place`] without waiting: [`Handle::wait`] returns the buffer.
    pub fn all_gather_in_place_async<B: FlatBuffer>(&self, buffer: B) -> Handle<B> {
        self.in_place_async(ALL_GATHER, buffer, None)
    }

    /// Copies part `rank` of each rank's buffer to all others, in place. The buffer has one part for each rank, of these lengths,
    /// one after the other. Lengths are equal on every rank.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is not one part for each rank, the parts do not fill the buffer, or a rank gives another
    /// length; [`CommError::Mismatch`] if lengths differ in GPU memory; otherwise the error of the world.
    pub fn all_gatherv_in_place<B: FlatBuffer + ?Sized>(
        &self,
        buffer: &mut B,
        lengths: &[usize],
    ) -> Result<()> {
        const NAME: &str = "all-gatherv";
        self.check_parts(NAME, lengths.len())?;
        let (parts, of) = (in_a_row(lengths.iter().copied()), (buffer.dtype(), buffer.len()));
        if lengths.iter().sum::<usize>() != of.1 {
            let problem = format!("parts of {lengths:?} elements in a buffer of {}", of.1);
            return Err(CommError::Argument { operation: NAME, problem });
        }
        let (tag, own) = (Tag::new(Kind::AllGatherV, of.0, 0), parts[self.rank()].clone());
        if let Some(under_way) = self.parts_on_device(tag, buffer, &parts)? {
            return under_way.hand_over();
        }
        self.run(Scope::World, tag, |engine| {
            open(buffer, of, &mut |slice| {
                let size = of.0.size();
                let bytes: &mut [u8] = on_slice!(slice, |values| bytemuck::cast_slice_mut(values));
                let all = engine.all_gatherv(&bytes[own.start * size..own.end * size])?;
                for (from, (got, part)) in all.iter().zip(&parts).enumerate() {
                    if got.len() != part.len() * size {
                        let (gives, is) = (got.len() / size, part.len());
                        let problem = format!("rank {from} gives {gives} elements; its part is {is}");
                        return Err(CommError::Argument { operation: NAME, problem });
                    }
                    bytes[part.start * size..part.end * size].copy_from_slice(got);
                }
                Ok(())
            })
        })
    }

    /// Returns the buffers of all ranks, which may have different lengths, by rank.
    ///
    /// # Errors
    /// The error of the world.
    pub fn all_gatherv<T: Element>(&self, values: &[T]) -> Result<Vec<Vec<T>>> {
        let tag = Tag::new(Kind::AllGatherV, T::DTYPE, 0);
        let own = bytemuck::cast_slice(values);
        let all = self.run(Scope::World, tag, |engine| engine.all_gatherv(own))?;
        all.iter().map(|bytes| typed(bytes)).collect()
    }

    /// [`Communicator::all_gatherv`] without waiting.
    pub fn all_gatherv_async<T: Element>(&self, values: Vec<T>) -> Handle<Vec<Vec<T>>> {
        let tag = Tag::new(Kind::AllGatherV, T::DTYPE, 0);
        self.issue(Scope::World, tag, move |engine| {
            let all = engine.all_gatherv(bytemuck::cast_slice(&values))?;
            all.iter().map(|bytes| typed(bytes)).collect()
        })
    }

    /// Replaces every rank's buffer by the root's.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is no such root; otherwise the error of the world.
    pub fn broadcast<B: FlatBuffer + ?Sized>(&self, buffer: &mut B, root: usize) -> Result<()> {
        self.check_root("broadcast", root)?;
        let tag = self.broadcast_tag(buffer, root);
        let of = (tag.dtype, tag.count as usize);
        self.run_on(tag, buffer, |engine, buffer| {
            open(buffer, of, &mut |slice| engine.broadcast(slice, root))
        })
    }

    /// [`Communicator::broadcast`] without waiting: [`Handle::wait`] returns the buffer.
    pub fn broadcast_async<B: FlatBuffer>(&self, buffer: B, root: usize) -> Handle<B> {
        if let Err(error) = self.check_root("broadcast", root) {
            return Handle::failed(error, self.inner.counters.clone());
        }
        let tag = self.broadcast_tag(&buffer, root);
        let of = (tag.dtype, tag.count as usize);
        self.issue_on(tag, buffer, move |engine, buffer| {
            open(buffer, of, &mut |slice| engine.broadcast(slice, root))
        })
    }

    fn broadcast_tag<B: FlatBuffer + ?Sized>(&self, buffer: &B, root: usize) -> Tag {
        Tag::new(Kind::Broadcast, buffer.dtype(), buffer.len()).with_root(root)
    }

    /// Returns at the root the buffers of all ranks, which may have different lengths, by rank; elsewhere nothing.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is no such root; otherwise the error of the world.
    pub fn gatherv<T: Element>(&self, values: &[T], root: usize) -> Result<Vec<Vec<T>>> {
        self.check_root("gather", root)?;
        let tag = Tag::new(Kind::Gather, T::DTYPE, 0).with_root(root);
        let own = bytemuck::cast_slice(values);
        let all = self.run(Scope::World, tag, |engine| engine.gather(own, root))?;
        all.iter().map(|bytes| typed(bytes)).collect()
    }

    /// [`Communicator::gatherv`] without waiting.
    pub fn gatherv_async<T: Element>(&self, values: Vec<T>, root: usize) -> Handle<Vec<Vec<T>>> {
        if let Err(error) = self.check_root("gather", root) {
            return Handle::failed(error, self.inner.counters.clone());
        }
        let tag = Tag::new(Kind::Gather, T::DTYPE, 0).with_root(root);
        self.issue(Scope::World, tag, move |engine| {
            let all = engine.gather(bytemuck::cast_slice(&values), root)?;
            all.iter().map(|bytes| typed(bytes)).collect()
        })
    }

    /// Returns this rank's part of the root's `parts`, which may have different lengths. On other ranks `parts` is ignored.
    ///
    /// # Errors
    /// [`CommError::Argument`] if the root does not give one part for each rank; otherwise the error of the world.
    pub fn scatterv<T: Element>(&self, parts: &[Vec<T>], root: usize) -> Result<Vec<T>> {
        self.check_scatter(parts, root)?;
        let tag = Tag::new(Kind::Scatter, T::DTYPE, 0).with_root(root);
        let parts: Vec<&[u8]> = parts.iter().map(|part| bytemuck::cast_slice(part)).collect();
        typed(&self.run(Scope::World, tag, |engine| engine.scatter(&parts, root))?)
    }

    /// [`Communicator::scatterv`] without waiting.
    pub fn scatterv_async<T: Element>(&self, parts: Vec<Vec<T>>, root: usize) -> Handle<Vec<T>> {
        if let Err(error) = self.check_scatter(&parts, root) {
            return Handle::failed(error, self.inner.counters.clone());
        }
        let tag = Tag::new(Kind::Scatter, T::DTYPE, 0).with_root(root);
        self.issue(Scope::World, tag, move |engine| {
            let parts: Vec<&[u8]> = parts.iter().map(|part| bytemuck::cast_slice(part)).collect();
            typed(&engine.scatter(&parts, root)?)
        })
    }

    fn check_scatter<T>(&self, parts: &[Vec<T>], root: usize) -> Result<()> {
        self.check_root("scatter", root)?;
        let needed = self.rank() == root;
        if needed { self.check_parts("scatter", parts.len()) } else { Ok(()) }
    }

    pub(super) fn check_parts(&self, operation: &'static str, parts: usize) -> Result<()> {
        if parts == self.world_size() {
            return Ok(());
        }
        let problem = format!("{parts} parts for {} ranks", self.world_size());
        Err(CommError::Argument { operation, problem })
    }

    /// Returns every rank's part for this one: elements `r·len/world .. (r + 1)·len/world` of each buffer go to rank `r`, which
    /// gets them in the order of ranks. Buffers have equal lengths.
    ///
    /// # Errors
    /// [`CommError::Mismatch`] if the lengths differ; otherwise the error of the world.
    pub fn all_to_all<T: Element>(&self, values: &[T]) -> Result<Vec<T>> {
        let (len, world) = (values.len(), self.world_size());
        let parts: Vec<&[u8]> =
            (0..world).map(|rank| bytemuck::cast_slice(&values[chunk(len, world, rank)])).collect();
        let tag = Tag::new(Kind::AllToAll, T::DTYPE, len);
        let all = self.run(Scope::World, tag, |engine| engine.all_to_all(&parts))?;
        typed(&all.concat())
    }

    /// [`Communicator::all_to_all`] without waiting.
    pub fn all_to_all_async<T: Element>(&self, values: Vec<T>) -> Handle<Vec<T>> {
        let (len, world) = (values.len(), self.world_size());
        let tag = Tag::new(Kind::AllToAll, T::DTYPE, len);
        self.issue(Scope::World, tag, move |engine| {
            let parts: Vec<&[u8]> =
                (0..world).map(|rank| bytemuck::cast_slice(&values[chunk(len, world, rank)])).collect();
            typed(&engine.all_to_all(&parts)?.concat())
        })
    }

    /// Returns every rank's part for this one, of any lengths: part `r` goes to rank `r`, and the part from rank `r` is at `r` in
    /// the result.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is not one part for each rank; otherwise the error of the world.
    pub fn all_to_allv<T: Element>(&self, parts: &[Vec<T>]) -> Result<Vec<Vec<T>>> {
        self.check_parts("all-to-allv", parts.len())?;
        let tag = Tag::new(Kind::AllToAllV, T::DTYPE, 0);
        let parts: Vec<&[u8]> = parts.iter().map(|part| bytemuck::cast_slice(part)).collect();
        let all = self.run(Scope::World, tag, |engine| engine.all_to_all(&parts))?;
        all.iter().map(|bytes| typed(bytes)).collect()
    }

    /// [`Communicator::all_to_allv`] without waiting.
    pub fn all_to_allv_async<T: Element>(&self, parts: Vec<Vec<T>>) -> Handle<Vec<Vec<T>>> {
        if let Err(error) = self.check_parts("all-to-allv", parts.len()) {
            return Handle::failed(error, self.inner.counters.clone());
        }
        let tag = Tag::new(Kind::AllToAllV, T::DTYPE, 0);
        self.issue(Scope::World, tag, move |engine| {
            let parts: Vec<&[u8]> = parts.iter().map(|part| bytemuck::cast_slice(part)).collect();
            engine.all_to_all(&parts)?.iter().map(|bytes| typed(bytes)).collect()
        })
    }

    fn check_other(&self, operation: &'static str, other: usize) -> Result<()> {
        self.check_root(operation, other)?;
        if other != self.rank() {
            return Ok(());
        }
        let problem = format!("rank {other} is this rank");
        Err(CommError::Argument { operation, problem })
    }

    /// Sends a buffer to one other rank, which must call [`Communicator::recv`]. Other ranks call neither. Two ranks may send to
    /// each other before they receive; the system's buffers and a queue hold the messages.
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is no such rank or it is this one; otherwise the error of the world.
    pub fn send<T: Element>(&self, values: &[T], to: usize) -> Result<()> {
        self.check_other("send", to)?;
        let tag = Tag::new(Kind::SendRecv, T::DTYPE, values.len());
        self.run(Scope::To(to), tag, |engine| engine.send_to(to, bytemuck::cast_slice(values)))
    }

    /// [`Communicator::send`] without waiting: [`Handle::wait`] returns the buffer.
    pub fn send_async<T: Element>(&self, values: Vec<T>, to: usize) -> Handle<Vec<T>> {
        if let Err(error) = self.check_other("send", to) {
            return Handle::failed(error, self.inner.counters.clone());
        }
        let tag = Tag::new(Kind::SendRecv, T::DTYPE, values.len());
        self.issue(Scope::To(to), tag, move |engine| {
            engine.send_to(to, bytemuck::cast_slice(&values))?;
            Ok(values)
        })
    }

    /// Receives a buffer from one other rank; see [`Communicator::send`].
    ///
    /// # Errors
    /// [`CommError::Mismatch`] if type or length differ; otherwise as [`Communicator::send`].
    pub fn recv<T: Element>(&self, values: &mut [T], from: usize) -> Result<()> {
        self.check_other("receive", from)?;
        let tag = Tag::new(Kind::SendRecv, T::DTYPE, values.len());
        self.run(Scope::From(from), tag, |engine| engine.receive_from(from, bytemuck::cast_slice_mut(values)))
    }

    /// [`Communicator::recv`] without waiting: [`Handle::wait`] returns the filled buffer.
    pub fn recv_async<T: Element>(&self, mut values: Vec<T>, from: usize) -> Handle<Vec<T>> {
        if let Err(error) = self.check_other("receive", from) {
            return Handle::failed(error, self.inner.counters.clone());
        }
        let tag = Tag::new(Kind::SendRecv, T::DTYPE, values.len());
        self.issue(Scope::From(from), tag, move |engine| {
            engine.receive_from(from, bytemuck::cast_slice_mut(&mut values))?;
            Ok(values)
        })
    }

    /// Sends a buffer to one rank while another arrives from a rank, which may be the same. Neither waits for the other. The other
    /// ranks may call this, or [`Communicator::send`] and [`Communicator::recv`].
    ///
    /// # Errors
    /// [`CommError::Argument`] if there is no such rank or it is this one, [`CommError::Mismatch`] if type or length differ from
    /// the other rank's call; otherwise the error of the world.
    pub fn send_recv<T: Element>(&self, values: &[T], to: usize, into: &mut [T], from: usize) -> Result<()> {
        self.check_other("send", to)?;
        self.check_other("receive", from)?;
        let tag = Tag::new(Kind::SendRecv, T::DTYPE, values.len());
        let incoming = into.len();
        self.run(Scope::To(to), tag, |engine| {
            engine.send_recv(to, bytemuck::cast_slice(values), from, bytemuck::cast_slice_mut(into), incoming)
        })
    }

    /// Waits until every rank has called this. Ranks at barriers of different names get an error with both.
    ///
    /// # Errors
    /// [`CommError::Mismatch`] if names differ; otherwise the error of the world.
    pub fn barrier(&self, name: &str) -> Result<()> {
        let tag = Tag::new(Kind::Barrier, DType::U8, 0);
        let names = self.run(Scope::World, tag, |engine| engine.all_gatherv(name.as_bytes()))?;
        same_names(&names, name)
    }

    /// [`Communicator::barrier`] without waiting.
    pub fn barrier_async(&self, name: &str) -> Handle<()> {
        let tag = Tag::new(Kind::Barrier, DType::U8, 0);
        let name = name.to_owned();
        self.issue(Scope::World, tag, move |engine| same_names(&engine.all_gatherv(name.as_bytes())?, &name))
    }
}

fn same_names(names: &[Vec<u8>], own: &str) -> Result<()> {
    same_facts(names, own).map_err(|(rank, other)| CommError::Mismatch {
        rank,
        ours: format!("barrier `{own}`"),
        theirs: format!("barrier `{other}`"),
    })
}

/// Converts received bytes to elements; an error if they do not divide evenly.
fn typed<T: Element>(bytes: &[u8]) -> Result<Vec<T>> {
    if !bytes.len().is_multiple_of(size_of::<T>()) {
        let problem = format!("{} bytes are not whole elements of {}", bytes.len(), T::DTYPE.name());
        return Err(CommError::Argument { operation: "receive", problem });
    }
    let mut values = vec![T::zeroed(); bytes.len() / size_of::<T>()];
    bytemuck::cast_slice_mut::<T, u8>(&mut values).copy_from_slice(bytes);
    Ok(values)
}

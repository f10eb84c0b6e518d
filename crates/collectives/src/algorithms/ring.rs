//! The ring algorithms: every rank talks to its two neighbours only, and every link carries the same load.
//!
//! An all-reduce is a reduce-scatter (after world − 1 steps rank r holds the reduced chunk r) and an all-gather
//! (the chunks go around once more), so each rank sends 2·(world − 1)/world of the buffer, the least possible
//! (Patarasuk & Yuan 2009). A chunk is reduced along the ring in one fixed order and then copied, so the result
//! is the same bits on every rank. Chunks travel in pieces, so that a piece is reduced while the next is on its
//! way.

use super::{MAX_MESSAGE, chunk, pieces};
use crate::dtype::{Element, ReduceOp};
use crate::engine::Engine;
use crate::error::Result;
use crate::reduce::reduce_into;

impl Engine {
    /// Reduces so that the chunk of this rank's number is complete, the mean's division included; the rest of the
    /// buffer holds partial results.
    pub(super) fn scatter_reduced<T: Element>(&mut self, values: &mut [T], op: ReduceOp) -> Result<()> {
        let (len, world) = (values.len(), self.world_size);
        for step in 0..world - 1 {
            let outgoing = pieces::<T>(chunk(len, world, self.behind(step + 1)));
            let incoming = pieces::<T>(chunk(len, world, self.behind(step + 2)));
            let (mut outgoing, mut incoming) = (outgoing.fuse(), incoming.fuse());
            loop {
                let (out, inn) = (outgoing.next(), incoming.next());
                if let Some(out) = &out {
                    self.send(self.next(), bytemuck::cast_slice(&values[out.clone()]))?;
                }
                if let Some(inn) = &inn {
                    let mut scratch = std::mem::take(&mut self.scratch);
                    scratch.resize((inn.len() * size_of::<T>()).div_ceil(8).max(scratch.len()), 0);
                    let bytes =
                        &mut bytemuck::cast_slice_mut::<u64, u8>(&mut scratch)[..inn.len() * size_of::<T>()];
                    let arrived = self.receive(self.previous(), bytes);
                    if arrived.is_ok() {
                        reduce_into(op, &mut values[inn.clone()], bytemuck::cast_slice(bytes));
                    }
                    self.scratch = scratch;
                    arrived?;
                }
                if out.is_none() && inn.is_none() {
                    break;
                }
            }
        }
        if op == ReduceOp::Mean {
            values[chunk(len, world, self.rank)].iter_mut().for_each(|v| *v = v.divide(world));
        }
        Ok(())
    }

    /// Sends complete chunks around, each rank beginning with the one of its number.
    fn gather_chunks<T: Element>(&mut self, values: &mut [T]) -> Result<()> {
        let (len, world) = (values.len(), self.world_size);
        for step in 0..world - 1 {
            let outgoing = pieces::<T>(chunk(len, world, self.behind(step)));
            let incoming = pieces::<T>(chunk(len, world, self.behind(step + 1)));
            let (mut outgoing, mut incoming) = (outgoing.fuse(), incoming.fuse());
            loop {
                let (out, inn) = (outgoing.next(), incoming.next());
                if let Some(out) = &out {
                    self.send(self.next(), bytemuck::cast_slice(&values[out.clone()]))?;
                }
                if let Some(inn) = &inn {
                    self.receive(self.previous(), bytemuck::cast_slice_mut(&mut values[inn.clone()]))?;
                }
                if out.is_none() && inn.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Every rank's buffer becomes the reduction of all.
    pub(crate) fn all_reduce<T: Element>(&mut self, values: &mut [T], op: ReduceOp) -> Result<()> {
        if self.world_size == 1 {
            return Ok(());
        }
        #[cfg(target_os = "linux")]
        if let Some(result) = self.all_reduce_shared(values, op) {
            return result;
        }
        self.scatter_reduced(values, op)?;
        self.gather_chunks(values)
    }

    /// Chunk `rank` of this rank's buffer becomes the reduction of all; the rest is left in pieces.
    pub(crate) fn reduce_scatter<T: Element>(&mut self, values: &mut [T], op: ReduceOp) -> Result<()> {
        if self.world_size == 1 { Ok(()) } else { self.scatter_reduced(values, op) }
    }

    /// Chunk `rank` of every rank's buffer reaches all others.
    pub(crate) fn all_gather<T: Element>(&mut self, values: &mut [T]) -> Result<()> {
        if self.world_size == 1 { Ok(()) } else { self.gather_chunks(values) }
    }

    /// The buffers of all ranks, whatever their lengths.
    pub(crate) fn all_gather_ragged(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut all = vec![Vec::new(); self.world_size];
        all[self.rank] = own.to_vec();
        for step in 0..self.world_size - 1 {
            let (out, inn) = (self.behind(step), self.behind(step + 1));
            let sending = std::mem::take(&mut all[out]);
            self.send(self.next(), &sending)?;
            all[out] = sending;
            all[inn] = self.receive_any(self.previous(), MAX_MESSAGE)?;
        }
        Ok(all)
    }
}

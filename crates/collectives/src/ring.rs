//! The ring algorithms: every rank talks to its two neighbours only, and every link carries the same load.
//!
//! An all-reduce is a reduce-scatter (after world − 1 steps rank r holds the reduced chunk r + 1) and an all-gather
//! (the chunks go around once more), so each rank sends 2·(world − 1)/world of the buffer, the least possible
//! (Patarasuk & Yuan 2009). A chunk is reduced along the ring in one fixed order and then copied, so the result
//! is the same bits on every rank. Chunks travel in pieces, so that a piece is reduced while the next is on its
//! way.

use std::ops::Range;

use crate::dtype::{Element, ReduceOp, reduce_into};
use crate::engine::Engine;
use crate::error::Result;

/// Bytes of a piece.
const PIECE: usize = 256 << 10;

/// The largest message that a rank accepts without having agreed on its size.
const MAX_MESSAGE: usize = 1 << 32;

/// Elements of chunk `index` when `len` elements are cut into `parts`, sizes within one of each other.
pub(crate) fn chunk(len: usize, parts: usize, index: usize) -> Range<usize> {
    index * len / parts..(index + 1) * len / parts
}

/// `range` in pieces; one empty piece if it is empty, so that ranks still exchange a header.
fn pieces<T>(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let step = (PIECE / size_of::<T>().max(1)).max(1);
    let count = range.len().div_ceil(step).max(1);
    (0..count).map(move |i| {
        let start = range.start + i * step;
        start..(start + step).min(range.end)
    })
}

impl Engine {
    fn next(&self) -> usize {
        (self.rank + 1) % self.world_size
    }

    fn previous(&self) -> usize {
        (self.rank + self.world_size - 1) % self.world_size
    }

    /// The chunk that this rank handles `steps` steps behind its own.
    fn behind(&self, steps: usize) -> usize {
        (self.rank + self.world_size - steps % self.world_size) % self.world_size
    }

    /// Reduces so that this rank's chunk `rank + shift` is complete; the others hold partial results.
    fn scatter_reduced<T: Element>(&mut self, values: &mut [T], op: ReduceOp, shift: usize) -> Result<usize> {
        let (len, world) = (values.len(), self.world_size);
        let at = |engine: &Self, steps: usize| (engine.behind(steps) + shift + world - 1) % world;
        for step in 0..world - 1 {
            let outgoing = pieces::<T>(chunk(len, world, at(self, step)));
            let incoming = pieces::<T>(chunk(len, world, at(self, step + 1)));
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
        let own = at(self, world - 1);
        if op == ReduceOp::Mean {
            values[chunk(len, world, own)].iter_mut().for_each(|v| *v = v.divide(world));
        }
        Ok(own)
    }

    /// Sends complete chunks around, starting from this rank's chunk `own`.
    fn gather_chunks<T: Element>(&mut self, values: &mut [T], own: usize) -> Result<()> {
        let (len, world) = (values.len(), self.world_size);
        for step in 0..world - 1 {
            let outgoing = pieces::<T>(chunk(len, world, (own + world - step) % world));
            let incoming = pieces::<T>(chunk(len, world, (own + 2 * world - step - 1) % world));
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
        let own = self.scatter_reduced(values, op, 0)?;
        self.gather_chunks(values, own)
    }

    /// Chunk `rank` of this rank's buffer becomes the reduction of all; the rest is left in pieces.
    pub(crate) fn reduce_scatter<T: Element>(&mut self, values: &mut [T], op: ReduceOp) -> Result<()> {
        if self.world_size > 1 {
            let own = self.scatter_reduced(values, op, 0)?;
            debug_assert_eq!(own, self.rank);
        }
        Ok(())
    }

    /// Chunk `rank` of every rank's buffer reaches all others.
    pub(crate) fn all_gather<T: Element>(&mut self, values: &mut [T]) -> Result<()> {
        if self.world_size == 1 { Ok(()) } else { self.gather_chunks(values, self.rank) }
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

    /// The root's buffer reaches all others, piece by piece along the ring.
    pub(crate) fn broadcast<T: Element>(&mut self, values: &mut [T], root: usize) -> Result<()> {
        if self.world_size == 1 {
            return Ok(());
        }
        let last = self.next() == root;
        for piece in pieces::<T>(0..values.len()) {
            if self.rank != root {
                self.receive(self.previous(), bytemuck::cast_slice_mut(&mut values[piece.clone()]))?;
            }
            if !last {
                self.send(self.next(), bytemuck::cast_slice(&values[piece]))?;
            }
        }
        Ok(())
    }

    /// The root's buffer becomes the reduction of all; the others' contents are lost.
    pub(crate) fn reduce<T: Element>(&mut self, values: &mut [T], op: ReduceOp, root: usize) -> Result<()> {
        if self.world_size == 1 {
            return Ok(());
        }
        let (len, world) = (values.len(), self.world_size);
        let own = self.scatter_reduced(values, op, 0)?;
        if self.rank != root {
            return self.send(root, bytemuck::cast_slice(&values[chunk(len, world, own)]));
        }
        for rank in (0..world).filter(|rank| *rank != root) {
            self.receive(rank, bytemuck::cast_slice_mut(&mut values[chunk(len, world, rank)]))?;
        }
        Ok(())
    }

    /// All buffers arrive at the root, in the order of ranks; nobody else gets any.
    pub(crate) fn gather(&mut self, own: &[u8], root: usize) -> Result<Vec<Vec<u8>>> {
        if self.rank != root {
            self.send(root, own)?;
            return Ok(Vec::new());
        }
        let mut all = Vec::with_capacity(self.world_size);
        for rank in 0..self.world_size {
            all.push(if rank == root { own.to_vec() } else { self.receive_any(rank, MAX_MESSAGE)? });
        }
        Ok(all)
    }

    /// Each rank receives its part from the root.
    pub(crate) fn scatter(&mut self, parts: &[Vec<u8>], root: usize) -> Result<Vec<u8>> {
        if self.rank != root {
            return self.receive_any(root, MAX_MESSAGE);
        }
        for (rank, part) in parts.iter().enumerate().filter(|(rank, _)| *rank != root) {
            self.send(rank, part)?;
        }
        Ok(parts.get(root).cloned().unwrap_or_default())
    }
}

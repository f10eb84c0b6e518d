//! Operations with a root: one rank that all others receive from or send to.

use super::{MAX_MESSAGE, chunk, pieces};
use crate::dtype::{Element, ReduceOp};
use crate::engine::Engine;
use crate::error::Result;

impl Engine {
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
        self.scatter_reduced(values, op)?;
        if self.rank != root {
            return self.send(root, bytemuck::cast_slice(&values[chunk(len, world, self.rank)]));
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

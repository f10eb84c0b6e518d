//! Reductions. MPI reads and writes different buffers, so one of them is scratch; 16-bit floats go as f32.

use half::slice::HalfFloatSliceExt;

use super::collective::{Number, Parts};
use super::engine::{Mpi, not_in_place};
use super::partition::part_of;
use super::scratch::{COPIED, typed};
use crate::buffer::SliceMut;
use crate::dtype::ReduceOp;
use crate::engine::Reductions;
use crate::error::Result;
use crate::partition::chunk;
use crate::reduce::Reduction;
use crate::shared::Region;

/// Runs the same code on values of a type that MPI reduces. 16-bit floats are converted to f32, and rounded once afterwards if
/// `$back` is true.
macro_rules! on_numbers {
    ($slice:expr, $back:expr, |$values:ident| $run:expr) => {
        match $slice {
            SliceMut::F32($values) => $run,
            SliceMut::F64($values) => $run,
            SliceMut::I32($values) => $run,
            SliceMut::I64($values) => $run,
            SliceMut::U8($values) => $run,
            SliceMut::F16(halves) => through_f32(halves, $back, |$values| $run),
            SliceMut::BF16(halves) => through_f32(halves, $back, |$values| $run),
        }
    };
}

fn through_f32<H>(halves: &mut [H], back: bool, run: impl FnOnce(&mut [f32]) -> Result<()>) -> Result<()>
where
    [H]: HalfFloatSliceExt,
{
    let mut wide = vec![0.0; halves.len()];
    halves.convert_to_f32_slice(&mut wide);
    run(&mut wide)?;
    if back {
        halves.convert_from_f32_slice(&wide);
    }
    Ok(())
}

impl Reductions for Mpi {
    fn all_reduce(&mut self, values: SliceMut<'_>, op: ReduceOp) -> Result<()> {
        let reduction = Reduction::new(op, self.comm.size);
        on_numbers!(values, true, |values| self.all_reduce_numbers(values, reduction))
    }

    fn in_place(&mut self, _: &Region, _: ReduceOp) -> Result<()> {
        Err(not_in_place(self.tag.kind))
    }

    fn reduce_scatter(&mut self, values: SliceMut<'_>, op: ReduceOp) -> Result<()> {
        let reduction = Reduction::new(op, self.comm.size);
        on_numbers!(values, true, |values| self.reduce_scatter_numbers(values, reduction))
    }

    fn reduce(&mut self, values: SliceMut<'_>, op: ReduceOp, root: usize) -> Result<()> {
        let (reduction, back) = (Reduction::new(op, self.comm.size), self.comm.rank == root);
        on_numbers!(values, back, |values| self.reduce_numbers(values, reduction, root))
    }
}

impl Mpi {
    fn all_reduce_numbers<T: Number>(&mut self, values: &mut [T], reduction: Reduction) -> Result<()> {
        for piece in values.chunks_mut(COPIED.min(self.world.settings.piece)) {
            let own = typed::<T>(&mut self.scratch, piece.len());
            own.copy_from_slice(piece);
            self.comm.all_reduce(own, piece, reduction.op)?;
        }
        reduction.complete(values);
        self.count(size_of_val(values), size_of_val(values));
        Ok(())
    }

    fn reduce_scatter_numbers<T: Number>(&mut self, values: &mut [T], reduction: Reduction) -> Result<()> {
        let (len, rank, ranks) = (values.len(), self.comm.rank, self.comm.size);
        let own = chunk(len, ranks, rank);
        if len <= self.world.settings.piece {
            let parts = Parts::of((0..ranks).map(|rank| chunk(len, ranks, rank).len()))?;
            let part = typed::<T>(&mut self.scratch, own.len());
            self.comm.reduce_scatter(values, part, &parts, reduction.op)?;
            values[own.clone()].copy_from_slice(part);
        } else {
            // MPI needs the parts next to each other: `step` elements of each chunk are packed at a time.
            let step = (COPIED.min(self.world.settings.piece) / ranks).max(1);
            for round in 0..len.div_ceil(ranks).div_ceil(step) {
                let range = |rank: usize| part_of(chunk(len, ranks, rank), round, step);
                let parts = Parts::of((0..ranks).map(|rank| range(rank).len()))?;
                let both = typed::<T>(&mut self.scratch, parts.total() + range(rank).len());
                let (all, part) = both.split_at_mut(parts.total());
                let mut rest = &mut *all;
                for rank in 0..ranks {
                    let (here, after) = rest.split_at_mut(range(rank).len());
                    here.copy_from_slice(&values[range(rank)]);
                    rest = after;
                }
                self.comm.reduce_scatter(all, part, &parts, reduction.op)?;
                values[range(rank)].copy_from_slice(part);
            }
        }
        reduction.complete(&mut values[own.clone()]);
        self.count((len - own.len()) * size_of::<T>(), own.len() * size_of::<T>());
        Ok(())
    }

    fn reduce_numbers<T: Number>(
        &mut self,
        values: &mut [T],
        reduction: Reduction,
        root: usize,
    ) -> Result<()> {
        let at_root = self.comm.rank == root;
        for piece in values.chunks_mut(COPIED.min(self.world.settings.piece)) {
            let all = typed::<T>(&mut self.scratch, if at_root { piece.len() } else { 0 });
            self.comm.reduce(piece, all, reduction.op, root)?;
            if at_root {
                piece.copy_from_slice(all);
            }
        }
        if at_root {
            reduction.complete(values);
            self.count(0, size_of_val(values));
        } else {
            self.count(size_of_val(values), 0);
        }
        Ok(())
    }
}

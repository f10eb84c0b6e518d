//! Sums over ranks that are under way while products are computed.

use std::sync::Arc;

use candle_core::{DType, Shape};

use crate::backend::{Array, LinearProduct, WeightLayout};
use crate::group::{ProcessGroup, Underway};
use crate::tape::Tape;
use crate::{Result, TensorError};

/// The bytes of a sum from which on a product is computed in blocks of rows, each of which is summed while the next is computed.
const BLOCK_BYTES: usize = 1 << 18;

/// The blocks of a product at most.
const MOST_BLOCKS: usize = 4;

/// The rows that kernels compute together.
const TOGETHER: usize = 64;

/// Begins the sum of values over the ranks that compute parts of the same layers.
pub(super) fn begin_sum(
    op: &'static str,
    tape: &Tape,
    group: &Arc<dyn ProcessGroup>,
    values: &Array,
) -> Result<Option<Box<dyn Underway>>> {
    let own = tape.session().tensor_group.as_ref();
    match own.is_some_and(|own| own.overlaps && Arc::ptr_eq(&own.ranks, group)) {
        true => group.begin_all_reduce(values).map(Some).map_err(TensorError::hook(op)),
        false => group.all_reduce(values).map(|()| None).map_err(TensorError::hook(op)),
    }
}

/// Waits for a sum.
pub(super) fn finish(op: &'static str, sum: Option<Box<dyn Underway>>) -> Result<()> {
    sum.map_or(Ok(()), |sum| sum.wait().map_err(TensorError::hook(op)))
}

/// The factors of a product whose parts ranks have.
pub(super) struct PartialProduct<'a> {
    pub(super) x: &'a Array,
    pub(super) weight: &'a Array,
    pub(super) layout: WeightLayout,
    /// `[rows, inputs, outputs]`.
    pub(super) sizes: [usize; 3],
    pub(super) shape: &'a Shape,
    pub(super) dtype: DType,
}

impl PartialProduct<'_> {
    /// Computes the sum over the ranks. Blocks of rows depend on sizes alone, so overlapped or not the bits are the same.
    pub(super) fn sum(&self, op: &'static str, tape: &Tape, group: &Arc<dyn ProcessGroup>) -> Result<Array> {
        let [rows, inputs, outputs] = self.sizes;
        let blocks = (rows * outputs * self.dtype.size_in_bytes() / BLOCK_BYTES).clamp(1, MOST_BLOCKS);
        let block = rows.div_ceil(blocks).next_multiple_of(TOGETHER);
        if blocks == 1 || block >= rows {
            let sum = self.rows(tape, self.x, rows, self.shape)?;
            finish(op, begin_sum(op, tape, group, &sum)?)?;
            return Ok(sum);
        }
        let backend = self.x.backend(tape.context());
        let whole = backend.unwritten(self.shape, self.dtype)?;
        let put = |first: usize, (part, sum): (Array, Option<Box<dyn Underway>>)| {
            finish(op, sum)?;
            backend.copy(&whole.reshape(rows * outputs)?.view(first * outputs, part.elem_count())?, &part)
        };
        let mut last = None;
        for first in (0..rows).step_by(block) {
            let count = block.min(rows - first);
            let x = self.x.reshape(rows * inputs)?.view(first * inputs, (count, inputs))?;
            let part = self.rows(tape, &x, count, &Shape::from((count, outputs)))?;
            let sum = begin_sum(op, tape, group, &part)?;
            if let Some((first, before)) = last.replace((first, (part, sum))) {
                put(first, before)?;
            }
        }
        last.map_or(Ok(()), |(first, part)| put(first, part))?;
        Ok(whole)
    }

    /// Computes some rows of this rank's part.
    fn rows(&self, tape: &Tape, x: &Array, rows: usize, shape: &Shape) -> Result<Array> {
        let [_, inputs, outputs] = self.sizes;
        tape.count_forward(rows * inputs * outputs);
        x.backend(tape.context()).linear(LinearProduct {
            sizes: [rows, inputs, outputs],
            x,
            weight: self.layout.factor(self.weight),
            bias: None,
            shape,
            precision: tape.session().precision,
            dtype: self.dtype,
        })
    }
}

//! Movements and sums of elements.

use std::ops::Range;

use super::{Lowering, TracedOp};
use crate::dims::{Dim, reshape_target};
use crate::error::{OnnxError, Result};
use crate::node::Attribute;

impl Lowering {
    pub(super) fn reshape(&mut self, op: TracedOp<'_>) -> Result<String> {
        let (x, shape) = (self.input(op, 0)?, self.integers(&reshape_target(op.name(), op.dims)?));
        Ok(self.emit("Reshape", [x, shape], Vec::new()))
    }

    pub(super) fn narrow(&mut self, op: TracedOp<'_>, dim: usize, range: Range<usize>) -> Result<String> {
        if matches!(self.input_dims(op, 0)?.get(dim), Some(Dim::Batch(_))) {
            let problem = format!("it selects {range:?} along dimension {dim}, the batch");
            return Err(OnnxError::DependsOnBatch { op: op.name(), problem });
        }
        let x = self.input(op, 0)?;
        let [start, end, axis] = [range.start, range.end, dim].map(|number| self.integers(&[number as i64]));
        Ok(self.emit("Slice", [x, start, end, axis], Vec::new()))
    }

    pub(super) fn pad(
        &mut self,
        op: TracedOp<'_>,
        dim: usize,
        [before, after]: [usize; 2],
    ) -> Result<String> {
        let x = self.input(op, 0)?;
        let rank = op.dims.len();
        let mut pads = vec![0; 2 * rank];
        (pads[dim], pads[rank + dim]) = (before as i64, after as i64);
        let pads = self.integers(&pads);
        Ok(self.emit("Pad", [x, pads], vec![("mode", Attribute::Text("constant"))]))
    }

    pub(super) fn sum_over(&mut self, op: TracedOp<'_>, dim: usize) -> Result<String> {
        let (x, axis) = (self.input(op, 0)?, self.integers(&[dim as i64]));
        Ok(self.emit("ReduceSum", [x, axis], vec![("keepdims", Attribute::Int(0))]))
    }
}

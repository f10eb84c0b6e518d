//! Embedding lookups with the GPU kernels. An id out of range makes NaN, because checking would wait for the device.

use candle_core::{DType, Shape};
use phalanx_cuda::kernels;

use super::{Cuda, element_type};
use crate::Result;
use crate::backend::{Array, Destination, Lookups};

const OP: &str = "embedding";

impl Lookups for Cuda {
    fn progression(&self, start: u32, step: u32, len: usize) -> Result<Array> {
        Ok(self.array(kernels::progression(self.gpu(), start, step, len)?, len))
    }

    fn embedding(&self, table: &Array, ids: &Array, shape: &Shape, dtype: DType) -> Result<Array> {
        let (table, ids) = (self.open(OP, table)?, self.slice(OP, ids)?);
        let dtype = element_type(OP, dtype)?;
        let rows = kernels::embedding(self.gpu(), table.slice()?, ids, table.width(), dtype)?;
        Ok(self.array(rows, shape.clone()))
    }

    fn embedding_backward(&self, dy: &Array, ids: &Array, to: &Destination) -> Result<()> {
        let (dy, ids) = (self.open(OP, dy)?, self.slice(OP, ids)?);
        // A parameter's gradient is a flat part of its bucket.
        let (rows, width) = (to.array.elem_count().checked_div(dy.width()).unwrap_or(0), dy.width());
        let table = kernels::embedding_backward(self.gpu(), dy.slice()?, ids, rows, width)?;
        self.write(OP, &table, to)
    }
}

//! Embedding lookups with the GPU kernels. An id out of range makes NaN, because checking would wait for the device.

use candle_core::{DType, Shape};
use phalanx_cuda::kernels;

use super::{Cuda, element_type};
use crate::Result;
use crate::backend::{Array, Lookups};

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

    fn embedding_backward(&self, dy: &Array, ids: &Array, rows: usize, dtype: DType) -> Result<Array> {
        let (dy, ids) = (self.open(OP, dy)?, self.slice(OP, ids)?);
        let width = dy.width();
        let table = kernels::embedding_backward(self.gpu(), dy.slice()?, ids, rows, width)?;
        Ok(self.array(kernels::convert(self.gpu(), &table, element_type(OP, dtype)?)?, (rows, width)))
    }
}

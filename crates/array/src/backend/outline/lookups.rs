//! Embedding lookups without numbers.

use candle_core::{DType, Device, Shape, Tensor};

use super::{Outlines, expect_len};
use crate::backend::{Array, Destination, Lookups, Transfers as _};
use crate::{ArrayError, Result};

const OP: &str = "embedding";

impl Lookups for Outlines {
    fn progression(&self, start: u32, step: u32, len: usize) -> Result<Array> {
        let numbers: Vec<u32> = (0..len).map(|i| start + step * i as u32).collect();
        self.from_host(&Tensor::from_vec(numbers, len, &Device::Cpu)?)
    }

    fn embedding(&self, table: &Array, ids: &Array, shape: &Shape, dtype: DType) -> Result<Array> {
        let &[_, width] = table.dims() else {
            return Err(ArrayError::shape(OP, format!("the table must be [V, C], not {:?}", table.shape())));
        };
        let array = self.array(shape.clone(), dtype);
        expect_len(OP, &array, ids.elem_count() * width)?;
        Ok(array)
    }

    fn embedding_backward(&self, _: &Array, _: &Array, _: &Destination) -> Result<()> {
        Ok(())
    }
}

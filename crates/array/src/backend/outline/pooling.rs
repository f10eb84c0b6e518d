//! Pooling without numbers.

use candle_core::DType;

use super::Outlines;
use crate::Result;
use crate::backend::pooling::{input_dims, output_dims};
use crate::backend::{Array, Pool2dShape, Pooling};
use crate::storage::wide;

impl Pooling for Outlines {
    fn max_pool2d(&self, shape: &Pool2dShape, x: &Array) -> Result<(Array, Array)> {
        let dims = output_dims(shape);
        Ok((self.array(dims.clone(), x.dtype()), self.array(dims, DType::U32)))
    }

    fn max_pool2d_backward(&self, shape: &Pool2dShape, dy: &Array, _: &Array) -> Result<Array> {
        Ok(self.array(input_dims(shape), wide(dy.dtype())))
    }

    fn avg_pool2d(&self, shape: &Pool2dShape, _: bool, x: &Array) -> Result<Array> {
        Ok(self.array(output_dims(shape), x.dtype()))
    }

    fn avg_pool2d_backward(&self, shape: &Pool2dShape, _: bool, dy: &Array) -> Result<Array> {
        Ok(self.array(input_dims(shape), wide(dy.dtype())))
    }

    fn upsample_nearest2d(&self, dims: [usize; 4], factor: usize, x: &Array) -> Result<Array> {
        let [batch, channels, height, width] = dims;
        Ok(self.array((batch, channels, height * factor, width * factor), x.dtype()))
    }

    fn upsample_nearest2d_backward(&self, dims: [usize; 4], _: usize, dy: &Array) -> Result<Array> {
        Ok(self.array(dims.to_vec(), wide(dy.dtype())))
    }
}

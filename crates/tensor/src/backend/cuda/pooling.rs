//! Pooling, by the kernels.

use phalanx_cuda::kernels::{self, channels_last};

use super::Cuda;
use crate::Result;
use crate::backend::{Array, Pool2dShape, Pooling};

fn output_dims(shape: &Pool2dShape) -> Vec<usize> {
    vec![shape.batch, shape.channels, shape.out_height(), shape.out_width()]
}

fn input_dims(shape: &Pool2dShape) -> Vec<usize> {
    vec![shape.batch, shape.channels, shape.height, shape.width]
}

impl Pooling for Cuda {
    fn max_pool2d(&self, shape: &Pool2dShape, x: &Array) -> Result<(Array, Array)> {
        const OP: &str = "max_pool2d";
        if self.is_last(OP, x)? {
            let (y, positions) = channels_last::max_pool2d(self.gpu(), shape, &self.last(OP, x)?)?;
            let array = |slice| self.array_last(slice, output_dims(shape));
            return Ok((array(y), array(positions)));
        }
        let (y, positions) = kernels::max_pool2d(self.gpu(), shape, self.slice(OP, x)?)?;
        Ok((self.array(y, output_dims(shape)), self.array(positions, output_dims(shape))))
    }

    fn max_pool2d_backward(&self, shape: &Pool2dShape, dy: &Array, positions: &Array) -> Result<Array> {
        const OP: &str = "max_pool2d";
        if self.is_last(OP, positions)? {
            let (dy, positions) = (self.last(OP, dy)?, self.last(OP, positions)?);
            let dx = channels_last::max_pool2d_backward(self.gpu(), shape, &dy, &positions)?;
            return Ok(self.array_last(dx, input_dims(shape)));
        }
        let (dy, positions) = (self.slice(OP, dy)?, self.slice(OP, positions)?);
        Ok(self.array(kernels::max_pool2d_backward(self.gpu(), shape, dy, positions)?, input_dims(shape)))
    }

    fn avg_pool2d(&self, shape: &Pool2dShape, count_padding: bool, x: &Array) -> Result<Array> {
        if self.is_last("avg_pool2d", x)? {
            let x = self.last("avg_pool2d", x)?;
            let y = channels_last::avg_pool2d(self.gpu(), shape, count_padding, &x)?;
            return Ok(self.array_last(y, output_dims(shape)));
        }
        let y = kernels::avg_pool2d(self.gpu(), shape, count_padding, self.slice("avg_pool2d", x)?)?;
        Ok(self.array(y, output_dims(shape)))
    }

    fn avg_pool2d_backward(&self, shape: &Pool2dShape, count_padding: bool, dy: &Array) -> Result<Array> {
        const OP: &str = "avg_pool2d";
        if self.is_last(OP, dy)? {
            let dy = self.last(OP, dy)?;
            let dx = channels_last::avg_pool2d_backward(self.gpu(), shape, count_padding, &dy)?;
            return Ok(self.array_last(dx, input_dims(shape)));
        }
        let dy = self.slice(OP, dy)?;
        Ok(self.array(kernels::avg_pool2d_backward(self.gpu(), shape, count_padding, dy)?, input_dims(shape)))
    }

    fn upsample_nearest2d(&self, dims: [usize; 4], factor: usize, x: &Array) -> Result<Array> {
        const OP: &str = "upsample_nearest2d";
        if self.is_last(OP, x)? {
            let y = channels_last::upsample_nearest2d(self.gpu(), dims, factor, &self.last(OP, x)?)?;
            let [batch, channels, height, width] = dims;
            return Ok(self.array_last(y, (batch, channels, height * factor, width * factor)));
        }
        let y = kernels::upsample_nearest2d(self.gpu(), dims, factor, self.slice("upsample_nearest2d", x)?)?;
        let [batch, channels, height, width] = dims;
        Ok(self.array(y, (batch, channels, height * factor, width * factor)))
    }

    fn upsample_nearest2d_backward(&self, dims: [usize; 4], factor: usize, dy: &Array) -> Result<Array> {
        const OP: &str = "upsample_nearest2d";
        if self.is_last(OP, dy)? {
            let dy = self.last(OP, dy)?;
            let dx = channels_last::upsample_nearest2d_backward(self.gpu(), dims, factor, &dy)?;
            return Ok(self.array_last(dx, dims.to_vec()));
        }
        let dy = self.slice(OP, dy)?;
        let dx = kernels::upsample_nearest2d_backward(self.gpu(), dims, factor, dy)?;
        Ok(self.array(dx, dims.to_vec()))
    }
}

//! Pooling with the GPU kernels.

use phalanx_cuda::kernels;

use super::Cuda;
use crate::Result;
use crate::backend::pooling::{input_dims, output_dims};
use crate::backend::{Array, Pool2dShape, Pooling};

impl Pooling for Cuda {
    fn max_pool2d(&self, shape: &Pool2dShape, x: &Array) -> Result<(Array, Array)> {
        let (layout, x) = self.laid("max_pool2d", x)?;
        let (y, positions) = kernels::max_pool2d(self.gpu(), layout, shape, &x)?;
        let array = |slice| self.array_laid(layout, slice, output_dims(shape));
        Ok((array(y), array(positions)))
    }

    fn max_pool2d_backward(&self, shape: &Pool2dShape, dy: &Array, positions: &Array) -> Result<Array> {
        const OP: &str = "max_pool2d";
        let (layout, positions) = self.laid(OP, positions)?;
        let dy = self.laid_as(OP, layout, dy)?;
        let dx = kernels::max_pool2d_backward(self.gpu(), layout, shape, &dy, &positions)?;
        Ok(self.array_laid(layout, dx, input_dims(shape)))
    }

    fn avg_pool2d(&self, shape: &Pool2dShape, count_padding: bool, x: &Array) -> Result<Array> {
        let (layout, x) = self.laid("avg_pool2d", x)?;
        let y = kernels::avg_pool2d(self.gpu(), layout, shape, count_padding, &x)?;
        Ok(self.array_laid(layout, y, output_dims(shape)))
    }

    fn avg_pool2d_backward(&self, shape: &Pool2dShape, count_padding: bool, dy: &Array) -> Result<Array> {
        let (layout, dy) = self.laid("avg_pool2d", dy)?;
        let dx = kernels::avg_pool2d_backward(self.gpu(), layout, shape, count_padding, &dy)?;
        Ok(self.array_laid(layout, dx, input_dims(shape)))
    }

    fn upsample_nearest2d(&self, dims: [usize; 4], factor: usize, x: &Array) -> Result<Array> {
        let (layout, x) = self.laid("upsample_nearest2d", x)?;
        let y = kernels::upsample_nearest2d(self.gpu(), layout, dims, factor, &x)?;
        let [batch, channels, height, width] = dims;
        Ok(self.array_laid(layout, y, (batch, channels, height * factor, width * factor)))
    }

    fn upsample_nearest2d_backward(&self, dims: [usize; 4], factor: usize, dy: &Array) -> Result<Array> {
        let (layout, dy) = self.laid("upsample_nearest2d", dy)?;
        let dx = kernels::upsample_nearest2d_backward(self.gpu(), layout, dims, factor, &dy)?;
        Ok(self.array_laid(layout, dx, dims.to_vec()))
    }
}

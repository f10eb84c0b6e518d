//! Pooling with the CPU kernels.

use candle_core::{Device, Tensor};
use phalanx_kernels::{
    avg_pool2d_backward, avg_pool2d_forward, max_pool2d_backward, max_pool2d_forward,
    upsample_nearest2d_backward, upsample_nearest2d_forward,
};

use crate::backend::pooling::{input_dims, output_dims};
use crate::backend::{Array, Pool2dShape, Pooling};
use crate::storage::{Contiguous, Indices, dispatch, stored, tensor_from, unwritten};
use crate::{Context, Result};

impl Pooling for Context {
    fn max_pool2d(&self, shape: &Pool2dShape, x: &Array) -> Result<(Array, Array)> {
        const OP: &str = "max_pool2d";
        let x = x.host(OP)?;
        let read = Contiguous::by(OP, self, x)?;
        let dims = output_dims(shape);
        let mut positions = vec![0_u32; dims.iter().product()];
        let output = dispatch!(OP, x.dtype(), T => {
            let mut y = unwritten::<T>(positions.len());
            max_pool2d_forward(self, shape, read.slice::<T>()?, &mut y, &mut positions)?;
            stored(self, y, dims.clone(), x.dtype())
        })?;
        Ok((output.into(), Tensor::from_vec(positions, dims, &Device::Cpu)?.into()))
    }

    fn max_pool2d_backward(&self, shape: &Pool2dShape, dy: &Array, positions: &Array) -> Result<Array> {
        const OP: &str = "max_pool2d";
        let dy = dy.host(OP)?;
        let positions = Indices::of(OP, positions.host(OP)?)?;
        let read = Contiguous::by(OP, self, dy)?;
        let dims = input_dims(shape);
        dispatch!(OP, dy.dtype(), T => {
            let mut dx = unwritten::<T>(dims.iter().product());
            max_pool2d_backward(self, shape, read.slice::<T>()?, positions.slice()?, &mut dx)?;
            Ok(tensor_from(dx, dims)?.into())
        })
    }

    fn avg_pool2d(&self, shape: &Pool2dShape, count_padding: bool, x: &Array) -> Result<Array> {
        const OP: &str = "avg_pool2d";
        let x = x.host(OP)?;
        let read = Contiguous::by(OP, self, x)?;
        let dims = output_dims(shape);
        dispatch!(OP, x.dtype(), T => {
            let mut y = unwritten::<T>(dims.iter().product());
            avg_pool2d_forward(self, shape, count_padding, read.slice::<T>()?, &mut y)?;
            Ok(stored(self, y, dims, x.dtype())?.into())
        })
    }

    fn avg_pool2d_backward(&self, shape: &Pool2dShape, count_padding: bool, dy: &Array) -> Result<Array> {
        const OP: &str = "avg_pool2d";
        let dy = dy.host(OP)?;
        let read = Contiguous::by(OP, self, dy)?;
        let dims = input_dims(shape);
        dispatch!(OP, dy.dtype(), T => {
            let mut dx = unwritten::<T>(dims.iter().product());
            avg_pool2d_backward(self, shape, count_padding, read.slice::<T>()?, &mut dx)?;
            Ok(tensor_from(dx, dims)?.into())
        })
    }

    fn upsample_nearest2d(&self, dims: [usize; 4], factor: usize, x: &Array) -> Result<Array> {
        const OP: &str = "upsample_nearest2d";
        let x = x.host(OP)?;
        let read = Contiguous::by(OP, self, x)?;
        let [batch, channels, height, width] = dims;
        let (planes, from, to) = (batch * channels, [height, width], [height * factor, width * factor]);
        dispatch!(OP, x.dtype(), T => {
            let mut y = unwritten::<T>(planes * to[0] * to[1]);
            upsample_nearest2d_forward(self, planes, from, to, read.slice::<T>()?, &mut y)?;
            Ok(stored(self, y, (batch, channels, to[0], to[1]), x.dtype())?.into())
        })
    }

    fn upsample_nearest2d_backward(&self, dims: [usize; 4], factor: usize, dy: &Array) -> Result<Array> {
        const OP: &str = "upsample_nearest2d";
        let dy = dy.host(OP)?;
        let read = Contiguous::by(OP, self, dy)?;
        let [batch, channels, height, width] = dims;
        let (planes, from, to) = (batch * channels, [height, width], [height * factor, width * factor]);
        dispatch!(OP, dy.dtype(), T => {
            let mut dx = unwritten::<T>(dims.iter().product());
            upsample_nearest2d_backward(self, planes, from, to, read.slice::<T>()?, &mut dx)?;
            Ok(tensor_from(dx, dims.to_vec())?.into())
        })
    }
}

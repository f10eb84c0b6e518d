//! Rotary position embeddings with the GPU kernels.

use candle_core::{Device, Tensor};
use phalanx_cuda::kernels;

use super::Cuda;
use crate::backend::{Array, RotaryAngles, RotaryEmbeddings, Transfers as _};
use crate::{ArrayError, Result};

const OP: &str = "rotary";

impl RotaryEmbeddings for Cuda {
    fn rotary_angles(&self, positions: &Array, frequencies: &[f64], scale: f64) -> Result<RotaryAngles> {
        let mut dims = positions.dims().to_vec();
        dims.push(frequencies.len());
        let frequencies = self.from_host(&Tensor::new(frequencies, &Device::Cpu)?)?;
        let (positions, frequencies) = (self.slice(OP, positions)?, self.slice(OP, &frequencies)?);
        let [cos, sin] = kernels::rotary_angles(self.gpu(), positions, frequencies, scale)?;
        Ok(RotaryAngles { cos: self.array(cos, dims.clone()), sin: self.array(sin, dims) })
    }

    fn rotary(&self, x: &Array, angles: &RotaryAngles, inverse: bool) -> Result<Array> {
        let [positions @ .., heads, dim] = x.dims() else {
            return Err(ArrayError::shape(OP, format!("expected [.., heads, D], not {:?}", x.shape())));
        };
        let sizes = [positions.iter().product(), *heads, *dim];
        let angles = [self.slice(OP, &angles.cos)?, self.slice(OP, &angles.sin)?];
        let y = kernels::rotary(self.gpu(), sizes, self.slice(OP, x)?, angles, inverse)?;
        Ok(self.array(y, x.shape().clone()))
    }
}

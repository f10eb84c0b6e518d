//! Rotary position embeddings with the CPU kernels.

use candle_core::Tensor;
use phalanx_kernels::{Rotation, rotary};

use crate::backend::{Array, RotaryAngles, RotaryEmbeddings};
use crate::storage::{Contiguous, Indices, dispatch, stored, unwritten};
use crate::{Context, Result};

const OP: &str = "rotary";

impl RotaryEmbeddings for Context {
    fn rotary_angles(&self, positions: &Array, frequencies: &[f64], scale: f64) -> Result<RotaryAngles> {
        let positions = positions.host(OP)?;
        let mut dims = positions.dims().to_vec();
        dims.push(frequencies.len());
        let read = Indices::of(OP, positions)?;
        let angles = read.slice()?.iter().flat_map(|at| frequencies.iter().map(|f| f64::from(*at) * f));
        let (sin, cos): (Vec<f32>, Vec<f32>) = angles
            .map(|angle| {
                let (sin, cos) = angle.sin_cos();
                ((sin * scale) as f32, (cos * scale) as f32)
            })
            .unzip();
        let array = |values| {
            Ok::<Array, crate::TensorError>(Tensor::from_vec(values, &dims[..], positions.device())?.into())
        };
        Ok(RotaryAngles { cos: array(cos)?, sin: array(sin)? })
    }

    fn rotary(&self, x: &Array, angles: &RotaryAngles, inverse: bool) -> Result<Array> {
        let of = x.host(OP)?;
        let (x, cos) = (Contiguous::by(OP, self, of)?, Contiguous::locked(OP, angles.cos.host(OP)?)?);
        let sin = Contiguous::locked(OP, angles.sin.host(OP)?)?;
        let sizes = sizes(of.dims());
        dispatch!(OP, of.dtype(), T => {
            let mut y = unwritten::<T>(of.elem_count());
            let rotation = Rotation { cos: cos.slice()?, sin: sin.slice()?, inverse };
            rotary(self, sizes, rotation, x.slice::<T>()?, &mut y)?;
            Ok(stored(self, y, of.shape().clone(), of.dtype())?.into())
        })
    }
}

/// Returns the numbers of positions, of heads and of elements of a head.
fn sizes(dims: &[usize]) -> [usize; 3] {
    match dims {
        [positions @ .., heads, dim] => [positions.iter().product(), *heads, *dim],
        _ => [0; 3],
    }
}

//! Rotary position embeddings with the CPU kernels.

use std::ops::Range;

use candle_core::Tensor;
use phalanx_kernels::{Rotation, rotary};

use crate::backend::{Array, RotaryAngles, RotaryEmbeddings};
use crate::storage::{Contiguous, Indices, Output, RowKernel, Scalar, by_rows};
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
            Ok::<Array, crate::ArrayError>(Tensor::from_vec(values, &dims[..], positions.device())?.into())
        };
        Ok(RotaryAngles { cos: array(cos)?, sin: array(sin)? })
    }

    fn rotary(&self, x: &Array, angles: &RotaryAngles, inverse: bool) -> Result<Array> {
        let of = x.host(OP)?;
        let cos = Contiguous::locked(OP, angles.cos.host(OP)?)?;
        let sin = Contiguous::locked(OP, angles.sin.host(OP)?)?;
        let sizes = sizes(of.dims());
        let rotation = Rotation { cos: cos.slice()?, sin: sin.slice()?, inverse };
        let output = Output { shape: of.shape().clone(), dtype: of.dtype() };
        let [y] = by_rows(OP, self, sizes[0], [of], [output], &Rotate { sizes, rotation })?;
        Ok(y.into())
    }
}

/// The rotation of rows, each a position.
struct Rotate<'a> {
    /// Positions, heads and elements of a head.
    sizes: [usize; 3],
    rotation: Rotation<'a>,
}

impl RowKernel<1, 1> for Rotate<'_> {
    fn run<T: Scalar>(
        &self,
        context: &Context,
        rows: Range<usize>,
        [x]: [&[T]; 1],
        [y]: [&mut [T]; 1],
    ) -> Result<()> {
        let [positions, heads, dim] = self.sizes;
        let Rotation { cos, sin, inverse } = self.rotation;
        if rows.len() == positions {
            return Ok(rotary(context, self.sizes, self.rotation, x, y)?);
        }
        let of_rows = rows.start * (dim / 2)..rows.end * (dim / 2);
        let rotation = Rotation { cos: &cos[of_rows.clone()], sin: &sin[of_rows], inverse };
        Ok(rotary(context, [rows.len(), heads, dim], rotation, x, y)?)
    }
}

/// Returns the numbers of positions, of heads and of elements of a head.
fn sizes(dims: &[usize]) -> [usize; 3] {
    match dims {
        [positions @ .., heads, dim] => [positions.iter().product(), *heads, *dim],
        _ => [0; 3],
    }
}

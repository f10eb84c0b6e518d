//! Normalisation of samples with the CPU kernels.

use std::ops::Range;

use candle_core::{DType, Shape, Tensor};
use phalanx_kernels::{
    self as kernels, Float as _, GroupNormShape, NormInput, group_norm_backward, group_norm_forward,
    layer_norm_backward, layer_norm_forward, rms_norm_backward, rms_norm_forward,
};

use crate::backend::{
    Array, GroupShape, NormBackward, NormGrads, NormOutput, NormPass, Norms, RmsNormBackward,
};
use crate::storage::{
    Contiguous, Output, RowKernel, Scalar, by_rows, dispatch, stored, tensor_from, unwritten,
};
use crate::{Context, Result};

/// The inputs of a backward, locked for reading.
struct Reads<'a> {
    x: Contiguous<'a>,
    dy: Contiguous<'a>,
    gamma: Contiguous<'a>,
    mean: Contiguous<'a>,
    inv_std: Contiguous<'a>,
}

impl<'a> Reads<'a> {
    fn of(op: &'static str, context: &Context, from: NormBackward<'a>) -> Result<Self> {
        let read = |array: &'a Array| Contiguous::by(op, context, array.host(op)?);
        Ok(Self {
            x: read(from.x)?,
            dy: read(from.dy)?,
            gamma: read(from.gamma)?,
            mean: read(from.mean)?,
            inv_std: read(from.inv_std)?,
        })
    }

    /// The inputs as slices.
    fn slices<T: Scalar>(&self) -> Result<kernels::NormBackward<'_, T>> {
        Ok(kernels::NormBackward {
            x: self.x.slice()?,
            dy: self.dy.slice()?,
            gamma: self.gamma.slice()?,
            mean: self.mean.slice()?,
            inv_std: self.inv_std.slice()?,
        })
    }
}

/// The sizes of a group norm, as the kernels take them.
fn sizes(GroupShape { dims: [batch, channels, plane], groups }: GroupShape) -> GroupNormShape {
    GroupNormShape { batch, channels, plane, groups }
}

/// The normalised input, of its type, and two numbers of each row.
fn normed(input: &Tensor, rows: usize) -> [Output; 3] {
    let of_rows = Output { shape: Shape::from(rows), dtype: DType::F32 };
    [Output { shape: input.shape().clone(), dtype: input.dtype() }, of_rows.clone(), of_rows]
}

struct LayerNorm<'a> {
    gamma: &'a Contiguous<'a>,
    beta: &'a Contiguous<'a>,
    eps: f64,
}

struct RmsNorm<'a> {
    gamma: &'a Contiguous<'a>,
    eps: f64,
}

impl RowKernel<1, 3> for LayerNorm<'_> {
    fn run<T: Scalar>(
        &self,
        context: &Context,
        rows: Range<usize>,
        [x]: [&[T]; 1],
        [y, mean, inv_std]: [&mut [T]; 3],
    ) -> Result<()> {
        let (gamma, beta) = (self.gamma.slice()?, self.beta.slice()?);
        let input = NormInput { x, gamma, beta, eps: self.eps };
        let normed = kernels::NormOutput { y, mean, inv_std };
        Ok(layer_norm_forward(context, [rows.len(), gamma.len()], input, normed)?)
    }
}

impl RowKernel<1, 2> for RmsNorm<'_> {
    fn run<T: Scalar>(
        &self,
        context: &Context,
        rows: Range<usize>,
        [x]: [&[T]; 1],
        outputs: [&mut [T]; 2],
    ) -> Result<()> {
        let gamma = self.gamma.slice()?;
        Ok(rms_norm_forward(context, [rows.len(), gamma.len()], [x, gamma], self.eps, outputs)?)
    }
}

impl Norms for Context {
    fn layer_norm(&self, of: NormPass<'_>) -> Result<NormOutput> {
        let NormPass { x, gamma, beta, eps } = of;
        const OP: &str = "layer_norm";
        let input = x.host(OP)?;
        let width = input.dims().last().copied().unwrap_or(0);
        let rows = input.elem_count() / width.max(1);
        let gamma = Contiguous::by(OP, self, gamma.host(OP)?)?;
        let beta = Contiguous::by(OP, self, beta.host(OP)?)?;
        let kernel = LayerNorm { gamma: &gamma, beta: &beta, eps };
        let [output, mean, inv_std] = by_rows(OP, self, rows, [input], normed(input, rows), &kernel)?;
        Ok(NormOutput { output: output.into(), mean: mean.into(), inv_std: inv_std.into() })
    }

    fn layer_norm_backward(&self, from: NormBackward<'_>) -> Result<NormGrads> {
        const OP: &str = "layer_norm";
        let input = from.x.host(OP)?;
        let width = input.dims().last().copied().unwrap_or(0);
        let rows = input.elem_count() / width.max(1);
        let reads = Reads::of(OP, self, from)?;
        dispatch!(OP, input.dtype(), T => {
            let kept = reads.slices::<T>()?;
            let mut dx = unwritten::<T>(kept.x.len());
            let (mut dgamma, mut dbeta) = (vec![T::default(); width], vec![T::default(); width]);
            let grads = kernels::NormGrads { dx: &mut dx, dgamma: &mut dgamma, dbeta: &mut dbeta };
            layer_norm_backward(self, [rows, width], kept, grads)?;
            Ok(NormGrads {
                dx: tensor_from(dx, input.shape().clone())?.into(),
                dgamma: tensor_from(dgamma, width)?.into(),
                dbeta: tensor_from(dbeta, width)?.into(),
            })
        })
    }

    fn group_norm(&self, shape: GroupShape, of: NormPass<'_>) -> Result<NormOutput> {
        let NormPass { x, gamma, beta, eps } = of;
        const OP: &str = "group_norm";
        let input = x.host(OP)?;
        let count = shape.dims[0] * shape.groups;
        let x = Contiguous::by(OP, self, input)?;
        let (g, b) = (Contiguous::by(OP, self, gamma.host(OP)?)?, Contiguous::by(OP, self, beta.host(OP)?)?);
        dispatch!(OP, input.dtype(), T => {
            let x = x.slice::<T>()?;
            let mut y = unwritten::<T>(x.len());
            let (mut mean, mut inv_std) = (vec![T::default(); count], vec![T::default(); count]);
            let (g, b) = (g.slice::<T>()?, b.slice::<T>()?);
            let normed = kernels::NormOutput { y: &mut y, mean: &mut mean, inv_std: &mut inv_std };
            group_norm_forward(self, sizes(shape), NormInput { x, gamma: g, beta: b, eps }, normed)?;
            Ok(NormOutput {
                output: stored(self, y, input.shape().clone(), input.dtype())?.into(),
                mean: tensor_from(mean, count)?.into(),
                inv_std: tensor_from(inv_std, count)?.into(),
            })
        })
    }

    fn group_norm_backward(&self, shape: GroupShape, from: NormBackward<'_>) -> Result<NormGrads> {
        const OP: &str = "group_norm";
        let input = from.x.host(OP)?;
        let channels = shape.dims[1];
        let reads = Reads::of(OP, self, from)?;
        dispatch!(OP, input.dtype(), T => {
            let kept = reads.slices::<T>()?;
            let mut dx = unwritten::<T>(kept.x.len());
            let (mut dgamma, mut dbeta) = (vec![T::default(); channels], vec![T::default(); channels]);
            let grads = kernels::NormGrads { dx: &mut dx, dgamma: &mut dgamma, dbeta: &mut dbeta };
            group_norm_backward(self, sizes(shape), kept, grads)?;
            Ok(NormGrads {
                dx: tensor_from(dx, input.shape().clone())?.into(),
                dgamma: tensor_from(dgamma, channels)?.into(),
                dbeta: tensor_from(dbeta, channels)?.into(),
            })
        })
    }

    fn rms_norm(&self, x: &Array, gamma: &Array, eps: f64) -> Result<[Array; 2]> {
        const OP: &str = "rms_norm";
        let input = x.host(OP)?;
        let width = input.dims().last().copied().unwrap_or(0);
        let rows = input.elem_count() / width.max(1);
        let gamma = Contiguous::by(OP, self, gamma.host(OP)?)?;
        let [output, inv_rms, _] = normed(input, rows);
        let made = by_rows(OP, self, rows, [input], [output, inv_rms], &RmsNorm { gamma: &gamma, eps })?;
        Ok(made.map(Array::from))
    }

    fn rms_norm_backward(&self, from: RmsNormBackward<'_>) -> Result<[Array; 2]> {
        const OP: &str = "rms_norm";
        let input = from.x.host(OP)?;
        let width = input.dims().last().copied().unwrap_or(0);
        let rows = input.elem_count() / width.max(1);
        let (x, dy) = (Contiguous::by(OP, self, input)?, Contiguous::by(OP, self, from.dy.host(OP)?)?);
        let gamma = Contiguous::by(OP, self, from.gamma.host(OP)?)?;
        let inv_rms = Contiguous::by(OP, self, from.inv_rms.host(OP)?)?;
        dispatch!(OP, input.dtype(), T => {
            let (mut dx, mut dgamma) = (unwritten::<T>(input.elem_count()), unwritten::<T>(width));
            let from = kernels::RmsNormBackward {
                x: x.slice::<T>()?,
                dy: dy.slice()?,
                gamma: gamma.slice()?,
                inv_rms: inv_rms.slice()?,
            };
            rms_norm_backward(self, [rows, width], from, [&mut dx, &mut dgamma])?;
            Ok([tensor_from(dx, input.shape().clone())?.into(), tensor_from(dgamma, width)?.into()])
        })
    }

    fn l2_normalise(&self, x: &Array) -> Result<(Array, Array)> {
        const OP: &str = "l2_normalise";
        let input = x.host(OP)?;
        let width = input.dims().last().copied().unwrap_or(1).max(1);
        let x = Contiguous::by(OP, self, input)?;
        dispatch!(OP, input.dtype(), T => {
            let x = x.slice::<T>()?;
            let mut y = Vec::with_capacity(x.len());
            let mut inverses = Vec::with_capacity(x.len() / width);
            for row in x.chunks_exact(width) {
                let length = row.iter().map(|v| v.to_f64() * v.to_f64()).sum::<f64>().sqrt();
                let factor = if length > 0.0 { 1.0 / length } else { 0.0 };
                y.extend(row.iter().map(|v| T::from_f64(v.to_f64() * factor)));
                inverses.push(factor);
            }
            let rows = inverses.len();
            let y = stored(self, y, input.shape().clone(), input.dtype())?;
            Ok((y.into(), tensor_from(inverses, rows)?.into()))
        })
    }

    fn l2_normalise_backward(&self, y: &Array, dy: &Array, inverses: &Array) -> Result<Array> {
        const OP: &str = "l2_normalise";
        let output = y.host(OP)?;
        let width = output.dims().last().copied().unwrap_or(1).max(1);
        let (y, dy) = (Contiguous::by(OP, self, output)?, Contiguous::by(OP, self, dy.host(OP)?)?);
        let inverses = Contiguous::locked(OP, inverses.host(OP)?)?;
        dispatch!(OP, output.dtype(), T => {
            let (y, dy) = (y.slice::<T>()?, dy.slice::<T>()?);
            let mut dx = Vec::with_capacity(y.len());
            let rows = y.chunks_exact(width).zip(dy.chunks_exact(width));
            for ((y, dy), factor) in rows.zip(inverses.slice::<f64>()?) {
                // dx = (dy − y·⟨y, dy⟩)/‖x‖: the part along the row does not change its direction.
                let along: f64 = y.iter().zip(dy).map(|(y, dy)| y.to_f64() * dy.to_f64()).sum();
                dx.extend(y.iter().zip(dy).map(|(y, dy)| T::from_f64((dy.to_f64() - y.to_f64() * along) * factor)));
            }
            Ok(tensor_from(dx, output.shape().clone())?.into())
        })
    }
}

//! Normalisation of samples with the CPU kernels.

use std::ops::Range;

use candle_core::{DType, Device, Shape, Tensor};
use phalanx_kernels::{
    self as kernels, Float as _, GroupNormShape, NormInput, group_norm_backward, group_norm_forward,
    layer_norm_backward, layer_norm_forward, rms_norm_backward, rms_norm_forward,
};

use crate::backend::{
    Array, GroupShape, NormBackward, NormGrads, NormOutput, NormPass, Norms, RmsNormBackward, RmsNormGrads,
};
use crate::storage::{
    Contiguous, Output, RowKernel, Scalar, SummingRowKernel, by_rows, by_rows_with_sums, dispatch, stored,
    tensor_from, unwritten,
};
use crate::{ArrayError, Context, Result};

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
    [like(input), of_rows.clone(), of_rows]
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

struct LayerNormGrads<'a> {
    gamma: &'a Contiguous<'a>,
}

struct RmsNormGradient<'a> {
    gamma: &'a Contiguous<'a>,
}

impl SummingRowKernel<5, 1> for LayerNormGrads<'_> {
    fn run<T: Scalar>(
        &self,
        context: &Context,
        rows: Range<usize>,
        [x, dy, mean, inv_std, before]: [&[T]; 5],
        [dx]: [&mut [T]; 1],
        sums: &mut [T],
    ) -> Result<()> {
        let gamma = self.gamma.slice()?;
        let (dgamma, dbeta) = sums.split_at_mut(gamma.len());
        let from = kernels::NormBackward { x, dy, gamma, mean, inv_std };
        let to = kernels::NormGrads { dx, dgamma, dbeta };
        Ok(layer_norm_backward(context, [rows.len(), gamma.len()], from, given(before), to)?)
    }
}

impl SummingRowKernel<4, 1> for RmsNormGradient<'_> {
    fn run<T: Scalar>(
        &self,
        context: &Context,
        rows: Range<usize>,
        [x, dy, inv_rms, before]: [&[T]; 4],
        [dx]: [&mut [T]; 1],
        dgamma: &mut [T],
    ) -> Result<()> {
        let gamma = self.gamma.slice()?;
        let from = kernels::RmsNormBackward { x, dy, gamma, inv_rms };
        Ok(rms_norm_backward(context, [rows.len(), gamma.len()], from, given(before), [dx, dgamma])?)
    }
}

/// A tensor without elements, in place of a gradient that there is not.
fn nothing(like: &Tensor) -> Result<Tensor> {
    Ok(Tensor::zeros(0, like.dtype(), &Device::Cpu)?)
}

/// The gradient that the input has already, if there is one.
fn given<T>(before: &[T]) -> Option<&[T]> {
    (!before.is_empty()).then_some(before)
}

/// A result of the input's shape and type.
fn like(input: &Tensor) -> Output {
    Output { shape: input.shape().clone(), dtype: input.dtype() }
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

    fn layer_norm_backward(&self, from: NormBackward<'_>, before: Option<&Array>) -> Result<NormGrads> {
        const OP: &str = "layer_norm";
        let NormBackward { x, dy, gamma, mean, inv_std } = from;
        let (input, weight) = (x.host(OP)?, gamma.host(OP)?);
        let (width, gamma) = (weight.elem_count(), Contiguous::by(OP, self, weight)?);
        let none = nothing(input)?;
        let before = before.map_or(Ok(&none), |before| before.host(OP))?;
        let inputs = [input, dy.host(OP)?, mean.host(OP)?, inv_std.host(OP)?, before];
        let (rows, outputs) = (input.elem_count() / width.max(1), [like(input)]);
        let kernel = LayerNormGrads { gamma: &gamma };
        let made = by_rows_with_sums(OP, self, rows, inputs, outputs, 2 * width, &kernel)?;
        let ([dx], sums) = (made.outputs, made.sums);
        let part = |at| Ok::<_, ArrayError>(sums.narrow(0, at, width)?.copy()?);
        Ok(NormGrads { dx: dx.into(), dgamma: part(0)?.into(), dbeta: part(width)?.into() })
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

    fn rms_norm_backward(&self, from: RmsNormBackward<'_>, before: Option<&Array>) -> Result<RmsNormGrads> {
        const OP: &str = "rms_norm";
        let RmsNormBackward { x, dy, gamma, inv_rms } = from;
        let (input, weight) = (x.host(OP)?, gamma.host(OP)?);
        let (width, gamma) = (weight.elem_count(), Contiguous::by(OP, self, weight)?);
        let none = nothing(input)?;
        let before = before.map_or(Ok(&none), |before| before.host(OP))?;
        let inputs = [input, dy.host(OP)?, inv_rms.host(OP)?, before];
        let (rows, outputs) = (input.elem_count() / width.max(1), [like(input)]);
        let made =
            by_rows_with_sums(OP, self, rows, inputs, outputs, width, &RmsNormGradient { gamma: &gamma })?;
        let [dx] = made.outputs;
        Ok(RmsNormGrads { dx: dx.into(), dgamma: made.sums.into() })
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

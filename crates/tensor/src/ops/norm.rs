//! Normalisation: batch, layer and group norm, and unit length.

use candle_core::{DType, Tensor, WithDType as _};
use phalanx_kernels::{
    Activation, batch_norm_backward_input, batch_norm_backward_sums, batch_norm_forward, batch_norm_moments,
    group_norm_backward, group_norm_forward, layer_norm_backward, layer_norm_forward,
};

use crate::storage::{Contiguous, dispatch, tensor_from};
use crate::store::Buffer;
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};
use crate::unwritten::unwritten;

pub use phalanx_kernels::Activation as FusedActivation;

/// The running statistics of a batch norm, and how it keeps them.
#[derive(Debug, Clone)]
pub struct BatchNormStats<'a> {
    /// Running mean, `[C]`.
    pub running_mean: &'a Buffer,
    /// Running unbiased variance, `[C]`.
    pub running_var: &'a Buffer,
    /// How many batches were seen; a 64-bit counter.
    pub num_batches: &'a Buffer,
    /// Weight of the newest batch in the running statistics.
    pub momentum: f64,
    /// Added to the variance.
    pub eps: f64,
    /// Whether statistics span the batches of all ranks, if the session can reduce them.
    pub sync: bool,
}

/// Checks that `gamma` and `beta` are [channels].
fn check_affine(op: &'static str, channels: usize, gamma: &Value, beta: &Value) -> Result<()> {
    if gamma.dims() == [channels] && beta.dims() == [channels] {
        return Ok(());
    }
    let problem =
        format!("expected weight and bias [{channels}], not {:?} and {:?}", gamma.shape(), beta.shape());
    Err(TensorError::shape(op, problem))
}

fn vector(values: &[f64], dtype: DType) -> Result<Tensor> {
    Ok(Tensor::from_vec(values.to_vec(), values.len(), &candle_core::Device::Cpu)?.to_dtype(dtype)?)
}

fn floats(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(tensor.to_dtype(DType::F64)?.to_vec1::<f64>()?)
}

/// Batch normalisation of [N, C, H, W] (Ioffe & Szegedy 2015), with an optional activation in the same pass.
///
/// In training the statistics are those of the batch (of all ranks' batches with `sync`), and the running ones
/// move towards them; in evaluation the running ones are used. As in PyTorch, the running variance is unbiased
/// and the one used for normalising is not.
///
/// # Errors
/// If the shapes do not go together, or training sees one element a channel.
pub fn batch_norm2d(
    tape: &Tape,
    x: &Value,
    gamma: &Value,
    beta: &Value,
    stats: &BatchNormStats<'_>,
    activation: FusedActivation,
) -> Result<Value> {
    const OP: &str = "batch_norm2d";
    let &[batch, channels, height, width] = x.dims() else {
        return Err(TensorError::shape(OP, format!("expected [N, C, H, W], not {:?}", x.shape())));
    };
    check_affine(OP, channels, gamma, beta)?;
    let dims = [batch, channels, height * width];
    let input = x.tensor()?.contiguous()?;
    let dtype = input.dtype();
    let cx = tape.context();
    let sync = if stats.sync { tape.session().stats_sync.clone() } else { None };
    let reduce = {
        let sync = sync.clone();
        move |values: &mut [f64]| match &sync {
            Some(sync) => sync.all_reduce_sum(values).map_err(|source| TensorError::Hook { op: OP, source }),
            None => Ok(()),
        }
    };
    let training = tape.training();
    let mut count = (batch * height * width) as f64;
    let (mean, variance) = if training {
        let (mut mean, mut moment) = (vec![0.0_f64; channels], vec![0.0_f64; channels]);
        {
            let read = Contiguous::new(OP, &input)?;
            dispatch!(OP, dtype, T => {
                batch_norm_moments(cx, dims, read.slice::<T>()?, &mut mean, &mut moment)?;
                Ok(())
            })?;
        }
        if sync.is_some() {
            // Sums over ranks of n, Σx and Σx²; in f64 the detour through Σx² costs no accuracy that f32 had.
            let mut sums = Vec::with_capacity(2 * channels + 1);
            sums.push(count);
            sums.extend(mean.iter().map(|m| m * count));
            sums.extend(mean.iter().zip(&moment).map(|(m, m2)| m2 + m * m * count));
            reduce(&mut sums)?;
            count = sums[0];
            for c in 0..channels {
                mean[c] = sums[1 + c] / count;
                moment[c] = (sums[1 + channels + c] - mean[c] * mean[c] * count).max(0.0);
            }
        }
        if count < 2.0 {
            let problem =
                format!("training needs more than one element a channel; the input is {:?}", x.shape());
            return Err(TensorError::shape(OP, problem));
        }
        if !tape.recomputing() {
            update_running(stats, &mean, &moment, count)?;
        }
        let variance = moment.iter().map(|m2| m2 / count).collect::<Vec<_>>();
        (mean, variance)
    } else {
        (floats(&stats.running_mean.tensor())?, floats(&stats.running_var.tensor())?)
    };
    let inv_std: Vec<f64> = variance.iter().map(|v| 1.0 / (v + stats.eps).sqrt()).collect();
    let (mean, inv_std) = (vector(&mean, dtype)?, vector(&inv_std, dtype)?);
    let (gamma_t, beta_t) = (gamma.tensor()?, beta.tensor()?);
    let output = {
        let (x, m, s) =
            (Contiguous::new(OP, &input)?, Contiguous::new(OP, &mean)?, Contiguous::new(OP, &inv_std)?);
        let (g, b) = (Contiguous::new(OP, &gamma_t)?, Contiguous::new(OP, &beta_t)?);
        dispatch!(OP, dtype, T => {
            let x = x.slice::<T>()?;
            let mut y = unwritten::<T>(x.len());
            let (m, s, g, b) = (m.slice::<T>()?, s.slice::<T>()?, g.slice::<T>()?, b.slice::<T>()?);
            batch_norm_forward(cx, dims, x, m, s, g, b, activation, &mut y)?;
            tensor_from(y, input.shape().clone())
        })?
    };
    let fused = activation != Activation::None;
    let saved_output = fused.then(|| output.clone());
    let gamma_saved = gamma.save();
    tape.push(OP, &[x, gamma, beta], output, move |tape, grad, grads| {
        let cx = tape.context();
        let grad = grad.contiguous()?;
        // The fused activation's derivative follows from the output: nothing flows where it was cut off.
        let grad = match &saved_output {
            Some(y) => super::activation::cut_off(cx, activation, y, &grad)?,
            None => grad,
        };
        let (x, dy) = (Contiguous::new(OP, &input)?, Contiguous::new(OP, &grad)?);
        let (m, s) = (Contiguous::new(OP, &mean)?, Contiguous::new(OP, &inv_std)?);
        let gamma_t = gamma_saved.tensor()?;
        let g = Contiguous::new(OP, &gamma_t)?;
        dispatch!(OP, dtype, T => {
            let (x, dy, m, s) = (x.slice::<T>()?, dy.slice::<T>()?, m.slice::<T>()?, s.slice::<T>()?);
            let (mut sum_dy, mut sum_dy_xhat) = (vec![0.0_f64; channels], vec![0.0_f64; channels]);
            batch_norm_backward_sums(cx, dims, x, dy, m, s, &mut sum_dy, &mut sum_dy_xhat)?;
            // The parameters' gradients are this rank's share; they are summed over ranks like all others.
            grads.add(1, vector(&sum_dy_xhat, dtype)?)?;
            grads.add(2, vector(&sum_dy, dtype)?)?;
            if !grads.wants(0) {
                return Ok(());
            }
            if training {
                let mut sums = [sum_dy, sum_dy_xhat].concat();
                reduce(&mut sums)?;
                sums.iter_mut().for_each(|v| *v /= count);
                sum_dy_xhat = sums.split_off(channels);
                sum_dy = sums;
            } else {
                // With fixed statistics the derivative is only the scale.
                sum_dy.fill(0.0);
                sum_dy_xhat.fill(0.0);
            }
            let mut dx = unwritten::<T>(x.len());
            let gamma = g.slice::<T>()?;
            batch_norm_backward_input(cx, dims, x, dy, m, s, gamma, &sum_dy, &sum_dy_xhat, &mut dx)?;
            grads.add(0, tensor_from(dx, input.shape().clone())?)
        })
    })
}

/// Moves the running statistics towards those of a batch of `count` elements a channel.
fn update_running(stats: &BatchNormStats<'_>, mean: &[f64], moment: &[f64], count: f64) -> Result<()> {
    let momentum = stats.momentum;
    let mixed = |buffer: &Buffer, new: &mut dyn Iterator<Item = f64>| -> Result<()> {
        let old = buffer.tensor();
        let values: Vec<f64> = floats(&old)?
            .into_iter()
            .zip(new)
            .map(|(old, new)| (1.0 - momentum) * old + momentum * new)
            .collect();
        buffer.set(&vector(&values, old.dtype())?)
    };
    mixed(stats.running_mean, &mut mean.iter().copied())?;
    mixed(stats.running_var, &mut moment.iter().map(|m2| m2 / (count - 1.0)))?;
    let seen = stats.num_batches.tensor().to_scalar::<i64>()?;
    stats.num_batches.set(&Tensor::new(seen + 1, &candle_core::Device::Cpu)?)
}

/// Layer normalisation over the last dimension (Ba et al. 2016); `gamma` and `beta` are `[C]`.
///
/// # Errors
/// If the shapes do not go together.
pub fn layer_norm(tape: &Tape, x: &Value, gamma: &Value, beta: &Value, eps: f64) -> Result<Value> {
    const OP: &str = "layer_norm";
    let width = x.dims().last().copied().unwrap_or(0);
    check_affine(OP, width, gamma, beta)?;
    let input = x.tensor()?.contiguous()?;
    let dtype = input.dtype();
    let rows = input.elem_count() / width.max(1);
    let (gamma_t, beta_t) = (gamma.tensor()?, beta.tensor()?);
    let (output, mean, inv_std) = {
        let x = Contiguous::new(OP, &input)?;
        let (g, b) = (Contiguous::new(OP, &gamma_t)?, Contiguous::new(OP, &beta_t)?);
        dispatch!(OP, dtype, T => {
            let x = x.slice::<T>()?;
            let mut y = unwritten::<T>(x.len());
            let (mut mean, mut inv_std) = (vec![T::default(); rows], vec![T::default(); rows]);
            let (g, b) = (g.slice::<T>()?, b.slice::<T>()?);
            layer_norm_forward(tape.context(), rows, width, x, g, b, eps, &mut y, &mut mean, &mut inv_std)?;
            Ok::<_, TensorError>((
                tensor_from(y, input.shape().clone())?,
                tensor_from(mean, rows)?,
                tensor_from(inv_std, rows)?,
            ))
        })?
    };
    let gamma_saved = gamma.save();
    tape.push(OP, &[x, gamma, beta], output, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        let gamma_t = gamma_saved.tensor()?;
        let (x, dy, g) =
            (Contiguous::new(OP, &input)?, Contiguous::new(OP, &grad)?, Contiguous::new(OP, &gamma_t)?);
        let (m, s) = (Contiguous::new(OP, &mean)?, Contiguous::new(OP, &inv_std)?);
        dispatch!(OP, dtype, T => {
            let (x, dy) = (x.slice::<T>()?, dy.slice::<T>()?);
            let mut dx = unwritten::<T>(x.len());
            let (mut dgamma, mut dbeta) = (vec![T::default(); width], vec![T::default(); width]);
            layer_norm_backward(
                tape.context(), rows, width, x, dy, g.slice::<T>()?, m.slice::<T>()?, s.slice::<T>()?,
                &mut dx, &mut dgamma, &mut dbeta,
            )?;
            grads.add(0, tensor_from(dx, input.shape().clone())?)?;
            grads.add(1, tensor_from(dgamma, width)?)?;
            grads.add(2, tensor_from(dbeta, width)?)
        })
    })
}

/// Group normalisation of [N, C, ..] over `groups` groups of channels (Wu & He 2018); `gamma` and `beta` are `[C]`.
///
/// # Errors
/// If the shapes do not go together or the groups do not divide the channels.
pub fn group_norm(
    tape: &Tape,
    x: &Value,
    groups: usize,
    gamma: &Value,
    beta: &Value,
    eps: f64,
) -> Result<Value> {
    const OP: &str = "group_norm";
    let (&[batch, channels], rest) = x
        .dims()
        .split_at_checked(2)
        .map_or((&[0, 0], &[][..]), |(a, b)| (a.try_into().unwrap_or(&[0, 0]), b));
    if channels == 0 || groups == 0 || channels % groups != 0 {
        let problem = format!("{groups} groups do not divide the channels of {:?}", x.shape());
        return Err(TensorError::shape(OP, problem));
    }
    check_affine(OP, channels, gamma, beta)?;
    let dims = [batch, channels, rest.iter().product()];
    let input = x.tensor()?.contiguous()?;
    let dtype = input.dtype();
    let count = batch * groups;
    let (gamma_t, beta_t) = (gamma.tensor()?, beta.tensor()?);
    let (output, mean, inv_std) = {
        let x = Contiguous::new(OP, &input)?;
        let (g, b) = (Contiguous::new(OP, &gamma_t)?, Contiguous::new(OP, &beta_t)?);
        dispatch!(OP, dtype, T => {
            let x = x.slice::<T>()?;
            let mut y = unwritten::<T>(x.len());
            let (mut mean, mut inv_std) = (vec![T::default(); count], vec![T::default(); count]);
            let (g, b) = (g.slice::<T>()?, b.slice::<T>()?);
            group_norm_forward(tape.context(), dims, groups, x, g, b, eps, &mut y, &mut mean, &mut inv_std)?;
            Ok::<_, TensorError>((
                tensor_from(y, input.shape().clone())?,
                tensor_from(mean, count)?,
                tensor_from(inv_std, count)?,
            ))
        })?
    };
    let gamma_saved = gamma.save();
    tape.push(OP, &[x, gamma, beta], output, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        let gamma_t = gamma_saved.tensor()?;
        let (x, dy, g) =
            (Contiguous::new(OP, &input)?, Contiguous::new(OP, &grad)?, Contiguous::new(OP, &gamma_t)?);
        let (m, s) = (Contiguous::new(OP, &mean)?, Contiguous::new(OP, &inv_std)?);
        dispatch!(OP, dtype, T => {
            let (x, dy) = (x.slice::<T>()?, dy.slice::<T>()?);
            let mut dx = unwritten::<T>(x.len());
            let (mut dgamma, mut dbeta) = (vec![T::default(); channels], vec![T::default(); channels]);
            group_norm_backward(
                tape.context(), dims, groups, x, dy, g.slice::<T>()?, m.slice::<T>()?, s.slice::<T>()?,
                &mut dx, &mut dgamma, &mut dbeta,
            )?;
            grads.add(0, tensor_from(dx, input.shape().clone())?)?;
            grads.add(1, tensor_from(dgamma, channels)?)?;
            grads.add(2, tensor_from(dbeta, channels)?)
        })
    })
}

/// Every row (last dimension) divided by its Euclidean length; a row of zeros stays zero.
///
/// # Errors
/// If memory cannot be allocated.
pub fn l2_normalise(tape: &Tape, x: &Value) -> Result<Value> {
    const OP: &str = "l2_normalise";
    let input = x.tensor()?.contiguous()?;
    let width = input.dims().last().copied().unwrap_or(1).max(1);
    let dtype = input.dtype();
    let (output, inverse) = {
        let x = Contiguous::new(OP, &input)?;
        dispatch!(OP, dtype, T => {
            let x = x.slice::<T>()?;
            let mut y = Vec::with_capacity(x.len());
            let mut inverse = Vec::with_capacity(x.len() / width);
            for row in x.chunks_exact(width) {
                let length = row.iter().map(|v| v.to_f64() * v.to_f64()).sum::<f64>().sqrt();
                let factor = if length > 0.0 { 1.0 / length } else { 0.0 };
                y.extend(row.iter().map(|v| T::from_f64(v.to_f64() * factor)));
                inverse.push(factor);
            }
            Ok::<_, TensorError>((tensor_from(y, input.shape().clone())?, inverse))
        })?
    };
    let saved = output.clone();
    tape.push(OP, &[x], output, move |_, grad, grads| {
        let grad = grad.contiguous()?;
        let (y, dy) = (Contiguous::new(OP, &saved)?, Contiguous::new(OP, &grad)?);
        dispatch!(OP, dtype, T => {
            let (y, dy) = (y.slice::<T>()?, dy.slice::<T>()?);
            let mut dx = Vec::with_capacity(y.len());
            for ((y, dy), factor) in y.chunks_exact(width).zip(dy.chunks_exact(width)).zip(&inverse) {
                // dx = (dy − y·⟨y, dy⟩)/‖x‖: the part along the row does not change its direction.
                let along: f64 = y.iter().zip(dy).map(|(y, dy)| y.to_f64() * dy.to_f64()).sum();
                dx.extend(y.iter().zip(dy).map(|(y, dy)| T::from_f64((dy.to_f64() - y.to_f64() * along) * factor)));
            }
            grads.add(0, tensor_from(dx, saved.shape().clone())?)
        })
    })
}

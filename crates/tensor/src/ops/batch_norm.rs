//! Batch normalisation.

use candle_core::{DType, Tensor};
use phalanx_kernels::{
    Affine, BatchNormGrads, Cut, Finish, batch_norm_backward_input, batch_norm_backward_sums,
    batch_norm_forward, batch_norm_moments, batch_norm_train, batch_norm_train_backward,
};

use super::norm::check_affine;
use crate::host::HostSliceMut;
use crate::storage::unwritten;
use crate::storage::{Contiguous, dispatch, stored, tensor_from, wide};
use crate::store::Buffer;
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

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

fn vector(values: &[f64], dtype: DType) -> Result<Tensor> {
    Ok(Tensor::from_vec(values.to_vec(), values.len(), &candle_core::Device::Cpu)?.to_dtype(dtype)?)
}

fn floats(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(tensor.to_dtype(DType::F64)?.to_vec1::<f64>()?)
}

/// Batch normalisation of [N, C, H, W] (Ioffe & Szegedy 2015), with an optional addition and an optional activation in
/// the same pass: act(norm(x) + residual).
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
    residual: Option<&Value>,
) -> Result<Value> {
    const OP: &str = "batch_norm2d";
    let &[batch, channels, height, width] = x.dims() else {
        return Err(TensorError::shape(OP, format!("expected [N, C, H, W], not {:?}", x.shape())));
    };
    check_affine(OP, channels, gamma, beta)?;
    if let Some(residual) = residual.filter(|residual| residual.dims() != x.dims()) {
        return Err(TensorError::unequal(OP, x.shape(), residual.shape()));
    }
    let dims = [batch, channels, height * width];
    let input = x.tensor()?.contiguous()?;
    let added =
        residual.map(|residual| Ok::<_, TensorError>(residual.tensor()?.contiguous()?)).transpose()?;
    let dtype = input.dtype();
    let cx = tape.context();
    let sync = if stats.sync { tape.session().batch_group.clone() } else { None };
    let reduce = {
        let sync = sync.clone();
        move |values: &mut [f64]| match &sync {
            Some(sync) => {
                let sum = sync.all_reduce(HostSliceMut::F64(values));
                sum.map_err(|source| TensorError::Hook { op: OP, source })
            }
            None => Ok(()),
        }
    };
    let training = tape.training();
    // Whether all statistics are here, so that a channel is done in one go.
    let alone = training && sync.is_none();
    let (gamma_t, beta_t) = (gamma.tensor()?.contiguous()?, beta.tensor()?.contiguous()?);
    let mut count = (batch * height * width) as f64;
    let (mut mean, mut moment) = (vec![0.0_f64; channels], vec![0.0_f64; channels]);
    let output = dispatch!(OP, dtype, T => {
        let read = Contiguous::by(OP, tape.context(), &input)?;
        let x = read.slice::<T>()?;
        let added = added.as_ref().map(|added| Contiguous::by(OP, tape.context(), added)).transpose()?;
        let residual = added.as_ref().map(|added| added.slice::<T>()).transpose()?;
        let finish = Finish { activation, residual };
        let (g, b) = (Contiguous::by(OP, tape.context(), &gamma_t)?, Contiguous::by(OP, tape.context(), &beta_t)?);
        let (gamma, beta) = (g.slice::<T>()?, b.slice::<T>()?);
        if training && !alone {
            batch_norm_moments(cx, dims, x, &mut mean, &mut moment)?;
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
        if training && count < 2.0 {
            let problem =
                format!("training needs more than one element a channel; the input is {:?}", input.shape());
            return Err(TensorError::shape(OP, problem));
        }
        let mut y = unwritten::<T>(x.len());
        if alone {
            let affine = [gamma, beta];
            batch_norm_train(cx, dims, x, affine, stats.eps, finish, &mut y, &mut mean, &mut moment)?;
        } else {
            if !training {
                mean = floats(&stats.running_mean.tensor())?;
                // So that the variance below is the running one.
                moment = floats(&stats.running_var.tensor())?.into_iter().map(|v| v * count).collect();
            }
            let (mean, inv_std) = rounded::<T>(&mean, &moment, count, stats.eps);
            let affine = Affine { mean: &mean, inv_std: &inv_std, gamma, beta };
            batch_norm_forward(cx, dims, x, affine, finish, &mut y)?;
        }
        stored(cx, y, input.shape().clone(), dtype)
    })?;
    if training && !tape.recomputing() {
        update_running(stats, &mean, &moment, count)?;
    }
    let eps = stats.eps;
    // What an addition let through cannot be told from the input.
    let saved_output = (residual.is_some() && !activation.is_none()).then(|| output.clone());
    let (gamma_saved, beta_saved) = (gamma.save(), beta.save());
    let none = Value::constant(Tensor::zeros(0, dtype, &candle_core::Device::Cpu)?);
    let inputs = [x, gamma, beta, residual.unwrap_or(&none)];
    tape.push(OP, &inputs, output, move |tape, grad, grads| { let grad = &grad.tensor()?;
        let cx = tape.context();
        let grad = grad.contiguous()?;
        let (gamma_t, beta_t) = (gamma_saved.array()?.tensor()?.contiguous()?, beta_saved.array()?.tensor()?.contiguous()?);
        dispatch!(OP, dtype, T => {
            let (x, dy) = (Contiguous::by(OP, tape.context(), &input)?, Contiguous::by(OP, tape.context(), &grad)?);
            let (g, b) = (Contiguous::by(OP, tape.context(), &gamma_t)?, Contiguous::by(OP, tape.context(), &beta_t)?);
            let output = saved_output.as_ref().map(|output| Contiguous::by(OP, tape.context(), output)).transpose()?;
            let (x, dy, gamma, beta) = (x.slice::<T>()?, dy.slice::<T>()?, g.slice::<T>()?, b.slice::<T>()?);
            let cut = Cut { activation, output: output.as_ref().map(|y| y.slice::<T>()).transpose()? };
            let (mean, inv_std) = rounded::<T>(&mean, &moment, count, eps);
            let affine = Affine { mean: &mean, inv_std: &inv_std, gamma, beta };
            let (mut sum_dy, mut sum_dy_xhat) = (vec![0.0_f64; channels], vec![0.0_f64; channels]);
            let wants_maps = grads.wants(0) || grads.wants(3);
            if !alone || !wants_maps {
                batch_norm_backward_sums(cx, dims, x, dy, affine, cut, &mut sum_dy, &mut sum_dy_xhat)?;
            }
            let mut dx = unwritten::<T>(if wants_maps { x.len() } else { 0 });
            // Without an activation the residual's gradient is the output's.
            let own = grads.wants(3) && !activation.is_none();
            let mut d_residual = own.then(|| unwritten::<T>(x.len()));
            if wants_maps {
                let to = BatchNormGrads { dx: &mut dx, residual: d_residual.as_deref_mut() };
                if alone {
                    let sums = [sum_dy.as_mut_slice(), sum_dy_xhat.as_mut_slice()];
                    batch_norm_train_backward(cx, dims, x, dy, affine, cut, sums, to)?;
                } else {
                    // With fixed statistics the derivative is only the scale.
                    let mut means = vec![0.0; 2 * channels];
                    if training {
                        means = [sum_dy.as_slice(), &sum_dy_xhat].concat();
                        reduce(&mut means)?;
                        means.iter_mut().for_each(|v| *v /= count);
                    }
                    let means = [&means[..channels], &means[channels..]];
                    batch_norm_backward_input(cx, dims, x, dy, affine, cut, means, to)?;
                }
            } else if training {
                // The other ranks may want theirs.
                reduce(&mut [sum_dy.as_slice(), &sum_dy_xhat].concat())?;
            }
            // The parameters' gradients are this rank's share; they are summed over ranks like all others.
            grads.add(1, vector(&sum_dy_xhat, wide(dtype))?)?;
            grads.add(2, vector(&sum_dy, wide(dtype))?)?;
            if grads.wants(0) {
                grads.add(0, tensor_from(dx, input.shape().clone())?)?;
            }
            match d_residual {
                Some(d_residual) => grads.add(3, tensor_from(d_residual, input.shape().clone())?),
                None => grads.share(3, grad.clone()),
            }
        })
    })
}

/// Mean and 1/√(variance + eps) in the element type.
fn rounded<T: crate::storage::Scalar>(
    mean: &[f64],
    moment: &[f64],
    count: f64,
    eps: f64,
) -> (Vec<T>, Vec<T>) {
    use phalanx_kernels::Float;
    let mean = mean.iter().map(|mean| <T as Float>::from_f64(*mean)).collect();
    let inv_std = moment.iter().map(|m2| <T as Float>::from_f64(1.0 / (m2 / count + eps).sqrt())).collect();
    (mean, inv_std)
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

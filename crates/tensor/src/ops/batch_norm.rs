//! Batch normalisation.

use super::norm::check_affine;
use crate::backend::{Array, BatchNormBackward, BatchNormPass};
use crate::group::ProcessGroup;
use crate::storage::wide;
use crate::store::Buffer;
use crate::tape::{Tape, Value};
use crate::{Result, TensorError};

pub use crate::backend::FusedActivation;

const OP: &str = "batch_norm2d";

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
    let &[batch, channels, height, width] = x.dims() else {
        return Err(TensorError::shape(OP, format!("expected [N, C, H, W], not {:?}", x.shape())));
    };
    check_affine(OP, channels, gamma, beta)?;
    if let Some(residual) = residual.filter(|residual| residual.dims() != x.dims()) {
        return Err(TensorError::unequal(OP, x.shape(), residual.shape()));
    }
    let dims = [batch, channels, height * width];
    let input = x.array()?.contiguous()?;
    let added = residual.map(|residual| residual.array()?.contiguous()).transpose()?;
    let (gamma_t, beta_t) = (gamma.array()?.contiguous()?, beta.array()?.contiguous()?);
    let backend = input.backend(tape.context());
    let sync = if stats.sync { tape.session().batch_group.clone() } else { None };
    let training = tape.training();
    // Whether all statistics are here, so that a channel is done in one go.
    let alone = training && sync.is_none();
    let count = batch * height * width;
    if alone && count < 2 {
        let problem =
            format!("training needs more than one element a channel; the input is {:?}", input.shape());
        return Err(TensorError::shape(OP, problem));
    }
    let eps = stats.eps;
    let pass = BatchNormPass { dims, x: &input, gamma: &gamma_t, beta: &beta_t, eps, activation };
    let (output, statistics) = if alone {
        backend.batch_norm_train(pass, added.as_ref())?
    } else {
        let statistics = if training {
            let sums = backend.batch_norm_sums(dims, &input)?;
            reduce(sync.as_deref(), &sums)?;
            backend.batch_norm_statistics(&sums)?
        } else {
            let (mean, variance) = (stats.running_mean.array(), stats.running_var.array());
            backend.batch_norm_fixed(&mean, &variance, count as f64)?
        };
        (backend.batch_norm(pass, &statistics, added.as_ref())?, statistics)
    };
    if training && !tape.recomputing() && tape.session().moves_statistics {
        let (mean, variance) = (stats.running_mean.array(), stats.running_var.array());
        let [mean, variance] = backend.batch_norm_running(&statistics, stats.momentum, &mean, &variance)?;
        stats.running_mean.set_array(mean)?;
        stats.running_var.set_array(variance)?;
        stats.num_batches.set_array(backend.count_up(&stats.num_batches.array())?)?;
    }
    // What an addition let through cannot be told from the input.
    let saved_output = (residual.is_some() && !activation.is_none()).then(|| output.clone());
    let (gamma_saved, beta_saved) = (gamma.save(), beta.save());
    let none = Value::absent()?;
    let inputs = [x, gamma, beta, residual.unwrap_or(&none)];
    tape.push(OP, &inputs, output, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        let backend = grad.backend(tape.context());
        let (gamma, beta) = (gamma_saved.array()?.contiguous()?, beta_saved.array()?.contiguous()?);
        let from = BatchNormBackward {
            pass: BatchNormPass { dims, x: &input, gamma: &gamma, beta: &beta, eps, activation },
            statistics: &statistics,
            output: saved_output.as_ref(),
            dy: &grad,
            // Without an activation the residual's gradient is the output's.
            residual: grads.wants(3) && !activation.is_none(),
        };
        let wants_maps = grads.wants(0) || grads.wants(3);
        let (maps, sums) = if alone && wants_maps {
            let (maps, sums) = backend.batch_norm_train_backward(from)?;
            (Some(maps), sums)
        } else {
            let sums = backend.batch_norm_gradient_sums(from)?;
            // With fixed statistics nothing is summed; else the other ranks may want theirs, wanted here or not.
            let total = training.then(|| backend.duplicate(&sums)).transpose()?;
            if let Some(total) = &total {
                reduce(sync.as_deref(), total)?;
            }
            let maps = match wants_maps {
                true => Some(backend.batch_norm_backward(from, total.as_ref())?),
                false => None,
            };
            (maps, sums)
        };
        // The parameters' gradients are this rank's share; they are summed over ranks like all others.
        let [dgamma, dbeta] = backend.batch_norm_affine_gradients(&sums, wide(grad.dtype()))?;
        grads.add(1, dgamma)?;
        grads.add(2, dbeta)?;
        let Some(maps) = maps else { return Ok(()) };
        if grads.wants(0) {
            grads.add(0, maps.dx)?;
        }
        match maps.residual {
            Some(residual) => grads.add(3, residual),
            None => grads.share(3, grad),
        }
    })
}

/// Adds the numbers up over ranks, if they are to be.
fn reduce(group: Option<&dyn ProcessGroup>, numbers: &Array) -> Result<()> {
    let Some(group) = group else { return Ok(()) };
    group.all_reduce(numbers).map_err(TensorError::hook(OP))
}

//! Batch normalisation.

use std::sync::Arc;

use super::norm::check_affine;
use crate::backend::{
    Array, ArrayBackend, BatchNormBackward, BatchNormMaps, BatchNormPass, RunningStatistics,
};
use crate::group::ProcessGroup;
use crate::store::Buffer;
use crate::tape::{Grads, Op, Placement, PlacementRule, SavedValue, Tape, Value};
use crate::{Result, TensorError};
use phalanx_array::wide;

pub use crate::backend::FusedActivation;

const OP: &str = "batch_norm2d";

/// The running statistics of a batch norm, and their update.
#[derive(Debug, Clone)]
pub struct BatchNormStats<'a> {
    /// Running mean, `[C]`.
    pub running_mean: &'a Buffer,
    /// Running unbiased variance, `[C]`.
    pub running_var: &'a Buffer,
    /// Number of batches so far; a 64-bit counter.
    pub num_batches: &'a Buffer,
    /// Weight of the newest batch in the running statistics.
    pub momentum: f64,
    /// Added to the variance.
    pub eps: f64,
    /// True to compute statistics over the batches of all ranks, if the session can reduce them.
    pub sync: bool,
    /// True to use the running statistics in training, too, and to leave them as they are.
    pub fixed: bool,
}

/// The scale and shift of a batch norm, and the operations in the same pass.
#[derive(Debug, Clone, Copy)]
pub struct BatchNormAffine<'a> {
    /// The weight `[C]`.
    pub gamma: &'a Value,
    /// The bias `[C]`.
    pub beta: &'a Value,
    /// Added before the activation, of the input's shape.
    pub residual: Option<&'a Value>,
    /// The activation of the sum.
    pub activation: FusedActivation,
}

/// Normalises [N, C, H, W] by batch (Ioffe & Szegedy 2015), with an optional residual and an optional activation in the same
/// pass: act(norm(x) + residual).
///
/// Training uses the statistics of the batch (of all ranks' batches with `sync`) and updates the running ones; evaluation
/// uses the running ones. As in PyTorch, the running variance is unbiased and the variance of a batch is not.
///
/// # Errors
/// If the shapes do not match, or training has only one element a channel.
pub fn batch_norm2d(
    tape: &Tape,
    x: &Value,
    affine: BatchNormAffine<'_>,
    stats: &BatchNormStats<'_>,
) -> Result<Value> {
    let BatchNormAffine { gamma, beta, residual, activation } = affine;
    let &[batch, channels, height, width] = x.dims() else {
        return Err(TensorError::shape(OP, format!("expected [N, C, H, W], not {:?}", x.shape())));
    };
    check_affine(OP, channels, gamma, beta)?;
    let rule = placement_rule(x, affine, stats)?;
    if let Some(residual) = residual.filter(|residual| residual.dims() != x.dims()) {
        return Err(TensorError::unequal(OP, x.shape(), residual.shape()));
    }
    let dims = [batch, channels, height * width];
    let input = x.contiguous_part()?;
    let added = residual.map(Value::contiguous_part).transpose()?;
    let (gamma_t, beta_t) = (gamma.contiguous_part()?, beta.contiguous_part()?);
    let backend = input.backend(tape.context());
    let training = tape.training() && !stats.fixed;
    let sync = if stats.sync && training { tape.session().batch_group.clone() } else { None };
    let mode = Mode { training, alone: training && sync.is_none(), sync };
    let (eps, residual_t) = (stats.eps, added.as_ref());
    let pass = BatchNormPass {
        dims,
        x: &input,
        gamma: &gamma_t,
        beta: &beta_t,
        eps,
        activation,
        residual: residual_t,
    };
    let (output, statistics) = mode.forward(backend, pass, stats)?;
    if mode.training && !tape.recomputing() && tape.session().moves_statistics {
        update_running(backend, &statistics, stats)?;
    }
    // The input alone does not tell which elements passed the activation if there was a residual.
    let saved_output = (residual.is_some() && !activation.is_none()).then(|| output.clone());
    let saved = SavedPass { dims, eps, activation, input, statistics, output: saved_output };
    let params = [gamma.save(), beta.save()];
    let none = Value::absent()?;
    let inputs = [x, gamma, beta, residual.unwrap_or(&none)];
    let (mean, variance) = (stats.running_mean.clone(), stats.running_var.clone());
    let op = Op::BatchNorm2d { mean, variance, eps, activation };
    let backward = move |tape: &Tape, grad: &Array, grads: &mut Grads<'_>| {
        saved.backward(tape, &mode, &params, grad, grads)
    };
    tape.push_by(rule, op, &inputs, output, backward)
}

/// Returns the rule for placements. Channels do not depend on each other, so ranks may have some of them, with their statistics.
fn placement_rule(
    x: &Value,
    affine: BatchNormAffine<'_>,
    stats: &BatchNormStats<'_>,
) -> Result<PlacementRule> {
    let BatchNormAffine { gamma, beta, residual, .. } = affine;
    let channels = x.dims()[1];
    let placed =
        |value: &Value| value.placement().map_or_else(|| "a constant".to_owned(), |is| is.to_string());
    for buffer in [stats.running_mean, stats.running_var] {
        let len = buffer.shape().elem_count();
        if len != channels {
            let problem = format!("`{}` has {len} channels on this rank, and x {channels}", buffer.name());
            return Err(TensorError::placement(format!("{OP}: {problem}")));
        }
    }
    let cut = [gamma, beta].map(|param| param.placement() == Some(Placement::Shard { dim: 0 }));
    match (x.placement(), cut) {
        (Some(is @ Placement::Shard { dim: 1 }), [true, true])
            if residual.is_none_or(|residual| residual.placement() == Some(is)) =>
        {
            Ok(PlacementRule::Own(is))
        }
        (_, [false, false]) => Ok(PlacementRule::Whole),
        _ => {
            let name = gamma.param().map_or("weight", |param| param.name());
            Err(TensorError::placement(format!(
                "{OP}: `{name}` is {}, its bias {} and x {:?} {}; a rank that has some channels needs the same of all",
                placed(gamma),
                placed(beta),
                x.shape(),
                placed(x)
            )))
        }
    }
}

/// The source of the statistics.
struct Mode {
    training: bool,
    /// True if training has all statistics on this rank, so that one pass does a channel.
    alone: bool,
    /// The ranks to reduce statistics over.
    sync: Option<Arc<dyn ProcessGroup>>,
}

impl Mode {
    /// Returns the output and the statistics.
    fn forward(
        &self,
        backend: &dyn ArrayBackend,
        pass: BatchNormPass<'_>,
        stats: &BatchNormStats<'_>,
    ) -> Result<(Array, Array)> {
        let [batch, _, pixels] = pass.dims;
        let count = batch * pixels;
        if self.alone && count < 2 {
            let shape = pass.x.shape();
            let problem = format!("training needs more than one element a channel; the input is {shape:?}");
            return Err(TensorError::shape(OP, problem));
        }
        if self.alone {
            return Ok(backend.batch_norm_train(pass)?);
        }
        let statistics = if self.training {
            let sums = backend.batch_norm_sums(pass.dims, pass.x)?;
            self.reduce(&sums)?;
            backend.batch_norm_statistics(&sums)?
        } else {
            let (mean, variance) = (stats.running_mean.array(), stats.running_var.array());
            backend.batch_norm_fixed(&mean, &variance, count as f64)?
        };
        Ok((backend.batch_norm(pass, &statistics)?, statistics))
    }

    /// Returns the gradients of input and residual, if wanted, and this rank's sums of the output's gradient.
    fn backward(
        &self,
        backend: &dyn ArrayBackend,
        of: BatchNormBackward<'_>,
        wants_maps: bool,
    ) -> Result<(Option<BatchNormMaps>, Array)> {
        if self.alone && wants_maps {
            let (maps, sums) = backend.batch_norm_train_backward(of)?;
            return Ok((Some(maps), sums));
        }
        let sums = backend.batch_norm_gradient_sums(of)?;
        // Fixed statistics need no sums. Otherwise other ranks may want them, even if this one does not.
        let total = self.training.then(|| backend.duplicate(&sums)).transpose()?;
        if let Some(total) = &total {
            self.reduce(total)?;
        }
        let maps = wants_maps.then(|| backend.batch_norm_backward(of, total.as_ref())).transpose()?;
        Ok((maps, sums))
    }

    /// Sums the numbers over the ranks of synchronised statistics.
    fn reduce(&self, numbers: &Array) -> Result<()> {
        let Some(group) = self.sync.as_deref() else { return Ok(()) };
        group.all_reduce(numbers).map_err(TensorError::hook(OP))
    }
}

/// Updates the running statistics by those of a batch.
fn update_running(backend: &dyn ArrayBackend, statistics: &Array, stats: &BatchNormStats<'_>) -> Result<()> {
    let (mean, variance) = (&stats.running_mean.array(), &stats.running_var.array());
    let running = RunningStatistics { momentum: stats.momentum, mean, variance };
    let [mean, variance] = backend.batch_norm_running(statistics, running)?;
    stats.running_mean.set_array(mean)?;
    stats.running_var.set_array(variance)?;
    stats.num_batches.set_array(backend.count_up(&stats.num_batches.array())?)
}

/// The arrays of a forward pass that backward reads.
struct SavedPass {
    dims: [usize; 3],
    eps: f64,
    activation: FusedActivation,
    input: Array,
    statistics: Array,
    output: Option<Array>,
}

impl SavedPass {
    fn backward(
        &self,
        tape: &Tape,
        mode: &Mode,
        [gamma, beta]: &[SavedValue; 2],
        grad: &Array,
        grads: &mut Grads<'_>,
    ) -> Result<()> {
        let &Self { dims, eps, activation, .. } = self;
        let grad = grad.contiguous()?;
        let backend = grad.backend(tape.context());
        let (gamma, beta) = (&gamma.contiguous()?, &beta.contiguous()?);
        let of = BatchNormBackward {
            pass: BatchNormPass { dims, x: &self.input, gamma, beta, eps, activation, residual: None },
            statistics: &self.statistics,
            output: self.output.as_ref(),
            dy: &grad,
            // Without an activation the residual's gradient is the output's.
            residual: grads.wants(3) && !activation.is_none(),
        };
        let (maps, sums) = mode.backward(backend, of, grads.wants(0) || grads.wants(3))?;
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
    }
}

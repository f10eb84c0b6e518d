//! A network that is trained, with its optimizer.

mod checkpoint;
mod freeze;

pub(super) use checkpoint::is_optimizers;

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::Tensor;
use phalanx_sharding::{CatchUp, OptimizerUpdate, ReducedStep, SharedUpdate};
use phalanx_tensor::backend::{Download, ScaledStep};
use phalanx_tensor::optim::{
    Ema, LossScale, Optimizer, Schedule, clip_by_squares, clip_to_norm, exact_grad_squares,
    grad_sum_of_squares,
};
use phalanx_tensor::{
    Array, ComputeDevice, Context, LossFactor, ParamBucket, TensorError, Value as Variable,
};

use crate::engine::distributed::{Distributed, Network};
use crate::engine::observer::UpdateReport;
use crate::engine::training::Measure;
use crate::engine::{Plan, TrainError, optimize, precision};
use phalanx_config::{Config, Offload};

/// A network with its optimizer, schedule, averages, clipping and loss scale.
pub(super) struct Trainable {
    pub(super) network: Network,
    /// Shared with the server on this rank, if the strategy has servers.
    updater: Arc<Mutex<Updater>>,
    schedule: Schedule,
    /// The first step that changes it.
    begin: u64,
    /// The step after which frozen parameters are trained, counted from 1; `None` if they never are.
    unfreezes_after: Option<u64>,
    clip_norm: Option<f64>,
    loss_scale: Option<LossScale>,
    /// True while averages are in the place of weights.
    shows_averages: bool,
    /// This rank's own state when a rank was lost, until the survivors continue from it.
    salvaged: Option<Vec<(String, Vec<f32>)>>,
}

/// The optimizer, and the averages that follow each of its steps.
#[derive(Debug)]
struct Updater {
    optimizer: Box<dyn Optimizer>,
    ema: Option<Ema>,
    /// The decision of a device about the next step.
    scaled: Option<ScaledStep>,
    context: Arc<Context>,
}

/// A result of an update that a device has not delivered yet.
pub(super) enum DeferredResult {
    /// The norm of the gradients.
    Norm(Measure),
    /// The decision about the loss scale.
    Scale(Download),
}

impl OptimizerUpdate for Updater {
    fn apply(&mut self, params: &[ParamBucket], learning_rate: f64) -> Result<(), TensorError> {
        let scaled = self.scaled.take();
        self.optimizer.scaled_step(params, learning_rate, scaled.as_ref(), &self.context)?;
        self.ema.as_mut().map_or(Ok(()), |ema| ema.scaled_update(params, scaled.as_ref(), &self.context))
    }
}

impl Updater {
    /// Returns the sums that the next update needs over all ranks, if it needs any.
    fn begin(&mut self, params: &[ParamBucket]) -> Result<Option<Array>, TensorError> {
        self.optimizer.begin_step(params, self.scaled.as_ref(), &self.context)
    }
}

/// Exchanges weights and averages.
fn swap(updater: &Mutex<Updater>, params: &[ParamBucket]) -> Result<(), TensorError> {
    let mut updater = updater.lock().unwrap_or_else(PoisonError::into_inner);
    updater.ema.as_mut().map_or(Ok(()), |ema| ema.swap(params))
}

impl Trainable {
    /// Creates the optimizer of a shared network that is trained in the steps `steps` of the plan. State on disk lies in the run's
    /// folder, in files for each rank.
    pub(super) fn new(
        config: &Config,
        network: Network,
        plan: &Plan,
        steps: Range<u64>,
        context: Arc<Context>,
        (folder, rank): (&Path, usize),
    ) -> Result<Self, TrainError> {
        let config = &config.for_network(network.name());
        let state = optimize::state_at(config, folder, rank, network.name())?;
        let mut optimizer = optimize::optimizer(config, network.store(), state.clone());
        optimizer.reserve(network.parallel()?.params())?;
        let mut ema = optimize::averages(config, state);
        if let Some(ema) = &mut ema {
            ema.reserve(network.parallel()?.params())?;
        }
        // Updates run where the optimizer state is. Under asynchronous strategies the host decides whether a step counts.
        let on_host = config.train.offload != Offload::None || !config.train.strategy.is_bulk_synchronous();
        let first = network.parallel()?.params().first().filter(|_| !on_host);
        let device = first.map_or_else(ComputeDevice::host, |param| param.device().clone());
        let loss_scale = precision::loss_scale(config)?.map(|scale| scale.kept_at(&device)).transpose()?;
        let updater = Updater { optimizer, ema, scaled: None, context };
        let updater = Arc::new(Mutex::new(updater));
        let rule: SharedUpdate = updater.clone();
        network.parallel()?.set_optimizer(&rule)?;
        Ok(Self {
            network,
            updater,
            schedule: optimize::schedule(config, &plan.of(&steps))?,
            begin: steps.start,
            unfreezes_after: config.optim.unfreezes_after(plan.steps_per_epoch),
            clip_norm: (config.train.clip_norm > 0.0).then_some(config.train.clip_norm),
            loss_scale,
            shows_averages: false,
            salvaged: None,
        })
    }

    fn updater(&self) -> MutexGuard<'_, Updater> {
        self.updater.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The factor of the next loss.
    pub(super) fn loss_factor(&self) -> Result<LossFactor, TensorError> {
        self.loss_scale.as_ref().map_or(Ok(LossFactor::default()), |scale| Ok(scale.factor()?.into()))
    }

    /// Takes over the progress of a loss scale that several networks share.
    pub(super) fn share_loss_scale(&mut self, with: Option<&Array>) -> Result<(), TensorError> {
        match (&mut self.loss_scale, with) {
            (Some(own), Some(other)) => own.follow(other),
            _ => Ok(()),
        }
    }

    /// The progress of the loss scale.
    pub(super) fn loss_scale_progress(&self) -> Result<Option<Array>, TensorError> {
        self.loss_scale.as_ref().map(LossScale::progress).transpose()
    }

    /// Updates the weights in step `step`, counted from 0, by the gradients. If the loss is scaled and a gradient of any rank is not
    /// finite, all ranks skip the update. Results of a GPU for the report come later.
    pub(super) fn update(
        &mut self,
        reduced: ReducedStep<'_>,
        distributed: &Distributed,
        step: u64,
        context: &Context,
    ) -> Result<(UpdateReport, Option<DeferredResult>), TrainError> {
        let params = reduced.params();
        let mut report = UpdateReport {
            network: self.network.name().to_owned(),
            learning_rate: self.schedule.lr(step.saturating_sub(self.begin)),
            ..UpdateReport::default()
        };
        let (mut deferred, mut decided) = (None, None);
        if self.clip_norm.is_some() || self.loss_scale.is_some() {
            let squares = self.squares(&reduced, context)?;
            match (&mut self.loss_scale, self.clip_norm) {
                (Some(scale), max_norm) => {
                    let agree = |flag: &Array| reduced.any(flag).map_err(TrainError::from);
                    let scaled = scale.step(&squares, max_norm, context, agree)?;
                    if !scale.is_host() {
                        self.updater().scaled = Some(scaled.step().clone());
                        decided = Some(scaled);
                    } else if self.take_note(&scaled.read()?, &mut report, step + 1, distributed)? {
                        return Ok((report, None));
                    } else {
                        scaled.unscale(params, context)?;
                    }
                }
                // A device clips by its own norm, which is read later.
                (None, Some(max)) if !squares.is_host() => {
                    clip_by_squares(params, &squares, max, context)?;
                    let root = |squares: &Tensor| Ok(f64::from(squares.to_vec0::<f32>()?).sqrt());
                    deferred = Some(DeferredResult::Norm(Measure::read(&Variable::constant(squares), root)?));
                }
                (None, Some(max)) => {
                    let norm = squares.number()?.sqrt();
                    report.gradient_norm = Some(clip_to_norm(params, norm, max, context)?);
                }
                (None, None) => {}
            }
        }
        if let Some(momentum) = self.schedule.momentum(step.saturating_sub(self.begin)) {
            self.updater().optimizer.set_momentum(momentum);
        }
        let sums = self.updater().begin(params)?;
        if let Some(sums) = sums {
            reduced.sum(&sums)?;
        }
        let rule: SharedUpdate = self.updater.clone();
        reduced.update_with(&rule, report.learning_rate)?;
        if let Some(scaled) = decided {
            // After the update, so that a recorded graph is not interrupted.
            deferred = Some(DeferredResult::Scale(scaled.begin_read()?));
        }
        Ok((report, deferred))
    }

    /// The sum of the squares of all gradients, over all ranks.
    fn squares(&self, reduced: &ReducedStep<'_>, context: &Context) -> Result<Array, TrainError> {
        let params = reduced.params();
        if !self.network.is_logical() {
            let squares = grad_sum_of_squares(params, context)?;
            reduced.sum(&squares)?;
            return Ok(squares);
        }
        // The result must not depend on the placement of gradients.
        let digits = exact_grad_squares(params, context)?;
        reduced.sum(&digits)?;
        Ok(digits.backend(context).exact_squares_value(&digits)?)
    }

    /// Waits for the results of an update and completes its report. `step` counts from 1.
    pub(super) fn complete(
        &mut self,
        report: &mut UpdateReport,
        result: DeferredResult,
        step: u64,
        distributed: &Distributed,
    ) -> Result<(), TrainError> {
        match result {
            DeferredResult::Norm(norm) => report.gradient_norm = Some(norm.take()?),
            DeferredResult::Scale(decision) => {
                self.take_note(&decision.wait()?, report, step, distributed)?;
            }
        }
        Ok(())
    }

    /// Records the decision about the loss scale in step `step`, counted from 1. Returns true if the step was skipped.
    fn take_note(
        &mut self,
        decision: &Tensor,
        report: &mut UpdateReport,
        step: u64,
        distributed: &Distributed,
    ) -> Result<bool, TrainError> {
        let Some(scale) = &mut self.loss_scale else { return Ok(false) };
        let outcome = scale.apply_report(decision)?;
        (report.loss_scale, report.left_out) = (Some(outcome.scale), outcome.left_out);
        if outcome.in_a_row > LossScale::MOST_LEFT_OUT {
            let (in_a_row, scale) = (LossScale::MOST_LEFT_OUT, scale.scale());
            let elsewhere = distributed.rank() > 0;
            return Err(TrainError::Overflow { step, in_a_row, scale, elsewhere });
        }
        report.gradient_norm = self.clip_norm.filter(|_| !outcome.left_out).map(|_| outcome.norm);
        if !scale.is_host() {
            // The host has counted skipped steps.
            let mut updater = self.updater();
            updater.optimizer.note_left_out(outcome.all_left_out);
            if let Some(ema) = &mut updater.ema {
                ema.note_left_out(outcome.all_left_out);
            }
        }
        Ok(outcome.left_out)
    }

    /// Resumes after step `step`.
    pub(super) fn resume_at(&self, step: u64) -> Result<(), TrainError> {
        self.network.parallel()?.resume_at(step.saturating_sub(self.begin));
        Ok(())
    }

    /// Exchanges weights and averages, if there are any.
    pub(super) fn swap_averages(&mut self) -> Result<(), TrainError> {
        if self.updater().ema.is_some() {
            let (updater, shows) = (self.updater.clone(), &mut self.shows_averages);
            self.network.update(|params| {
                swap(&updater, params)?;
                *shows = !*shows;
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Puts the weights back in place of averages, without communication.
    pub(super) fn hide_averages(&mut self) -> Result<(), TrainError> {
        if std::mem::take(&mut self.shows_averages) {
            swap(&self.updater, self.network.parallel()?.params())?;
        }
        Ok(())
    }

    /// Shares the network anew among the survivors of a world that broke after `step` steps, each with its own state. See
    /// [`TrainState::continue_among_survivors`](super::state::TrainState::continue_among_survivors).
    pub(super) fn continue_among_survivors(
        &mut self,
        distributed: &Distributed,
        config: &Config,
        step: u64,
        (until, ranks): (u64, usize),
        threads: usize,
    ) -> Result<(), TrainError> {
        let of_network = |step: u64| step.saturating_sub(self.begin);
        if self.salvaged.is_none() {
            let (updater, shows) = (self.updater.clone(), std::mem::take(&mut self.shows_averages));
            self.salvaged =
                self.network.parallel()?.salvage(of_network(step), &mut |params| match shows {
                    true => swap(&updater, params),
                    false => Ok(()),
                })?;
        }
        // Kept until all is done: another rank may be lost before.
        let cannot = || TrainError::Setup("the strategy cannot go on without a rank".to_owned());
        let own = self.salvaged.clone().ok_or_else(cannot)?;
        let catch_up = CatchUp { until: of_network(until), gradient_scale: ranks as f64 };
        self.network.share(distributed, config, threads, Some(catch_up))?;
        let parallel = self.network.parallel()?;
        let rule: SharedUpdate = self.updater.clone();
        parallel.set_optimizer(&rule)?;
        parallel.load_own_state(own)?;
        self.restore_freeze(step)?;
        self.network.broadcast_state()?;
        self.salvaged = None;
        Ok(())
    }

    /// Bytes of optimizer state, averages included.
    pub(super) fn state_bytes(&self) -> usize {
        let updater = self.updater();
        updater.optimizer.state_bytes() + updater.ema.as_ref().map_or(0, Ema::bytes)
    }
}

//! A network that is learnt, and everything that changes with it.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{Device, Tensor};
use phalanx_sharding::{CatchUp, OptimizerUpdate, ReducedStep, ShardRole, SharedUpdate};
use phalanx_tensor::backend::{Download, ScaledStep};
use phalanx_tensor::optim::{
    Ema, LossScale, LossScaleState, Optimizer, Schedule, clip_by_squares, clip_to_norm, exact_grad_squares,
    grad_sum_of_squares,
};
use phalanx_tensor::{
    Array, ComputeDevice, Context, LossFactor, ParamBucket, TensorError, Value as Variable,
};
use serde_json::{Map, Value};

use crate::config::{Config, Offload};
use crate::engine::checkpoint::{Cut, is_codec_state};
use crate::engine::distributed::{Distributed, Network};
use crate::engine::observer::UpdateReport;
use crate::engine::training::Measure;
use crate::engine::{Plan, TrainError, optimize, precision};
use phalanx_checkpoint::{EMA, MODEL, Reader};

/// How the names of a rank's own state of the optimizer and of averages begin.
const OPTIMIZER: &str = "optimizer.";

/// Whether a rank's own state of this name is of the optimizer or of averages, and not of the strategy.
pub(super) fn is_optimizers(name: &str) -> bool {
    name.starts_with(OPTIMIZER)
}

/// A network with its optimizer, schedule, averages, clipping and loss scale.
pub(super) struct Trainable {
    pub(super) network: Network,
    /// Shared with the server on this rank, if the strategy has servers.
    updater: Arc<Mutex<Updater>>,
    schedule: Schedule,
    /// The first step that changes it.
    begin: u64,
    clip_norm: Option<f64>,
    loss_scale: Option<LossScale>,
    /// Whether averages are in the place of weights.
    shows_averages: bool,
    /// What this rank had for itself when a rank was lost, until those who are left go on from it.
    salvaged: Option<Vec<(String, Vec<f32>)>>,
}

/// The optimizer, and the averages that follow every one of its steps.
#[derive(Debug)]
struct Updater {
    optimizer: Box<dyn Optimizer>,
    ema: Option<Ema>,
    /// What a device has decided about the step that comes next.
    scaled: Option<ScaledStep>,
    context: Arc<Context>,
}

/// What a GPU knows of an update and the host does not yet.
pub(super) enum Coming {
    /// The norm of the gradients.
    Norm(Measure),
    /// What the scale of the loss has come to.
    Scale(Download),
}

impl OptimizerUpdate for Updater {
    fn apply(&mut self, params: &[ParamBucket], learning_rate: f64) -> Result<(), TensorError> {
        let scaled = self.scaled.take();
        self.optimizer.scaled_step(params, learning_rate, scaled.as_ref(), &self.context)?;
        self.ema.as_mut().map_or(Ok(()), |ema| ema.scaled_update(params, scaled.as_ref(), &self.context))
    }
}

/// Exchanges weights and averages.
fn swap(updater: &Mutex<Updater>, params: &[ParamBucket]) -> Result<(), TensorError> {
    let mut updater = updater.lock().unwrap_or_else(PoisonError::into_inner);
    updater.ema.as_mut().map_or(Ok(()), |ema| ema.swap(params))
}

impl Trainable {
    /// For a network that is shared already, as `config` says for it; it changes in the steps `steps` of the plan. What lies in
    /// files lies in the run's folder, apart by rank.
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
        let mut optimizer = optimize::optimizer(config, state.clone());
        optimizer.reserve(network.parallel()?.params())?;
        let mut ema = optimize::averages(config, state);
        if let Some(ema) = &mut ema {
            ema.reserve(network.parallel()?.params())?;
        }
        // Steps are computed where the optimizer keeps its state. Where servers update, or ranks meet in other ways, the host decides
        // what becomes of a step.
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
            clip_norm: (config.train.clip_norm > 0.0).then_some(config.train.clip_norm),
            loss_scale,
            shows_averages: false,
            salvaged: None,
        })
    }

    fn updater(&self) -> MutexGuard<'_, Updater> {
        self.updater.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the next loss is multiplied by.
    pub(super) fn loss_factor(&self) -> Result<LossFactor, TensorError> {
        self.loss_scale.as_ref().map_or(Ok(LossFactor::default()), |scale| Ok(scale.factor()?.into()))
    }

    /// Takes over how far the scale of a loss is that several networks have together.
    pub(super) fn share_loss_scale(&mut self, with: Option<&Array>) -> Result<(), TensorError> {
        match (&mut self.loss_scale, with) {
            (Some(own), Some(other)) => own.follow(other),
            _ => Ok(()),
        }
    }

    /// How far the scale of the loss is.
    pub(super) fn loss_scale_progress(&self) -> Result<Option<Array>, TensorError> {
        self.loss_scale.as_ref().map(LossScale::progress).transpose()
    }

    /// Changes the weights in step `step` (counted from 0) by the gradients, or leaves them, on all ranks, if the loss is scaled and a
    /// gradient of any rank is not finite. What a GPU decides or computes for the report comes later than it.
    pub(super) fn update(
        &mut self,
        reduced: ReducedStep<'_>,
        distributed: &Distributed,
        step: u64,
        context: &Context,
    ) -> Result<(UpdateReport, Option<Coming>), TrainError> {
        let params = reduced.params();
        let mut report = UpdateReport {
            network: self.network.name().to_owned(),
            learning_rate: self.schedule.lr(step.saturating_sub(self.begin)),
            ..UpdateReport::default()
        };
        let (mut coming, mut decided) = (None, None);
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
                // A device scales by what it has found itself, and the norm is read later.
                (None, Some(max)) if !squares.is_host() => {
                    clip_by_squares(params, &squares, max, context)?;
                    let root = |squares: &Tensor| Ok(f64::from(squares.to_vec0::<f32>()?).sqrt());
                    coming = Some(Coming::Norm(Measure::read(&Variable::constant(squares), root)?));
                }
                (None, Some(max)) => {
                    let norm = squares.number()?.sqrt();
                    report.gradient_norm = Some(clip_to_norm(params, norm, max, context)?);
                }
                (None, None) => {}
            }
        }
        let rule: SharedUpdate = self.updater.clone();
        reduced.update_with(&rule, report.learning_rate)?;
        if let Some(scaled) = decided {
            // After the update, so that nothing lies between that and what comes before where steps are recorded.
            coming = Some(Coming::Scale(scaled.begin_read()?));
        }
        Ok((report, coming))
    }

    /// The sum of the squares of all gradients, over all ranks.
    fn squares(&self, reduced: &ReducedStep<'_>, context: &Context) -> Result<Array, TrainError> {
        let params = reduced.params();
        if !self.network.is_logical() {
            let squares = grad_sum_of_squares(params, context)?;
            reduced.sum(&squares)?;
            return Ok(squares);
        }
        // Which rank owns which of them must not show.
        let digits = exact_grad_squares(params, context)?;
        reduced.sum(&digits)?;
        Ok(digits.backend(context).exact_squares_value(&digits)?)
    }

    /// Completes the report of an update of step `step` (counted from 1) by what has come of it, for which this waits.
    pub(super) fn complete(
        &mut self,
        report: &mut UpdateReport,
        coming: Coming,
        step: u64,
        distributed: &Distributed,
    ) -> Result<(), TrainError> {
        match coming {
            Coming::Norm(norm) => report.gradient_norm = Some(norm.take()?),
            Coming::Scale(told) => drop(self.take_note(&told.wait()?, report, step, distributed)?),
        }
        Ok(())
    }

    /// Learns and reports what the scale of the loss has come to in step `step` (counted from 1). True if the step was left out.
    fn take_note(
        &mut self,
        told: &Tensor,
        report: &mut UpdateReport,
        step: u64,
        distributed: &Distributed,
    ) -> Result<bool, TrainError> {
        let Some(scale) = &mut self.loss_scale else { return Ok(false) };
        let outcome = scale.apply_report(told)?;
        (report.loss_scale, report.left_out) = (Some(outcome.scale), outcome.left_out);
        if outcome.in_a_row > LossScale::MOST_LEFT_OUT {
            let (in_a_row, scale) = (LossScale::MOST_LEFT_OUT, scale.scale());
            let elsewhere = distributed.rank() > 0;
            return Err(TrainError::Overflow { step, in_a_row, scale, elsewhere });
        }
        report.gradient_norm = self.clip_norm.filter(|_| !outcome.left_out).map(|_| outcome.norm);
        if !scale.is_host() {
            // The host has counted them as steps like any other.
            let mut updater = self.updater();
            updater.optimizer.note_left_out(outcome.all_left_out);
            if let Some(ema) = &mut updater.ema {
                ema.note_left_out(outcome.all_left_out);
            }
        }
        Ok(outcome.left_out)
    }

    /// Training goes on after step `step`.
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

    /// Has the weights in their place again where averages are, in the memory of this rank alone.
    pub(super) fn hide_averages(&mut self) -> Result<(), TrainError> {
        if std::mem::take(&mut self.shows_averages) {
            swap(&self.updater, self.network.parallel()?.params())?;
        }
        Ok(())
    }

    /// Shares the network anew among those who are left of a world that was broken after `step` steps: each goes on from what it
    /// has. They take the steps from `until` on alike, and each has taken its part among `ranks` ranks before.
    pub(super) fn go_on(
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
        // It stays until all is well: another rank may be lost meanwhile.
        let cannot = || TrainError::Setup("the strategy cannot go on without a rank".to_owned());
        let own = self.salvaged.clone().ok_or_else(cannot)?;
        let catch_up = CatchUp { until: of_network(until), gradient_scale: ranks as f64 };
        self.network.share(distributed, config, threads, Some(catch_up))?;
        let parallel = self.network.parallel()?;
        let rule: SharedUpdate = self.updater.clone();
        parallel.set_optimizer(&rule)?;
        parallel.load_own_state(own)?;
        self.network.broadcast_state()?;
        self.salvaged = None;
        Ok(())
    }

    /// Bytes of optimizer state, averages included, that are held.
    pub(super) fn state_bytes(&self) -> usize {
        let updater = self.updater();
        updater.optimizer.state_bytes() + updater.ema.as_ref().map_or(0, Ema::bytes)
    }

    /// Copies what a rank of this role has to write of the optimizer's state and of averages, and adds to `state` what the index has
    /// to say, of the counts of steps as `counts_of_all` knows them.
    pub(super) fn save(
        &self,
        role: ShardRole,
        counts_of_all: impl FnOnce([u64; 2]) -> Result<[u64; 2], TrainError>,
        cut: &mut Cut,
        state: &mut Map<String, Value>,
    ) -> Result<(), TrainError> {
        // The counts are the same on all ranks that update; those that write none of the state ask for that of nothing.
        let params = if role.saves(role.optimizer) { self.network.parallel()?.params() } else { &[] };
        let updater = self.updater();
        let (steps, mut named) = updater.optimizer.state(params)?;
        let mut counts = [steps, 0];
        let averages = updater.ema.as_ref().map(|ema| ema.state(params)).transpose()?;
        if let Some((updates, averages)) = averages {
            counts[1] = updates;
            named.extend(averages);
        }
        drop(updater);
        cut.state(named);
        let [steps, updates] = counts_of_all(counts)?;
        let mut tell = |key: &str, value: Value| state.insert(self.key(key), value);
        tell("optimizer_steps", Value::from(steps));
        let scale = self.loss_scale.as_ref().map(LossScale::state);
        if let Some(LossScaleState { scale, good_steps, left_out }) = scale {
            tell("loss_scale", Value::from(scale));
            tell("loss_scale_good_steps", Value::from(good_steps));
            tell("loss_scale_left_out", Value::from(left_out));
        }
        if self.updater().ema.is_some() {
            tell("ema_updates", Value::from(updates));
        }
        Ok(())
    }

    /// How many steps the optimizer and averages have taken, where those of some ranks take none. Every rank calls this at the same
    /// place.
    pub(super) fn counts(&self, distributed: &Distributed, own: [u64; 2]) -> Result<[u64; 2], TrainError> {
        if !distributed.has_servers() {
            return Ok(own);
        }
        // The optimizer of a rank that owns no parameters takes no steps.
        let owns = self.network.parallel()?.params().iter().any(|param| !param.owned().is_empty());
        let own = if owns { own } else { [0, 0] };
        let told = distributed.gather_text(&format!("{} {}", own[0], own[1]))?;
        let told = told.iter().filter_map(|told| told.split_once(' '));
        let number = |text: &str| text.parse::<u64>().unwrap_or(0);
        Ok(told.fold([0, 0], |most, (steps, updates)| {
            [most[0].max(number(steps)), most[1].max(number(updates))]
        }))
    }

    /// What this rank has of the optimizer's state and of averages, by name: `{kind}.{parameter}`.
    pub(super) fn named_state(&self) -> Result<Vec<(String, Tensor)>, TrainError> {
        let (params, updater) = (self.network.parallel()?.params(), self.updater());
        let (_, mut named) = updater.optimizer.state(params)?;
        if let Some(ema) = &updater.ema {
            named.extend(ema.state(params)?.1);
        }
        Ok(named)
    }

    /// That, as numbers by name: where each rank has its own.
    pub(super) fn own_state(&self) -> Result<Vec<(String, Vec<f32>)>, TrainError> {
        let flat = |(name, tensor): (String, Tensor)| {
            let values = tensor.flatten_all().and_then(|flat| flat.to_vec1()).map_err(TensorError::from)?;
            Ok((format!("{OPTIMIZER}{name}"), values))
        };
        self.named_state()?.into_iter().map(flat).collect()
    }

    /// Takes over what [`Trainable::own_state`] gave, after the state that all had in common.
    pub(super) fn load_own_state(&mut self, own: &[(String, Vec<f32>)]) -> Result<(), TrainError> {
        let params = self.network.parallel()?.params();
        let shapes = params.iter().flat_map(ParamBucket::owned_entries);
        let shapes: std::collections::BTreeMap<_, _> =
            shapes.map(|entry| (entry.name, entry.shape)).collect();
        let mut named = Vec::new();
        for (name, values) in own {
            let Some(name) = name.strip_prefix(OPTIMIZER) else { continue };
            let Some(shape) = name.split_once('.').and_then(|(_, param)| shapes.get(param)) else { continue };
            let tensor = Tensor::from_slice(values, shape, &Device::Cpu).map_err(TensorError::from)?;
            named.push((name.to_owned(), tensor));
        }
        let mut updater = self.updater();
        let (steps, _) = updater.optimizer.state(&[])?;
        updater.optimizer.load_state(params, steps, &named)?;
        if let Some(ema) = &mut updater.ema {
            let (updates, _) = ema.state(&[])?;
            ema.load_state(params, updates, &named)?;
        }
        Ok(())
    }

    /// Reads what this rank holds of the optimizer's state and of averages, and nothing else.
    pub(super) fn load(
        &mut self,
        (step, saved): (u64, &Map<String, Value>),
        reader: &Reader,
    ) -> Result<(), TrainError> {
        let count = |key: &str| saved.get(&self.key(key)).and_then(Value::as_u64);
        let (steps, updates) = (count("optimizer_steps"), count("ema_updates"));
        let [steps, updates] = [steps, updates].map(|count| count.unwrap_or(step));
        let scale = saved.get(&self.key("loss_scale")).and_then(Value::as_f64);
        let [good_steps, left_out] =
            ["loss_scale_good_steps", "loss_scale_left_out"].map(|key| count(key).unwrap_or(0));
        let kinds: Vec<&str> =
            reader.kinds().filter(|kind| ![MODEL, EMA].contains(kind) && !is_codec_state(kind)).collect();
        let mut updater = self.updater.lock().unwrap_or_else(PoisonError::into_inner);
        let Updater { optimizer, ema, .. } = &mut *updater;
        let mut ema = ema.as_mut().filter(|_| reader.kinds().any(|kind| kind == EMA));
        optimizer.load_state(&[], steps, &[])?;
        // One at a time, so that no more than its part of one kind is there twice.
        for param in self.network.parallel()?.params().iter().filter(|param| param.trainable()) {
            for kind in &kinds {
                let state = reader.state_of(kind, param)?;
                // Other networks may have other optimizers.
                if !state.is_empty() {
                    optimizer.load_state(std::slice::from_ref(param), steps, &state)?;
                }
            }
            if let Some(ema) = &mut ema {
                ema.load_state(std::slice::from_ref(param), updates, &reader.state_of(EMA, param)?)?;
            }
        }
        // A checkpoint of a run without a scale has none; the scale then begins.
        if let (Some(loss_scale), Some(scale)) = (&mut self.loss_scale, scale) {
            loss_scale.load_state(LossScaleState { scale, good_steps, left_out })?;
        }
        Ok(())
    }

    /// What the index of a checkpoint calls a number of this network.
    fn key(&self, what: &str) -> String {
        match self.network.name() {
            "" => what.to_owned(),
            name => format!("{name}.{what}"),
        }
    }
}

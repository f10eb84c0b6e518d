//! Checkpoints of a trained network's optimizer state, averages and loss scale.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::PoisonError;

use candle_core::{Device, Tensor};
use phalanx_checkpoint::{EMA, MODEL, Reader};
use phalanx_sharding::ShardRole;
use phalanx_tensor::optim::{LossScale, LossScaleState};
use phalanx_tensor::{Param, ParamBucket, TensorError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::freeze::trained_now;
use super::{Trainable, Updater};
use crate::engine::TrainError;
use crate::engine::checkpoint::{CheckpointParts, is_codec_state};
use crate::engine::distributed::Distributed;

/// The entry of the index with the steps before the first updates.
const FIRST_STEPS: &str = "optimizer_first_steps";

/// The prefix of a rank's own state of the optimizer and of averages.
const OPTIMIZER: &str = "optimizer.";

/// The counts of an optimizer and its averages.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(in crate::engine::train_loop) struct UpdateCounts {
    /// Steps of the optimizer.
    steps: u64,
    /// Updates of averages.
    averages: u64,
    /// The steps before the first update of parameters that were frozen until then.
    first_steps: BTreeMap<String, u64>,
}

/// True if a rank's own state of this name belongs to the optimizer or to averages, not to the strategy.
pub(in crate::engine::train_loop) fn is_optimizers(name: &str) -> bool {
    name.starts_with(OPTIMIZER)
}

/// The kinds of optimizer state in a checkpoint.
fn optimizer_kinds(reader: &Reader) -> impl Iterator<Item = &str> {
    reader.kinds().filter(|kind| ![MODEL, EMA].contains(kind) && !is_codec_state(kind))
}

impl Trainable {
    /// Copies the optimizer state and averages that a rank of this role writes, and adds to the entries of the index. `counts_of_all`
    /// returns the counts of steps and of averages over all ranks.
    pub(in crate::engine::train_loop) fn save(
        &self,
        role: ShardRole,
        counts_of_all: impl FnOnce(UpdateCounts) -> Result<UpdateCounts, TrainError>,
        parts: &mut CheckpointParts,
        state: &mut Map<String, Value>,
    ) -> Result<(), TrainError> {
        // Ranks that write no state ask for the counts alone. Frozen parameters have none yet.
        let params = self.network.parallel()?.params();
        let params = if role.saves(role.optimizer) { trained_now(params) } else { Vec::new() };
        let updater = self.updater();
        let (steps, mut named) = updater.optimizer.state(&params)?;
        let first_steps = updater.optimizer.first_steps();
        let mut counts = UpdateCounts { steps, averages: 0, first_steps };
        let averages = updater.ema.as_ref().map(|ema| ema.state(&params)).transpose()?;
        if let Some((updates, averages)) = averages {
            counts.averages = updates;
            named.extend(averages);
        }
        drop(updater);
        parts.add_state(named)?;
        let UpdateCounts { steps, averages: updates, first_steps } = counts_of_all(counts)?;
        let mut tell = |key: &str, value: Value| state.insert(self.key(key), value);
        tell("optimizer_steps", Value::from(steps));
        if !first_steps.is_empty() {
            tell(FIRST_STEPS, Value::from_iter(first_steps));
        }
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

    /// Returns the counts of steps and of averages over all ranks: those of workers take none if servers update. All ranks call this
    /// together.
    pub(in crate::engine::train_loop) fn counts(
        &self,
        distributed: &Distributed,
        own: UpdateCounts,
    ) -> Result<UpdateCounts, TrainError> {
        if !distributed.has_servers() {
            return Ok(own);
        }
        // The optimizer of a rank that owns no parameters takes no steps.
        let owns = self.network.parallel()?.params().iter().any(|param| !param.owned().is_empty());
        let own = if owns { own } else { UpdateCounts::default() };
        let own = serde_json::to_string(&own).map_err(|error| TrainError::Setup(error.to_string()))?;
        let all = distributed.exchange().gather_text(&own)?;
        let all = all.iter().map(|text| serde_json::from_str::<UpdateCounts>(text).unwrap_or_default());
        Ok(all.fold(UpdateCounts::default(), |mut most, counts| {
            (most.steps, most.averages) = (most.steps.max(counts.steps), most.averages.max(counts.averages));
            for (name, steps) in counts.first_steps {
                let known = most.first_steps.entry(name).or_default();
                *known = steps.max(*known);
            }
            most
        }))
    }

    /// This rank's optimizer state and averages, by name: `{kind}.{parameter}`. Frozen parameters have none yet: with a state their
    /// first update would count from step 1 after it was loaded.
    pub(in crate::engine::train_loop) fn named_state(&self) -> Result<Vec<(String, Tensor)>, TrainError> {
        let params = trained_now(self.network.parallel()?.params());
        let updater = self.updater();
        let (_, mut named) = updater.optimizer.state(&params)?;
        if let Some(ema) = &updater.ema {
            named.extend(ema.state(&params)?.1);
        }
        Ok(named)
    }

    /// This rank's optimizer state and averages as numbers, by name: for strategies whose ranks differ.
    pub(in crate::engine::train_loop) fn own_state(&self) -> Result<Vec<(String, Vec<f32>)>, TrainError> {
        let flat = |(name, tensor): (String, Tensor)| {
            let values = tensor.flatten_all().and_then(|flat| flat.to_vec1()).map_err(TensorError::from)?;
            Ok((format!("{OPTIMIZER}{name}"), values))
        };
        self.named_state()?.into_iter().map(flat).collect()
    }

    /// Loads the state of [`Trainable::own_state`], after the state that all ranks share.
    pub(in crate::engine::train_loop) fn load_own_state(
        &mut self,
        own: &[(String, Vec<f32>)],
    ) -> Result<(), TrainError> {
        let params = self.network.parallel()?.params();
        let shapes = params.iter().flat_map(ParamBucket::owned_entries);
        let shapes: BTreeMap<_, _> = shapes.map(|entry| (entry.name, entry.shape)).collect();
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

    /// Refuses optimizer state of other kinds than the configured optimizer keeps: it would be dropped without a word.
    pub(in crate::engine::train_loop) fn check_kinds(
        &self,
        (step, state): (u64, &Map<String, Value>),
        reader: &Reader,
    ) -> Result<(), TrainError> {
        let steps = state.get(&self.key("optimizer_steps")).and_then(Value::as_u64).unwrap_or(step);
        let names: BTreeSet<&str> = self.network.store().model_params().map(Param::name).collect();
        // Other networks may have other optimizers.
        let is_own = |kind: &&str| reader.tensors(kind).any(|(name, _)| names.contains(name));
        let saved: Vec<String> = optimizer_kinds(reader).filter(is_own).map(str::to_owned).collect();
        let kept: Vec<String> = self.updater().optimizer.kinds().into_iter().map(str::to_owned).collect();
        let same = saved.len() == kept.len() && saved.iter().all(|kind| kept.contains(kind));
        // A network that no step has changed has no state.
        if same || (saved.is_empty() && steps == 0) {
            return Ok(());
        }
        Err(TrainError::OptimizerState { step, network: self.network.name().to_owned(), saved, kept })
    }

    /// Reads this rank's part of the averages alone: the optimizer begins with fresh state.
    pub(in crate::engine::train_loop) fn load_averages(
        &mut self,
        (step, saved): (u64, &Map<String, Value>),
        reader: &Reader,
    ) -> Result<(), TrainError> {
        let updates = saved.get(&self.key("ema_updates")).and_then(Value::as_u64).unwrap_or(step);
        let mut updater = self.updater.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ema) = updater.ema.as_mut().filter(|_| reader.kinds().any(|kind| kind == EMA)) else {
            return Ok(());
        };
        for param in self.network.parallel()?.params().iter().filter(|param| param.trainable()) {
            ema.load_state(std::slice::from_ref(param), updates, &reader.state_of(EMA, param)?)?;
        }
        Ok(())
    }

    /// Reads this rank's part of the optimizer state and of averages.
    pub(in crate::engine::train_loop) fn load(
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
        let kinds: Vec<&str> = optimizer_kinds(reader).collect();
        let mut updater = self.updater.lock().unwrap_or_else(PoisonError::into_inner);
        let Updater { optimizer, ema, .. } = &mut *updater;
        let mut ema = ema.as_mut().filter(|_| reader.kinds().any(|kind| kind == EMA));
        optimizer.load_state(&[], steps, &[])?;
        // One at a time, so that at most one kind of one parameter is in memory twice.
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
        let first_steps = saved.get(&self.key(FIRST_STEPS)).and_then(Value::as_object);
        let before = |name: &str| first_steps.and_then(|first| first.get(name)?.as_u64()).unwrap_or(0);
        let has_state = |name: &&str| kinds.iter().any(|kind| !reader.pieces(kind, name).is_empty());
        let names = self.network.store().params().iter().map(Param::name).filter(has_state);
        optimizer.load_first_steps(names.map(|name| (name.to_owned(), before(name).min(steps))).collect());
        // A run without a loss scale has saved none: it then begins anew.
        if let (Some(loss_scale), Some(scale)) = (&mut self.loss_scale, scale) {
            loss_scale.load_state(LossScaleState { scale, good_steps, left_out })?;
        }
        Ok(())
    }

    /// The key of a number of this network in the index of a checkpoint.
    fn key(&self, what: &str) -> String {
        match self.network.name() {
            "" => what.to_owned(),
            name => format!("{name}.{what}"),
        }
    }
}

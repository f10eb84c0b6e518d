//! Everything that changes while training, and how it is saved.

use std::sync::Arc;

use phalanx_sharding::Held;
use phalanx_tensor::optim::{
    Ema, LossScale, LossScaleState, Optimizer, Schedule, clip_to_norm, grad_sum_of_squares,
};
use phalanx_tensor::{Context, TensorError};
use serde_json::{Map, Value};

use crate::config::Config;
use crate::engine::checkpoint::Cut;
use crate::engine::distributed::Distributed;
use crate::engine::{Plan, Task, TrainError, optimize, precision};
use crate::run::checkpoint::{Checkpoint, EMA, MODEL, PartFile};

/// What came of a step's gradients.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Update {
    /// Their norm, if they are clipped.
    pub(super) norm: Option<f64>,
    /// What the loss was multiplied by.
    pub(super) loss_scale: Option<f64>,
    /// Whether they were not finite and the weights stayed.
    pub(super) left_out: bool,
}

/// A model, its optimizer, and how far they are.
pub(super) struct TrainState {
    pub(super) task: Box<dyn Task>,
    /// Steps done.
    pub(super) step: u64,
    optimizer: Box<dyn Optimizer>,
    schedule: Schedule,
    ema: Option<Ema>,
    clip_norm: Option<f64>,
    loss_scale: Option<LossScale>,
    context: Arc<Context>,
}

impl TrainState {
    pub(super) fn new(
        config: &Config,
        task: Box<dyn Task>,
        plan: &Plan,
        distributed: &Distributed,
        context: Arc<Context>,
    ) -> Result<Self, TensorError> {
        let mut optimizer = optimize::optimizer(config);
        optimizer.reserve(&distributed.units(task.store()))?;
        Ok(Self {
            task,
            step: 0,
            optimizer,
            schedule: optimize::schedule(config, plan)?,
            ema: (config.train.ema > 0.0).then(|| Ema::new(config.train.ema)),
            clip_norm: (config.train.clip_norm > 0.0).then_some(config.train.clip_norm),
            loss_scale: precision::loss_scale(config)?,
            context,
        })
    }

    /// The learning rate of the step that comes next.
    pub(super) fn learning_rate(&self) -> f64 {
        self.schedule.lr(self.step)
    }

    /// What the loss of the step that comes next is multiplied by.
    pub(super) fn loss_scale(&self) -> f64 {
        self.loss_scale.as_ref().map_or(1.0, LossScale::scale)
    }

    /// Changes the weights by the gradients, or leaves them, on all ranks, if the loss is scaled and a gradient of any rank
    /// is not finite.
    pub(super) fn update(&mut self, distributed: &Distributed) -> Result<Update, TrainError> {
        let units = distributed.units(self.task.store());
        let mut update =
            Update { loss_scale: self.loss_scale.as_ref().map(LossScale::scale), ..Update::default() };
        let mut norm = None;
        if self.clip_norm.is_some() || self.loss_scale.is_some() {
            let mut squares = [grad_sum_of_squares(&units, &self.context)?];
            distributed.sum_parts(&mut squares)?;
            norm = Some(squares[0].sqrt());
        }
        if let (Some(loss_scale), Some(norm)) = (&mut self.loss_scale, &mut norm) {
            // Ranks may see different parts of the gradients; what one of them sees counts for all.
            update.left_out = distributed.sum_of(f64::from(u8::from(!norm.is_finite())))? > 0.0;
            if update.left_out {
                let in_a_row = loss_scale.state().left_out;
                if !loss_scale.reject() {
                    let (step, scale) = (self.step + 1, loss_scale.scale());
                    return Err(TrainError::Overflow {
                        step,
                        in_a_row,
                        scale,
                        elsewhere: distributed.rank() > 0,
                    });
                }
            } else {
                *norm /= loss_scale.scale();
                loss_scale.accept(&units, &self.context)?;
            }
        }
        if !update.left_out {
            if let (Some(max), Some(norm)) = (self.clip_norm, norm) {
                update.norm = Some(clip_to_norm(&units, norm, max, &self.context)?);
            }
            self.optimizer.step(&units, self.schedule.lr(self.step), &self.context)?;
            if let Some(ema) = &mut self.ema {
                ema.update(&units, &self.context)?;
            }
        }
        distributed.finish_update()?;
        self.step += 1;
        Ok(update)
    }

    /// Runs `work` with the averaged weights in place, if there are any, all of them in this rank's memory. Every rank calls
    /// this at the same place.
    pub(super) fn with_averages<R>(
        &mut self,
        distributed: &Distributed,
        work: impl FnOnce(&dyn Task) -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        self.swap(distributed)?;
        let task = &*self.task;
        let result = distributed.with_all(|| work(task));
        self.swap(distributed)?;
        result
    }

    /// Runs `work` with the averages in place of the weights, without gathering everything beforehand: whatever `work` runs, all ranks run the same blocks in the same
    /// order, and listen ([`Distributed::listener`]).
    pub(super) fn with_averages_by_block<R>(
        &mut self,
        distributed: &Distributed,
        work: impl FnOnce(&dyn Task) -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        self.swap(distributed)?;
        let result = work(&*self.task);
        // A block that was kept for a backward that does not come leaves memory too.
        distributed.dismiss()?;
        self.swap(distributed)?;
        result
    }

    /// Exchanges weights and averages.
    fn swap(&mut self, distributed: &Distributed) -> Result<(), TrainError> {
        if let Some(ema) = &mut self.ema {
            ema.swap(&distributed.units(self.task.store()))?;
            distributed.finish_update()?;
        }
        Ok(())
    }

    /// Bytes of parameters, of gradients, and of optimizer state (averages included) that are held.
    pub(super) fn bytes(&self, distributed: &Distributed) -> [u64; 3] {
        let [parameters, gradients] = distributed.bytes(self.task.store());
        let averages = self.ema.as_ref().map_or(0, Ema::bytes);
        [parameters, gradients, (self.optimizer.state_bytes() + averages) as u64]
    }

    /// Copies what this rank has to write of a checkpoint, and adds to `state` what the index has to say. Every rank calls
    /// this at the same place.
    pub(super) fn parts(
        &self,
        distributed: &Distributed,
        state: &mut Map<String, Value>,
    ) -> Result<Vec<PartFile>, TrainError> {
        let (store, share) = (self.task.store(), distributed.part());
        let units = distributed.units(store);
        let mut cut = Cut::new(store, &units, share);
        // Parameters that are replicated may have to be brought together first, by all ranks.
        match share.parameters {
            Held::Sharded => cut.own_values(store, &units)?,
            Held::Replicated | Held::Leader => distributed.with_all(|| cut.whole_values(store))?,
        }
        // The counts are the same on all ranks; those that write none of the state ask for that of no unit.
        let units = if share.saves(share.optimizer) { units } else { Vec::new() };
        let (steps, named) = self.optimizer.state(&units)?;
        state.insert("optimizer_steps".to_owned(), Value::from(steps));
        cut.state(named);
        if let Some(loss_scale) = &self.loss_scale {
            let LossScaleState { scale, good_steps, left_out } = loss_scale.state();
            state.insert("loss_scale".to_owned(), Value::from(scale));
            state.insert("loss_scale_good_steps".to_owned(), Value::from(good_steps));
            state.insert("loss_scale_left_out".to_owned(), Value::from(left_out));
        }
        if let Some(ema) = &self.ema {
            let (updates, named) = ema.state(&units)?;
            state.insert("ema_updates".to_owned(), Value::from(updates));
            cut.state(named);
        }
        Ok(cut.files())
    }

    /// Goes on from a checkpoint, saved under whatever strategy by whatever number of ranks: reads what this rank holds, and
    /// nothing else. Returns how many bytes that were. Every rank calls this at the same place, and has the ranks' state
    /// made equal afterwards.
    pub(super) fn load(
        &mut self,
        distributed: &Distributed,
        checkpoint: &Checkpoint,
    ) -> Result<u64, TrainError> {
        let (store, reader) = (self.task.store(), checkpoint.reader());
        reader.read_model(store, &distributed.resident_units(store))?;
        let count =
            |key: &str| checkpoint.state().get(key).and_then(Value::as_u64).unwrap_or(checkpoint.step());
        let (steps, updates) = (count("optimizer_steps"), count("ema_updates"));
        let kinds: Vec<&str> = reader.kinds().filter(|kind| ![MODEL, EMA].contains(kind)).collect();
        let mut ema = self.ema.as_mut().filter(|_| reader.kinds().any(|kind| kind == EMA));
        self.optimizer.load_state(&[], steps, &[])?;
        // A unit at a time, so that no more than its part of one kind is there twice.
        for unit in distributed.units(store).iter().filter(|unit| unit.trainable()) {
            for kind in &kinds {
                let state = reader.state_of(kind, unit)?;
                self.optimizer.load_state(std::slice::from_ref(unit), steps, &state)?;
            }
            if let Some(ema) = &mut ema {
                ema.load_state(std::slice::from_ref(unit), updates, &reader.state_of(EMA, unit)?)?;
            }
        }
        // A checkpoint of a run without a scale has none; the scale then begins.
        let saved = checkpoint.state();
        if let (Some(loss_scale), Some(scale)) =
            (&mut self.loss_scale, saved.get("loss_scale").and_then(Value::as_f64))
        {
            let number = |key: &str| saved.get(key).and_then(Value::as_u64).unwrap_or(0);
            let (good_steps, left_out) = (number("loss_scale_good_steps"), number("loss_scale_left_out"));
            loss_scale.load_state(LossScaleState { scale, good_steps, left_out })?;
        }
        self.step = checkpoint.step();
        Ok(reader.bytes_read())
    }
}

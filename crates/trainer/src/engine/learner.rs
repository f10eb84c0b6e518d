//! Everything that changes while training, and how it is saved.

use std::sync::Arc;

use phalanx_sharding::Held;
use phalanx_tensor::optim::{Ema, Optimizer, Schedule, clip_to_norm, grad_sum_of_squares};
use phalanx_tensor::{Context, TensorError};
use serde_json::{Map, Value};

use super::parts::Cut;
use super::peers::Peers;
use super::{Plan, Task, TrainError, optimize};
use crate::config::Config;
use crate::run::checkpoint::{Checkpoint, EMA, MODEL, PartFile};

/// A model, its optimizer, and how far they are.
pub(super) struct Learner {
    pub(super) task: Box<dyn Task>,
    /// Steps done.
    pub(super) step: u64,
    optimizer: Box<dyn Optimizer>,
    schedule: Schedule,
    ema: Option<Ema>,
    clip_norm: Option<f64>,
    context: Arc<Context>,
}

impl Learner {
    pub(super) fn new(
        config: &Config,
        task: Box<dyn Task>,
        plan: &Plan,
        context: Arc<Context>,
    ) -> Result<Self, TensorError> {
        Ok(Self {
            task,
            step: 0,
            optimizer: optimize::optimizer(config),
            schedule: optimize::schedule(config, plan)?,
            ema: (config.train.ema > 0.0).then(|| Ema::new(config.train.ema)),
            clip_norm: (config.train.clip_norm > 0.0).then_some(config.train.clip_norm),
            context,
        })
    }

    /// The learning rate of the step that comes next.
    pub(super) fn learning_rate(&self) -> f64 {
        self.schedule.lr(self.step)
    }

    /// Changes the weights by the gradients. Returns the gradients' norm if they are clipped.
    pub(super) fn update(&mut self, peers: &Peers) -> Result<Option<f64>, TrainError> {
        let units = peers.units(self.task.store());
        let norm = match self.clip_norm {
            Some(max) => {
                let mut squares = [grad_sum_of_squares(&units, &self.context)?];
                peers.sum_parts(&mut squares)?;
                Some(clip_to_norm(&units, squares[0].sqrt(), max, &self.context)?)
            }
            None => None,
        };
        self.optimizer.step(&units, self.schedule.lr(self.step), &self.context)?;
        if let Some(ema) = &mut self.ema {
            ema.update(&units, &self.context)?;
        }
        peers.finish_update()?;
        self.step += 1;
        Ok(norm)
    }

    /// Runs `work` with the averaged weights in place, if there are any, all of them in this rank's memory. Every rank calls
    /// this at the same place.
    pub(super) fn with_averages<R>(
        &mut self,
        peers: &Peers,
        work: impl FnOnce(&dyn Task) -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        self.swap(peers)?;
        let task = &*self.task;
        let result = peers.with_all(|| work(task));
        self.swap(peers)?;
        result
    }

    /// Exchanges weights and averages.
    fn swap(&mut self, peers: &Peers) -> Result<(), TrainError> {
        if let Some(ema) = &mut self.ema {
            ema.swap(&peers.units(self.task.store()))?;
            peers.finish_update()?;
        }
        Ok(())
    }

    /// Bytes of parameters, of gradients, and of optimizer state (averages included) that are held.
    pub(super) fn bytes(&self, peers: &Peers) -> [u64; 3] {
        let [parameters, gradients] = peers.bytes(self.task.store());
        let averages = self.ema.as_ref().map_or(0, Ema::bytes);
        [parameters, gradients, (self.optimizer.state_bytes() + averages) as u64]
    }

    /// Copies what this rank has to write of a checkpoint, and adds to `state` what the index has to say. Every rank calls
    /// this at the same place.
    pub(super) fn parts(
        &self,
        peers: &Peers,
        state: &mut Map<String, Value>,
    ) -> Result<Vec<PartFile>, TrainError> {
        let (store, share) = (self.task.store(), peers.part());
        let units = peers.units(store);
        let mut cut = Cut::new(store, &units, share);
        // Parameters that are replicated may have to be brought together first, by all ranks.
        match share.parameters {
            Held::Sharded => cut.own_values(store, &units)?,
            Held::Replicated => peers.with_all(|| cut.whole_values(store))?,
        }
        // The counts are the same on all ranks; those that write none of the state ask for that of no unit.
        let units = if share.saves(share.optimizer) { units } else { Vec::new() };
        let (steps, named) = self.optimizer.state(&units)?;
        state.insert("optimizer_steps".to_owned(), Value::from(steps));
        cut.state(named);
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
    pub(super) fn load(&mut self, peers: &Peers, checkpoint: &Checkpoint) -> Result<u64, TrainError> {
        let (store, reader) = (self.task.store(), checkpoint.reader());
        reader.read_model(store, &peers.resident_units(store))?;
        let count =
            |key: &str| checkpoint.state().get(key).and_then(Value::as_u64).unwrap_or(checkpoint.step());
        let (steps, updates) = (count("optimizer_steps"), count("ema_updates"));
        let kinds: Vec<&str> = reader.kinds().filter(|kind| ![MODEL, EMA].contains(kind)).collect();
        let mut ema = self.ema.as_mut().filter(|_| reader.kinds().any(|kind| kind == EMA));
        self.optimizer.load_state(&[], steps, &[])?;
        // A unit at a time, so that no more than its part of one kind is there twice.
        for unit in peers.units(store).iter().filter(|unit| unit.trainable()) {
            for kind in &kinds {
                let state = reader.state_of(kind, unit)?;
                self.optimizer.load_state(std::slice::from_ref(unit), steps, &state)?;
            }
            if let Some(ema) = &mut ema {
                ema.load_state(std::slice::from_ref(unit), updates, &reader.state_of(EMA, unit)?)?;
            }
        }
        self.step = checkpoint.step();
        Ok(reader.bytes_read())
    }
}

/// Loads what a checkpoint says is best for use: the averaged weights where there are some.
pub(super) fn load_for_use(task: &dyn Task, checkpoint: &Checkpoint) -> Result<(), TrainError> {
    let (store, reader) = (task.store(), checkpoint.reader());
    reader.read_model(store, store.units())?;
    for unit in store.units() {
        reader.read_unit(EMA, unit)?;
    }
    Ok(())
}

//! Everything that changes while training, and how it is saved.

use std::path::Path;
use std::sync::Arc;

use phalanx_tensor::io::{load_into, load_safetensors, save_safetensors};
use phalanx_tensor::optim::{Ema, Optimizer, Schedule, clip_to_norm, grad_sum_of_squares};
use phalanx_tensor::{Context, TensorError};
use serde_json::{Map, Value};

use super::peers::Peers;
use super::{Plan, Task, TrainError, optimize};
use crate::config::Config;
use crate::run::checkpoint::Checkpoint;

const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const EMA: &str = "ema.safetensors";

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

    /// The same without gathering everything beforehand: whatever `work` runs, all ranks run the same blocks in the same
    /// order, and listen ([`Peers::listener`]).
    pub(super) fn with_averages_by_block<R>(
        &mut self,
        peers: &Peers,
        work: impl FnOnce(&dyn Task) -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        self.swap(peers)?;
        let result = work(&*self.task);
        // A block that was kept for a backward that does not come leaves memory too.
        peers.dismiss()?;
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

    /// Writes a checkpoint of the whole, the same whatever the strategy: rank 0 does, and the others give it their parts.
    /// Every rank calls this at the same place.
    pub(super) fn save(
        &self,
        peers: &Peers,
        checkpoints: &Path,
        keep: usize,
        mut state: Map<String, Value>,
    ) -> Result<Option<Checkpoint>, TrainError> {
        let units = peers.units(self.task.store());
        let (optimizer_steps, optimizer) = self.optimizer.state(&units)?;
        let optimizer = peers.whole_state(optimizer)?;
        state.insert("optimizer_steps".to_owned(), Value::from(optimizer_steps));
        let ema = self.ema.as_ref().map(|ema| ema.state(&units)).transpose()?;
        let ema = match ema {
            Some((updates, averages)) => {
                state.insert("ema_updates".to_owned(), Value::from(updates));
                Some(peers.whole_state(averages)?)
            }
            None => None,
        };
        let model = peers.with_all(|| match peers.rank() {
            0 => Ok(Some(self.task.store().state_dict()?)),
            _ => Ok(None),
        })?;
        let Some(model) = model else { return Ok(None) };
        let saved = Checkpoint::save(checkpoints, self.step, keep, state, |folder| {
            save_safetensors(&folder.join(MODEL), &model, &[])?;
            save_safetensors(&folder.join(OPTIMIZER), &optimizer, &[])?;
            match &ema {
                Some(averages) => save_safetensors(&folder.join(EMA), averages, &[]),
                None => Ok(()),
            }
        });
        Ok(Some(saved?))
    }

    /// Goes on from a checkpoint, saved under whatever strategy by whatever number of ranks. Every rank calls this at the
    /// same place.
    pub(super) fn load(&mut self, peers: &Peers, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        // The parameters are whole until the ranks' state is made equal.
        peers.summon()?;
        load_into(self.task.store(), &checkpoint.file(MODEL)?, true)?;
        let units = peers.units(self.task.store());
        let count =
            |key: &str| checkpoint.state().get(key).and_then(Value::as_u64).unwrap_or(checkpoint.step());
        let optimizer = peers.own_state(load_safetensors(&checkpoint.file(OPTIMIZER)?)?)?;
        self.optimizer.load_state(&units, count("optimizer_steps"), &optimizer)?;
        if let Some(ema) = self.ema.as_mut().filter(|_| checkpoint.has(EMA)) {
            let averages = peers.own_state(load_safetensors(&checkpoint.file(EMA)?)?)?;
            ema.load_state(&units, count("ema_updates"), &averages)?;
        }
        self.step = checkpoint.step();
        Ok(())
    }
}

/// Loads what a checkpoint says is best for use: the averaged weights where there are some.
pub(super) fn load_for_use(task: &dyn Task, checkpoint: &Checkpoint) -> Result<(), TrainError> {
    let store = task.store();
    load_into(store, &checkpoint.file(MODEL)?, true)?;
    if checkpoint.has(EMA) {
        let averages = load_safetensors(&checkpoint.file(EMA)?)?;
        let named = averages.iter().filter_map(|(name, tensor)| Some((name.strip_prefix("ema.")?, tensor)));
        store.load_state_dict(named)?;
    }
    Ok(())
}

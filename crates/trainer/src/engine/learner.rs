//! Everything that changes while training, and how it is saved.

use std::path::Path;
use std::sync::Arc;

use phalanx_tensor::io::{load_into, load_safetensors, save_safetensors};
use phalanx_tensor::optim::{Ema, Optimizer, Schedule, clip_grad_norm};
use phalanx_tensor::{Context, TensorError};
use serde_json::{Map, Value};

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

    /// Changes the weights by the gradients in the store. Returns the gradients' norm if they are clipped.
    pub(super) fn update(&mut self) -> Result<Option<f64>, TensorError> {
        let units = self.task.store().units();
        let norm = self.clip_norm.map(|max| clip_grad_norm(units, max, &self.context)).transpose()?;
        self.optimizer.step(units, self.schedule.lr(self.step), &self.context)?;
        if let Some(ema) = &mut self.ema {
            ema.update(units, &self.context)?;
        }
        self.step += 1;
        Ok(norm)
    }

    /// Runs `work` with the averaged weights in place, if there are any.
    pub(super) fn with_averages<R>(
        &mut self,
        work: impl FnOnce(&dyn Task) -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        if let Some(ema) = &mut self.ema {
            ema.swap(self.task.store().units())?;
        }
        let result = work(&*self.task);
        if let Some(ema) = &mut self.ema {
            ema.swap(self.task.store().units())?;
        }
        result
    }

    /// Bytes of parameters, of gradients, and of optimizer state (averages included) that are held.
    pub(super) fn bytes(&self) -> [u64; 3] {
        let units = self.task.store().units();
        let held = |bytes: usize| bytes as u64;
        let parameters =
            units.iter().filter(|unit| unit.values().is_some()).map(|unit| held(unit.bytes())).sum();
        let gradients = units.iter().filter(|unit| unit.has_grads()).map(|unit| held(unit.bytes())).sum();
        let averages = self.ema.as_ref().map_or(0, Ema::bytes);
        [parameters, gradients, held(self.optimizer.state_bytes() + averages)]
    }

    /// Writes a checkpoint.
    pub(super) fn save(
        &self,
        checkpoints: &Path,
        keep: usize,
        mut state: Map<String, Value>,
    ) -> Result<Checkpoint, TrainError> {
        let units = self.task.store().units();
        let (optimizer_steps, optimizer) = self.optimizer.state(units)?;
        state.insert("optimizer_steps".to_owned(), Value::from(optimizer_steps));
        let ema = self.ema.as_ref().map(|ema| ema.state(units)).transpose()?;
        if let Some((updates, _)) = &ema {
            state.insert("ema_updates".to_owned(), Value::from(*updates));
        }
        let model = self.task.store().state_dict()?;
        let saved = Checkpoint::save(checkpoints, self.step, keep, state, |folder| {
            save_safetensors(&folder.join(MODEL), &model, &[])?;
            save_safetensors(&folder.join(OPTIMIZER), &optimizer, &[])?;
            match &ema {
                Some((_, averages)) => save_safetensors(&folder.join(EMA), averages, &[]),
                None => Ok(()),
            }
        });
        Ok(saved?)
    }

    /// Goes on from a checkpoint.
    pub(super) fn load(&mut self, checkpoint: &Checkpoint) -> Result<(), TrainError> {
        load_into(self.task.store(), &checkpoint.file(MODEL)?, true)?;
        let units = self.task.store().units();
        let count =
            |key: &str| checkpoint.state().get(key).and_then(Value::as_u64).unwrap_or(checkpoint.step());
        let optimizer = load_safetensors(&checkpoint.file(OPTIMIZER)?)?;
        self.optimizer.load_state(units, count("optimizer_steps"), &optimizer)?;
        if let Some(ema) = self.ema.as_mut().filter(|_| checkpoint.has(EMA)) {
            ema.load_state(units, count("ema_updates"), &load_safetensors(&checkpoint.file(EMA)?)?)?;
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

//! Using what was trained: evaluation and samples of a finished run, or of weights from elsewhere.

use std::path::Path;

use phalanx_tensor::io::load_into;
use phalanx_tensor::{Key, Session, Unit};

use super::{draw, evaluate};
use crate::config::Config;
use crate::engine::checkpoint::newest_checkpoint;
use crate::engine::data::Data;
use crate::engine::distributed::{Distributed, World};
use crate::engine::{Plan, Task, TrainError, optimize, precision, tasks};
use crate::run::RunFolder;
use crate::run::checkpoint::{Checkpoint, EMA};

/// A model with its data, outside of training.
struct Ready {
    task: Box<dyn Task>,
    data: Data,
    session: Session,
}

impl Ready {
    fn new(config: &Config) -> Result<Self, TrainError> {
        let data = Data::open(config, &Distributed::none())?;
        let task = tasks::build(config, &data, Key::new(config.train.seed), true)?;
        let context = precision::context(config, &World::alone())?;
        let session = Session { precision: precision::precision(config), ..Session::evaluation(context) };
        Ok(Self { task, data, session })
    }

    fn evaluate(&self, config: &Config) -> Result<Vec<(String, f64)>, TrainError> {
        let batch = if config.eval.batch > 0 { config.eval.batch } else { config.train.global_batch };
        evaluate(&*self.task, &self.data, &Distributed::none(), &self.session, config.eval.limit, batch)
    }
}

/// Measures of the newest checkpoint of a run on its test split, and the checkpoint's step.
///
/// # Errors
/// If there is no complete checkpoint, or the test images cannot be read.
pub fn evaluate_run(folder: &RunFolder, config: &Config) -> Result<(u64, Vec<(String, f64)>), TrainError> {
    let checkpoint = newest_checkpoint(folder)?;
    let ready = Ready::new(config)?;
    load_for_use(&*ready.task, &checkpoint)?;
    Ok((checkpoint.step(), ready.evaluate(config)?))
}

/// Measures of weights from a file on the configured test split.
///
/// # Errors
/// If the weights do not fit the configured model, or the test images cannot be read.
pub fn evaluate_weights(weights: &Path, config: &Config) -> Result<Vec<(String, f64)>, TrainError> {
    let ready = Ready::new(config)?;
    load_into(ready.task.store(), weights, true)?;
    ready.evaluate(config)
}

/// Draws prompts with the newest checkpoint of a run into a grid, a row for each prompt.
///
/// # Errors
/// If there is no complete checkpoint, the model draws nothing, or the picture cannot be written.
pub fn sample_run(
    folder: &RunFolder,
    config: &Config,
    prompts: &[String],
    seed: u64,
    out: &Path,
) -> Result<u64, TrainError> {
    let checkpoint = newest_checkpoint(folder)?;
    let ready = Ready::new(config)?;
    load_for_use(&*ready.task, &checkpoint)?;
    let (columns, size) = (config.sample.columns, config.model.image_size);
    if !draw(&*ready.task, ready.session.clone(), seed, prompts, columns, size, out)? {
        return Err(TrainError::Setup(format!("a `{}` draws no pictures", config.model.kind)));
    }
    Ok(checkpoint.step())
}

/// What a run of `config` would be, in lines for people: nothing is trained.
///
/// # Errors
/// If the model cannot be built or the images cannot be found.
pub fn describe(config: &Config) -> Result<Vec<String>, TrainError> {
    let ready = Ready::new(config)?;
    let (images, batch) = (ready.data.train_len(), config.train.global_batch);
    let plan = Plan::new(config, images).ok_or(TrainError::NoStep { images, batch })?;
    let store = ready.task.store();
    let trainable: usize = store.units().iter().filter(|unit| unit.trainable()).map(Unit::len).sum();
    let values: usize = store.units().iter().map(Unit::bytes).sum();
    let states = optimize::numbers_per_parameter(config) + usize::from(config.train.ema > 0.0);
    let bytes = |count: usize| format!("{:.1} MiB", count as f64 / f64::from(1 << 20));
    let gradients = trainable * size_of::<f32>();
    let ranks = config.train.ranks.max(1);
    let share = match batch.is_multiple_of(ranks) {
        true => (batch / ranks).to_string(),
        false => format!("{} or {}", batch / ranks, batch.div_ceil(ranks)),
    };
    Ok(vec![
        format!("model: {}", ready.task.describe()),
        format!(
            "parameters: {} ({trainable} trainable) in {} flat units",
            store.num_parameters(),
            store.units().len()
        ),
        format!(
            "memory of each rank, activations not counted: parameters {}, gradients {}, optimizer {}",
            bytes(values),
            bytes(gradients),
            bytes(states * gradients)
        ),
        format!("data: {}, {images} training images", ready.data.describe()),
        format!("steps: {} in an epoch, {} in all", plan.steps_per_epoch, plan.stop),
        format!("each of {ranks} ranks takes {share} images a step"),
    ])
}

/// Loads what a checkpoint says is best for use: the averaged weights where there are some.
fn load_for_use(task: &dyn Task, checkpoint: &Checkpoint) -> Result<(), TrainError> {
    let (store, reader) = (task.store(), checkpoint.reader());
    reader.read_model(store, store.units())?;
    for unit in store.units() {
        reader.read_unit(EMA, unit)?;
    }
    Ok(())
}

//! The networks of a training, ready for inference on one device.

use std::path::Path;
use std::sync::Arc;

use phalanx_tensor::{Context, Session};
use phalanx_weights::{HeadRule, load, load_adapters, load_checkpoint, load_exported};

use super::{TrainedModel, TrainedWeights};
use crate::engine::device::Device;
use crate::engine::distributed::Cores;
use crate::engine::training::{BuildTarget, Built, Task, Weights};
use crate::engine::{TrainError, precision};
use phalanx_config::Config;

/// Loads weights of another program.
fn load_foreign(built: &Built, path: &Path) -> Result<(), TrainError> {
    load(path, &built.learnt_stores(), &built.names, HeadRule::Load)?;
    Ok(())
}

/// Loads the weights of a published model, and the adapters that change it, if there are any (`lora.from`).
fn load_published(built: &Built, folder: &Path, config: &Config) -> Result<(), TrainError> {
    if config.lora.from.is_empty() {
        return load_foreign(built, folder);
    }
    let stores = built.learnt_stores();
    load(folder, &stores, &built.names, HeadRule::Replace)?;
    load_adapters(&config.lora, &stores, &built.names)?;
    Ok(())
}

/// The networks of a training, for inference.
pub(super) struct InferenceModel {
    pub(super) built: Built,
    pub(super) context: Arc<Context>,
    pub(super) session: Session,
}

impl InferenceModel {
    /// Builds the networks of a trained model and loads its weights.
    pub(super) fn open(task: &Task, config: &Config, model: &TrainedModel) -> Result<Self, TrainError> {
        let classes = Some(model.classes.len()).filter(|number| *number > 0);
        match &model.weights {
            TrainedWeights::Checkpoint { checkpoint, averages } => {
                let load = |built: &Built| Ok(load_checkpoint(&built.stores(), checkpoint, *averages)?);
                Self::build(task, config, classes, Weights::Placeholder, load)
            }
            TrainedWeights::Exported(file) => {
                let load = |built: &Built| Ok(load_exported(&built.stores(), file)?);
                Self::build(task, config, classes, Weights::Placeholder, load)
            }
            TrainedWeights::Foreign(file) => {
                Self::build(task, config, classes, Weights::Here, |built| load_foreign(built, file))
            }
            TrainedWeights::Published(folder) => {
                Self::build(task, config, classes, Weights::Placeholder, |built| {
                    load_published(built, folder, config)
                })
            }
        }
    }

    /// Builds the networks; `weights` says if files of initial values are read before `load`.
    pub(super) fn build(
        task: &Task,
        config: &Config,
        classes: Option<usize>,
        weights: Weights,
        load: impl FnOnce(&Built) -> Result<(), TrainError>,
    ) -> Result<Self, TrainError> {
        let device = Device::alone(config)?;
        let mut built = task.build(config, classes, BuildTarget::whole(weights, device.compute()))?;
        load(&built)?;
        let listener = built.ready(config)?;
        let threads = Cores::of(config, &device, None, false)?.threads(config.train.threads);
        let context = precision::context(config, threads)?;
        let (precision, device) = (config.train.precision, device.compute().clone());
        // Parts that are gathered for each use are other arrays each time.
        let kept_weights = listener.is_none().then(Arc::default);
        let session =
            Session { precision, device, listener, kept_weights, ..Session::evaluation(context.clone()) };
        Ok(Self { built, context, session })
    }
}

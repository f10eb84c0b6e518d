//! The adapters of the model of a task.

use phalanx_config::Config;
use phalanx_tensor::ComputeDevice;
use phalanx_weights::ModelAdapters;

use crate::engine::TrainError;
use crate::engine::training::{BuildTarget, Task, Weights};

/// Finds the adapters of the model of a task under `config`, on data of this number of classes. `None` if it has none.
///
/// # Errors
/// If the model cannot be built.
pub fn model_adapters(
    task: &Task,
    config: &Config,
    classes: usize,
) -> Result<Option<ModelAdapters>, TrainError> {
    if config.lora.rank == 0 {
        return Ok(None);
    }
    let host = ComputeDevice::host();
    let built = task.build(config, Some(classes), BuildTarget::whole(Weights::Absent, &host))?;
    let loader = task.transformers().map(|models| models.loader);
    Ok(Some(ModelAdapters::of(&built.stores(), config, loader)))
}

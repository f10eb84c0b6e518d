//! The tasks: each model with its loss, its measures and its samples.

mod classifier;
mod clip;
mod cvae;
mod task;
mod text;

use phalanx_tensor::{BuildOptions, Key, StoreBuilder, Value};

pub use task::{Outcome, Task};

use super::data::Data;
use super::error::TrainError;
use crate::config::{Config, ModelConfig, ModelKind, mib};

/// The task that a configuration asks for, with weights drawn from `key`, now or by whoever will hold them.
pub(in crate::engine) fn build(
    config: &Config,
    data: &Data,
    key: Key,
    fill: bool,
) -> Result<Box<dyn Task>, TrainError> {
    // Weights of a file go into whole parameters.
    let fill = fill || !config.model.text_weights.is_empty();
    assemble(config, data.num_classes(), key, fill, text::Texts::new)
}

/// The configured task without any weights: parameters have names, shapes and places in units, and no memory.
pub(in crate::engine) fn layout(config: &Config, num_classes: usize) -> Result<Box<dyn Task>, TrainError> {
    assemble(config, num_classes, Key::new(config.train.seed), false, text::Texts::without_weights)
}

fn assemble(
    config: &Config,
    num_classes: usize,
    key: Key,
    fill: bool,
    texts: impl FnOnce(&ModelConfig) -> Result<text::Texts, TrainError>,
) -> Result<Box<dyn Task>, TrainError> {
    let builder = StoreBuilder::new(BuildOptions {
        key: key.stream("weights"),
        decay_matrices_only: config.optim.decay_matrices_only,
        fill,
        unit_bytes: mib(config.train.unit_mib),
        ..BuildOptions::default()
    });
    Ok(match config.model.kind {
        ModelKind::Cvae => Box::new(cvae::Autoencoder::new(config, builder, texts(&config.model)?)?),
        ModelKind::Clip => Box::new(clip::Contrastive::new(config, builder, texts(&config.model)?)?),
        ModelKind::Resnet18
        | ModelKind::Resnet34
        | ModelKind::Resnet50
        | ModelKind::MobileNetV2
        | ModelKind::Mlp => Box::new(classifier::Classifier::new(config, builder, num_classes)?),
    })
}

/// The number that a scalar on the tape has.
fn number(value: &Value) -> Result<f64, TrainError> {
    Ok(f64::from(value.tensor()?.to_scalar::<f32>()?))
}

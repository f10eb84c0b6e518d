//! The tasks: each model with its loss, its measures and its samples.

mod classifier;
mod clip;
mod cvae;
mod text;

use super::error::TrainError;
use super::training::{Built, Setup, Weights};
use crate::config::{Config, ModelKind};

/// The training that a configuration asks for, on data of so many classes.
pub(in crate::engine) fn build(
    config: &Config,
    num_classes: usize,
    weights: Weights,
) -> Result<Built, TrainError> {
    let mut setup = Setup::new(config, num_classes, weights);
    match config.model.kind {
        ModelKind::Cvae => cvae::autoencoder(&mut setup).and_then(|training| setup.finish(training)),
        ModelKind::Clip => clip::contrastive(&mut setup).and_then(|training| setup.finish(training)),
        ModelKind::Resnet18
        | ModelKind::Resnet34
        | ModelKind::Resnet50
        | ModelKind::MobileNetV2
        | ModelKind::Mlp => classifier::classifier(&mut setup).and_then(|training| setup.finish(training)),
    }
}

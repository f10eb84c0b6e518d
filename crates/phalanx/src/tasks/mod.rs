//! The tasks that come with `phalanx`, a file for each family and a row for each task, and their presets.
//!
//! They use nothing that a task of one's own could not use: [`Setup`](phalanx_trainer::engine::Setup),
//! [`StepInput`](phalanx_trainer::engine::StepInput), [`Training`](phalanx_trainer::engine::Training), [`settings!`](phalanx_config::settings).

mod classifier;
mod text;

mod attributes;
mod autoencoder_kl;
mod clip;
mod cvae;
mod language;
mod mlp;
mod mobilenet_v2;
mod presets;
mod resnet;
mod stackgan;
mod vit;

mod diffusion;

use phalanx_models::ResNetVariant;

pub(crate) use presets::PRESETS;
#[cfg(any(test, fuzzing))]
pub(crate) use stackgan::fuzzing;

use phalanx_trainer::engine::Task;

/// The tasks, the default first.
pub(crate) fn rows() -> Vec<Task> {
    vec![
        cvae::spec().into(),
        clip::spec().into(),
        resnet::spec("resnet18", ResNetVariant::R18).into(),
        resnet::spec("resnet34", ResNetVariant::R34).into(),
        resnet::spec("resnet50", ResNetVariant::R50).into(),
        resnet::spec("resnet101", ResNetVariant::R101).into(),
        mobilenet_v2::spec().into(),
        vit::spec().into(),
        mlp::spec().into(),
        language::gpt2().into(),
        language::llama().into(),
        language::bert().into(),
        language::bert_classifier().into(),
        language::marian().into(),
        autoencoder_kl::spec().into(),
        diffusion::spec().into(),
        stackgan::spec().into(),
        attributes::spec().into(),
    ]
}

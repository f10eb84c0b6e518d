//! Language models that predict the next token of texts.

mod gpt2;
mod llama;
mod text;

use phalanx_models::{LanguageModel, TokenInput};
use phalanx_tensor::Value;
use phalanx_tensor::loss::{CrossEntropyOptions, LossDivisor, RowTargets};
use phalanx_trainer::engine::{StepInput, TrainError, Training, number};

pub(super) use gpt2::spec as gpt2;
pub(super) use llama::spec as llama;

/// Returns the training of a language model: its loss, and that of the test texts.
fn training<M: LanguageModel + 'static>(description: String, model: M) -> Training<M> {
    Training::new(description, model)
        .loss(loss)
        .evaluate(["loss"], |model, step| Ok([number(&loss(model, step)?)?]))
}

/// Computes the mean over the predictions of the whole batch of −log p of the following token.
fn loss<M: LanguageModel>(model: &M, step: &StepInput<'_>) -> Result<Value, TrainError> {
    let input = TokenInput::new(step.batch.tensor("tokens")?)?;
    let hidden = model.hidden(step.tape, &input)?;
    let (labels, weights) = (step.classes("targets")?, step.weights_of_places("mask")?);
    let over = LossDivisor::Sum(step.sum);
    let targets = RowTargets { labels: (&labels).into(), weights: Some(&weights), over };
    Ok(model.loss(step.tape, &hidden, &targets, CrossEntropyOptions::default())?)
}

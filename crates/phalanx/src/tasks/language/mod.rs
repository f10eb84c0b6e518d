//! Language models: those that predict the next token of texts, and encoders.

mod bert;
mod bert_classifier;
mod columns;
mod encoder;
mod filling;
mod gpt2;
mod judging;
mod llama;
mod marian;
mod newest;
mod pairs;
mod settings;
mod text;
mod translating;
mod writer;

use std::path::Path;

use phalanx_models::{LanguageModel, TokenInput};
use phalanx_tensor::loss::{CrossEntropyOptions, LossDivisor, RowTargets};
use phalanx_tensor::ops;
use phalanx_trainer::engine::{KeptFile, Loss, Measure, StepInput, TrainError, Training};

use judging::{PredictedTokens, judge};
use text::Vocabulary;

pub(super) use bert::spec as bert;
pub(super) use bert_classifier::spec as bert_classifier;
pub(super) use gpt2::spec as gpt2;
pub(super) use llama::spec as llama;
pub(super) use marian::spec as marian;

/// The tokenizer, without which the weights of a language model mean nothing.
const TOKENIZER: KeptFile =
    KeptFile { name: phalanx_text::TOKENIZER_FILE, key: "model.tokenizer", is_fixed: true };

/// The sizes, in the format of transformers.
const CONFIG: KeptFile = KeptFile { name: "config.json", key: "model.config", is_fixed: false };

/// The advice about a table of tokens of another size.
const ROWS: &str =
    "its rows are the tokens of the tokenizer, which runs and exported folders keep; set model.tokenizer";

/// Reads the `config.json` of a published model, or of the folder that has it.
fn published<C, E: std::fmt::Display>(
    path: &str,
    read: impl FnOnce(&str) -> Result<C, E>,
) -> Result<C, TrainError> {
    let given = Path::new(path);
    let file = if given.is_dir() { given.join(CONFIG.name) } else { given.to_owned() };
    let problem = |problem: String| TrainError::Setup(format!("model.config: {}: {problem}", file.display()));
    let text = phalanx_data::Links::Follow.read_text(&file).map_err(|error| problem(error.to_string()))?;
    read(&text).map_err(|error| problem(error.to_string()))
}

/// Returns the training of a language model: its loss, and the measures of the test texts. Accuracy is the share
/// of tokens that were the most probable ones, perplexity the exponential of the loss; bits per byte are independent of the tokenizer. A model
/// with experts has a weight of the loss that balances them, and measures it.
fn training<M: LanguageModel + 'static>(
    description: String,
    model: M,
    vocabulary: &Vocabulary,
    balance_weight: Option<f64>,
) -> Training<M> {
    let tokens = vocabulary.tokenizer.as_ref().map(phalanx_text::Tokenizer::vocab);
    let options = CrossEntropyOptions {
        classes: tokens.filter(|tokens| *tokens < vocabulary.rows),
        ..CrossEntropyOptions::default()
    };
    let training = Training::new(description, model)
        .counts("tokens")
        .loss(move |model, step| loss(model, step, options, balance_weight.unwrap_or(0.0)))
        .measures(balance_weight.map(|_| "balance"));
    let lengths = vocabulary.tokenizer.as_ref().map(phalanx_text::Tokenizer::byte_lengths);
    let training = match vocabulary.tokenizer.clone() {
        Some(tokenizer) => training
            .write(move |model, tape, writing, take| writer::write(model, &tokenizer, tape, writing, take)),
        None => training.write(|_, _, _, _| {
            Err(TrainError::Setup(
                "the tokenizer of this model is not known; add its tokenizer.json to the folder".to_owned(),
            ))
        }),
    };
    match lengths {
        Some(lengths) => training
            .evaluate(["loss", "accuracy", "bytes_per_token"], move |model, step| {
                let [loss, right] = evaluate(model, step, options)?;
                Ok([loss, right, bytes(&lengths, step)?])
            })
            .derive(["perplexity", "bits_per_byte"], |means, _| {
                vec![means[0].exp(), means[0] / (std::f64::consts::LN_2 * means[2])]
            }),
        None => training
            .evaluate(["loss", "accuracy"], move |model, step| evaluate(model, step, options))
            .derive(["perplexity"], |means, _| vec![means[0].exp()]),
    }
}

/// Computes the mean over the predictions of the whole batch of −log p of the following token, and of the loss that balances experts.
fn loss<M: LanguageModel>(
    model: &M,
    step: &StepInput<'_>,
    options: CrossEntropyOptions,
    balance_weight: f64,
) -> Result<Loss, TrainError> {
    let (labels, weights) = (step.classes("targets")?, step.weights_of_places("mask")?);
    let states = model.routed(step.tape, &input(step)?, &weights)?;
    let over = LossDivisor::Sum(step.sum);
    let targets = RowTargets { labels: (&labels).into(), weights: Some(&weights), over };
    let loss = model.loss(step.tape, &states.hidden, &targets, options)?;
    let Some(balance) = states.balance else { return Ok(loss.into()) };
    let balance = ops::scale(step.tape, &balance, 1.0 / over.divisor(step.batch.len()))?;
    let measure = Measure::of(&balance)?;
    let loss = match balance_weight {
        0.0 => loss,
        weight => ops::add(step.tape, &loss, &ops::scale(step.tape, &balance, weight)?)?,
    };
    Ok(Loss::new(loss, [measure]))
}

/// Returns the texts of a step.
fn input(step: &StepInput<'_>) -> Result<TokenInput, TrainError> {
    let mut input = TokenInput::new(step.batch.tensor("tokens")?)?;
    if step.batch.has("starts") {
        input.positions = step.value("positions")?;
        input.starts = Some(step.value("starts")?);
    }
    Ok(input)
}

/// Adds up −log p of the following tokens, and those that are the most probable ones.
fn evaluate<M: LanguageModel>(
    model: &M,
    step: &StepInput<'_>,
    options: CrossEntropyOptions,
) -> Result<[f64; 2], TrainError> {
    let hidden = model.hidden(step.tape, &input(step)?)?;
    let (labels, weights) = (step.classes("targets")?, step.weights_of_places("mask")?);
    judge(model, step, &hidden, &PredictedTokens { labels: &labels, weights: &weights }, options)
}

/// Adds up the bytes of text of the predicted tokens.
fn bytes(lengths: &[u32], step: &StepInput<'_>) -> Result<f64, TrainError> {
    let (labels, weights) = (step.classes("targets")?, step.weights_of_places("mask")?);
    let length = |token: u32| f64::from(lengths.get(token as usize).copied().unwrap_or(0));
    Ok(labels.into_iter().zip(weights).map(|(token, weight)| f64::from(weight) * length(token)).sum())
}

//! Language models, and the texts that they write: `gpt2.json`, and the decoders of `reference/`.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_models::{Decoder, DecoderConfig, Gpt2, Gpt2Config, LanguageModel, TokenInput};
use phalanx_tensor::loss::{CrossEntropyOptions, LossDivisor, RowTargets};
use phalanx_tensor::{Context, ParamStore, Result, Session, Tape, ops};

use crate::network::{self, ReferenceNetwork, filled, size};
use crate::report::numbers;
use crate::{ParityError, Quantity, Reference};

/// Compares GPT-2.
pub(super) fn check_gpt2(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    let config = Gpt2Config {
        vocab: size(reference, "vocab_size")?,
        context: size(reference, "n_positions")?,
        width: size(reference, "n_embd")?,
        layers: size(reference, "n_layer")?,
        heads: size(reference, "n_head")?,
        inner: size(reference, "inner_width")?,
        eps: reference.json["config"]["layer_norm_epsilon"].as_f64().ok_or_else(|| reference.lacks("eps"))?,
        ..Gpt2Config::default().with_dropout(0.0)
    };
    let (model, store) = filled(reference, |scope| Gpt2::new(scope, &config))?;
    check(reference, Arc::new(model), store)
}

/// Compares a decoder: Llama, Qwen2 or Qwen3.
pub(super) fn check_decoder(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    let config = DecoderConfig::from_json(&reference.json["config"].to_string())
        .map_err(|error| reference.unknown("configuration", &error.to_string()))?;
    // The dynamic scaling is for texts beyond the context of the file.
    let config = DecoderConfig { context: config.context.max(64), ..config };
    let (model, store) = filled(reference, |scope| Decoder::new(scope, &config))?;
    check(reference, Arc::new(model), store)
}

fn check(
    reference: &Reference<'_>,
    model: Arc<dyn LanguageModel>,
    store: ParamStore,
) -> Result<Vec<Quantity>, ParityError> {
    let rows = ids(&reference.json["inputs"]["values"]);
    let mut quantities = greedy(reference, &*model, &rows)?;
    let input = token_input(&rows)?;
    let (again, input_again) = (model.clone(), input.clone());
    quantities.extend(network::check(
        reference,
        ReferenceNetwork {
            store,
            run: Box::new(move |tape, watch| {
                let hidden = model.hidden(tape, &input)?;
                watch("logits", &model.logits(tape, &hidden)?);
                Ok(())
            }),
            loss: Box::new(move |tape| {
                let hidden = again.hidden(tape, &input_again)?;
                let (labels, weights) = next_tokens(&rows);
                let over = LossDivisor::Sum(f64::from(weights.iter().sum::<f32>()));
                let targets = RowTargets { labels: (&labels).into(), weights: Some(&weights), over };
                Ok((again.loss(tape, &hidden, &targets, CrossEntropyOptions::default())?, Vec::new()))
            }),
            outputs: &["logits"],
            after: Some("logits_after"),
        },
    )?);
    Ok(quantities)
}

/// The following token of each, which the last of a row lacks, and the weights of these targets.
fn next_tokens(rows: &[Vec<u32>]) -> (Vec<u32>, Vec<f32>) {
    let targets = |row: &Vec<u32>| row[1..].iter().copied().chain([0]).collect::<Vec<u32>>();
    let weights = |row: &Vec<u32>| {
        (1..=row.len()).map(|next| f32::from(u8::from(next < row.len()))).collect::<Vec<f32>>()
    };
    (rows.iter().flat_map(targets).collect(), rows.iter().flat_map(weights).collect())
}

/// Compares the most probable continuations of the first tokens of each row.
fn greedy(
    reference: &Reference<'_>,
    model: &dyn LanguageModel,
    rows: &[Vec<u32>],
) -> Result<Vec<Quantity>, ParityError> {
    let recorded = ids(&reference.json["greedy"]["ids"]);
    let mut texts: Vec<Vec<u32>> = rows.iter().map(|row| row[..5].to_vec()).collect();
    let wanted = recorded.first().map_or(0, Vec::len);
    for _ in 0..wanted {
        let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))));
        let hidden = model.hidden(&tape, &token_input(&texts)?)?;
        let last = ops::narrow(&tape, &hidden, 1, texts[0].len() - 1, 1)?;
        let next = model.logits(&tape, &last)?.tensor()?.squeeze(1)?.argmax(1)?.to_vec1::<u32>()?;
        texts.iter_mut().zip(next).for_each(|(text, next)| text.push(next));
    }
    let written: Vec<&[u32]> = texts.iter().map(|text| &text[5..]).collect();
    let recorded: Vec<&[u32]> = recorded.iter().map(Vec::as_slice).collect();
    Ok(vec![Quantity::exact("greedy continuations", &written, &recorded)])
}

fn token_input(rows: &[Vec<u32>]) -> Result<TokenInput> {
    let all: Vec<u32> = rows.concat();
    TokenInput::new(&Tensor::from_vec(all, (rows.len(), rows[0].len()), &Device::Cpu)?)
}

fn ids(json: &serde_json::Value) -> Vec<Vec<u32>> {
    let row = |row| numbers(row).into_iter().map(|id| id as u32).collect();
    json.as_array().into_iter().flatten().map(row).collect()
}

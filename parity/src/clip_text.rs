//! `clip_text.json`: CLIP's tokenizer on awkward texts, and its text encoder on the tokens.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_data::ClipTokenizer;
use phalanx_models::{ClipTextConfig, ClipTextEncoder};
use phalanx_tensor::{BuildOptions, Context, Param, Session, StoreBuilder, Tape};

use crate::report::numbers;
use crate::{ParityError, Quantity, Reference, fill};

const TOLERANCE: f64 = 1e-4;

pub(super) fn check(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    let json = reference.json;
    let list = |key: &str| json[key].as_array().ok_or_else(|| reference.lacks(key));
    let tokenizer = ClipTokenizer::new()?;
    let mut quantities = Vec::new();
    let (mut found, mut expected) = (Vec::new(), Vec::new());
    for (text, ids) in list("texts")?.iter().zip(list("token_ids")?) {
        found.push(tokenizer.tokenize(text.as_str().unwrap_or_default()));
        expected.push(numbers(ids).into_iter().map(|id| id as u32).collect::<Vec<u32>>());
    }
    quantities.push(Quantity::exact("token_ids", &found, &expected));

    let features = features(reference, &expected)?;
    let mut norms = Vec::new();
    for (index, (row, first)) in features.iter().zip(list("features_first8")?).enumerate() {
        let expected = numbers(first);
        let shown = &row[..expected.len().min(row.len())];
        quantities.push(Quantity::vector(&format!("features of text {index}"), shown, &expected, TOLERANCE));
        norms.push(row.iter().map(|value| value * value).sum::<f64>().sqrt());
    }
    let expected: Vec<f64> =
        list("features_l2")?.iter().map(|norm| norm.as_f64().unwrap_or(f64::NAN)).collect();
    quantities.push(Quantity::vector("features_l2", &norms, &expected, TOLERANCE));
    Ok(quantities)
}

/// Computes the pooled features of token ids, by an encoder filled by formula.
fn features(reference: &Reference<'_>, texts: &[Vec<u32>]) -> Result<Vec<Vec<f64>>, ParityError> {
    let size = |key: &str| {
        let size = reference.json["config"][key].as_u64().and_then(|size| usize::try_from(size).ok());
        size.ok_or_else(|| reference.lacks(key))
    };
    let config = ClipTextConfig {
        context: size("context")?,
        vocab: size("vocab")?,
        width: size("width")?,
        heads: size("heads")?,
        layers: size("layers")?,
        embed: size("embed")?,
        causal: true,
    };
    let builder = StoreBuilder::new(BuildOptions::default());
    let encoder = ClipTextEncoder::new(&builder.root(), &config)?;
    let store = builder.build()?;
    for param in store.params() {
        param.set(&Tensor::from_vec(value(param, reference.seed), param.dims(), &Device::Cpu)?)?;
    }

    // The start and end tokens are the two largest ids. The ids between them are reduced to the vocabulary.
    let (start, end) = (config.vocab as u32 - 2, config.vocab as u32 - 1);
    let mut ids = Vec::with_capacity(texts.len() * config.context);
    for text in texts {
        let inner = &text[..text.len().min(config.context.saturating_sub(2))];
        let row_end = ids.len() + config.context;
        ids.push(start);
        ids.extend_from_slice(inner);
        ids.push(end);
        ids.resize(row_end, 0);
    }
    let ids = Tensor::from_vec(ids, (texts.len(), config.context), &Device::Cpu)?;
    let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))));
    let pooled = encoder.forward(&tape, &ids)?.pooled.tensor()?.to_vec2::<f32>()?;
    Ok(pooled.into_iter().map(|row| row.into_iter().map(f64::from).collect()).collect())
}

/// Returns the value of a parameter, as for the classifiers, except: the fan of matrices is the last dimension, and
/// embeddings have half the scale.
fn value(param: &Param, seed: u64) -> Vec<f32> {
    let (name, dims) = (param.name(), param.dims());
    let &[rows, columns] = dims else { return fill::parameter(name, seed, dims) };
    let fan = if name == "text_projection" { rows } else { columns };
    let half = name == "token_embedding.weight" || name == "positional_embedding";
    let scale = (3.0 / fan as f64).sqrt() * if half { 0.5 } else { 1.0 };
    fill::sym(name, seed, rows * columns, scale)
}

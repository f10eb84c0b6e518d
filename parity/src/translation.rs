//! Translation models: `translation.json`, whose layout is Marian's, and `transformer.json` with PyTorch's, once with norms behind the
//! parts of a layer and once in front of them.

use candle_core::{Device, Tensor};
use phalanx_models::{
    FeedForwardActivation, GenerationOptions, Prompt, Sampling, SourceTexts, TranslationConfig,
    TranslationLayout, TranslationSource, TranslationTokens, Translator, generate,
};
use phalanx_tensor::loss::{CrossEntropyOptions, LossDivisor, RowTargets};
use phalanx_tensor::{Context, ParamStore, Result, Session, Tape, Value, ops};
use serde_json::Value as Json;
use std::sync::Arc;

use crate::network::{self, ReferenceNetwork, filled, size};
use crate::report::numbers;
use crate::{ParityError, Quantity, Reference};

/// The recorded texts: those of the source, the tokens that the decoder sees, and those that it should predict.
#[derive(Clone)]
struct Texts {
    source: SourceTexts,
    seen: Value,
    targets: Vec<u32>,
    weights: Vec<f32>,
    /// The places of real target tokens, row·T + column.
    real: Vec<u32>,
}

impl Texts {
    fn new(source: &[Vec<u32>], seen: &[Vec<u32>], targets: &[Vec<u32>], padding: u32) -> Result<Self> {
        let lengths = source.iter().map(|row| row.iter().filter(|token| **token != padding).count() as u32);
        let lengths: Vec<u32> = lengths.collect();
        let targets = targets.concat();
        let real: Vec<u32> =
            (0..targets.len() as u32).filter(|place| targets[*place as usize] != padding).collect();
        Ok(Self {
            source: SourceTexts {
                tokens: array(source)?,
                lengths: Value::constant(Tensor::from_vec(lengths, source.len(), &Device::Cpu)?),
            },
            seen: array(seen)?,
            weights: targets.iter().map(|token| if *token == padding { 0.0 } else { 1.0 }).collect(),
            targets,
            real,
        })
    }
}

/// Compares a Marian model.
pub(super) fn check_marian(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    let mut json = reference.json.clone();
    json["config"]["model_type"] = "marian".into();
    let config = TranslationConfig::from_json(&json["config"].to_string())
        .map_err(|error| reference.unknown("configuration", &error.to_string()))?;
    // Positions are computed and not trained, and the bias of the logits is no parameter.
    let fixed: Vec<String> = json["not_trained"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Json::as_str)
        .map(str::to_owned)
        .collect();
    if let Some(names) = json["names"].as_object_mut() {
        names.retain(|name, _| !fixed.contains(name) && name != "final_logits_bias");
    }
    let reference = &Reference { json: &json, ..*reference };
    let inputs = &json["inputs"];
    let (source, seen, targets) =
        (rows(&inputs["src"]), rows(&inputs["decoder_input"]), rows(&inputs["tgt"]));
    let texts = Texts::new(&source, &seen, &targets, config.tokens.padding)?;
    let (model, store) = filled(reference, |scope| Translator::new(scope, &config))?;
    let mut quantities = greedy(reference, &model, &texts)?;
    quantities.extend(compare(reference, (model, store), texts)?);
    Ok(quantities)
}

/// Compares PyTorch's Transformer, with both places of its norms.
pub(super) fn check_transformer(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    let of = |key: &str| size(reference, key);
    let inputs = &reference.json["inputs"];
    let padding = of("pad")? as u32;
    let texts =
        Texts::new(&rows(&inputs["src"]), &rows(&inputs["tgt_in"]), &rows(&inputs["tgt_out"]), padding)?;
    let mut quantities = Vec::new();
    for (run, pre_norm) in [("post_norm", false), ("pre_norm", true)] {
        let config = TranslationConfig {
            vocab: of("vocab_size")?,
            context: of("max_len")?,
            width: of("d_model")?,
            encoder_layers: of("encoder_layers")?,
            decoder_layers: of("decoder_layers")?,
            encoder_heads: of("nhead")?,
            decoder_heads: of("nhead")?,
            encoder_inner: of("dim_feedforward")?,
            decoder_inner: of("dim_feedforward")?,
            activation: FeedForwardActivation::Relu,
            dropout: 0.0,
            pre_norm,
            layout: TranslationLayout::Torch,
            tokens: TranslationTokens { padding, start: of("bos")? as u32, end: of("eos")? as u32 },
            init_std: 0.02,
        };
        let mut json = reference.json["runs"][run].clone();
        json["config"] = reference.json["config"].clone();
        let reference = &Reference { json: &json, ..*reference };
        let filled = filled(reference, |scope| Translator::new(scope, &config))?;
        quantities.extend(compare(reference, filled, texts.clone())?);
    }
    Ok(quantities)
}

fn compare(
    reference: &Reference<'_>,
    (model, store): (Translator, ParamStore),
    texts: Texts,
) -> Result<Vec<Quantity>, ParityError> {
    let (again, texts_again) = (model.clone(), texts.clone());
    network::check(
        reference,
        ReferenceNetwork {
            store,
            run: Box::new(move |tape, watch| {
                let states = watch_side(
                    &model.encoder_blocks(),
                    tape,
                    (&texts.source.tokens, &[&texts.source.lengths]),
                    watch,
                )?;
                watch("model.encoder", &states);
                let others = [&states, &texts.source.lengths];
                let states = watch_side(&model.decoder_blocks(), tape, (&texts.seen, &others), watch)?;
                watch("model.decoder", &states);
                let real = ops::select_rows(tape, &states, &texts.real)?;
                watch("logits_real_positions", &model.logits(tape, &real)?);
                Ok(())
            }),
            loss: Box::new(move |tape| {
                let Texts { source, seen, targets, weights, .. } = &texts_again;
                let states = again.encode(tape, source)?;
                let hidden = again.decode(tape, &states, &source.lengths, seen)?;
                let over = LossDivisor::Sum(f64::from(weights.iter().sum::<f32>()));
                let targets = RowTargets { labels: targets.into(), weights: Some(weights), over };
                let options = CrossEntropyOptions { smoothing: 0.1, ..CrossEntropyOptions::default() };
                Ok((again.loss(tape, &hidden, &targets, options)?, Vec::new()))
            }),
            outputs: &["logits_real_positions"],
            after: None,
        },
    )
}

/// Runs the blocks of a side one by one. A norm behind the layers takes states alone.
fn watch_side(
    blocks: &[Arc<dyn phalanx_tensor::Block>],
    tape: &Tape,
    (tokens, others): (&Value, &[&Value]),
    watch: &mut dyn FnMut(&str, &Value),
) -> Result<Value> {
    let mut x = tokens.clone();
    for (number, block) in blocks.iter().enumerate() {
        let is_layer = number > 0 && !block.name().ends_with("norm");
        let others = others.iter().filter(|_| is_layer).map(|other| (*other).clone());
        let inputs: Vec<Value> = std::iter::once(x.clone()).chain(others).collect();
        x = tape.run(block, &inputs)?.pop().unwrap_or(x);
        watch(block.name(), &x);
    }
    Ok(x)
}

/// Compares the most probable translations, with a cache and without one.
fn greedy(
    reference: &Reference<'_>,
    model: &Translator,
    texts: &Texts,
) -> Result<Vec<Quantity>, ParityError> {
    let recorded = rows(&reference.json["greedy"]["ids"]);
    let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))));
    let source = TranslationSource::read(model, &tape, &texts.source)?;
    let prompt = Prompt { tokens: vec![model.config().tokens.start], sample: 0 };
    let prompts = vec![prompt; recorded.len()];
    let mut quantities = Vec::new();
    for cached in [true, false] {
        let options = GenerationOptions {
            sampling: Sampling { temperature: 0.0, ..Sampling::default() },
            max_tokens: recorded.first().map_or(0, Vec::len),
            end: None,
            vocab: model.config().vocab,
            cached,
            stops_early: true,
        };
        let written = generate(&source, &tape, &prompts, &options, &mut |_, _| Ok(()))?;
        quantities.push(Quantity::exact("greedy translations", &written, &recorded));
    }
    Ok(quantities)
}

fn rows(json: &Json) -> Vec<Vec<u32>> {
    let row = |row| numbers(row).into_iter().map(|id| id as u32).collect();
    json.as_array().into_iter().flatten().map(row).collect()
}

fn array(rows: &[Vec<u32>]) -> Result<Value> {
    let length = rows.first().map_or(0, Vec::len);
    Ok(Value::constant(Tensor::from_vec(rows.concat(), (rows.len(), length), &Device::Cpu)?))
}

//! BERT with both of its heads: `bert.json`.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_models::{Bert, BertClassifier, BertConfig, BertMasked, EncoderInput};
use phalanx_tensor::loss::{CrossEntropyOptions, LossDivisor, RowTargets, cross_entropy};
use phalanx_tensor::{Context, Result, Session, Tape, Value};
use serde_json::Value as Json;

use crate::network::{self, ReferenceNetwork, filled};
use crate::report::numbers;
use crate::{ParityError, Quantity, Reference};

/// Compares both heads of BERT.
pub(super) fn check(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    let mut config = reference.json["config"].clone();
    config["model_type"] = "bert".into();
    let config = BertConfig::from_json(&config.to_string())
        .map_err(|error| reference.unknown("configuration", &error.to_string()))?;
    let inputs = &reference.json["inputs"];
    let rows = |key: &str| inputs[key].as_array().into_iter().flatten().map(whole).collect::<Vec<_>>();
    let (tokens, types, lengths) = (rows("values"), rows("token_types"), whole(&inputs["lengths"]));
    let input = EncoderInput { tokens: array(&tokens)?, types: array(&types)?, lengths: vector(&lengths)? };
    let length = tokens.first().map_or(0, Vec::len) as u32;
    let labelled = &inputs["labelled"];
    let places: Vec<u32> = labelled["positions"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|place| whole(place).into_iter().fold(0, |row, column| row * length + column))
        .collect();
    let real: Vec<u32> =
        lengths.iter().zip(0..).flat_map(|(used, row)| (0..*used).map(move |at| row * length + at)).collect();
    let of_part = |part: &str| {
        let mut json = reference.json[part].clone();
        json["config"] = reference.json["config"].clone();
        json
    };
    let (masked, classification) = (of_part("masked_lm"), of_part("classification"));
    let masked = Reference { json: &masked, ..*reference };
    let labels = whole(&labelled["original_ids"]);
    let mut quantities = check_masked(&masked, &config, input.clone(), (places, labels), real)?;
    let classification = Reference { json: &classification, ..*reference };
    quantities.extend(check_classifier(&classification, &config, input)?);
    Ok(quantities)
}

fn check_masked(
    reference: &Reference<'_>,
    config: &BertConfig,
    input: EncoderInput,
    (places, labels): (Vec<u32>, Vec<u32>),
    real: Vec<u32>,
) -> Result<Vec<Quantity>, ParityError> {
    let (model, store) = filled(reference, |scope| BertMasked::new(scope, config))?;
    let tape = Tape::forward_only(Session::evaluation(Arc::new(Context::new(1))));
    let states = model.states_at(&tape, &input, &places)?;
    let logits = model.logits(&tape, &states)?.tensor()?.narrow(1, 0, 8)?.flatten_all()?.to_vec1::<f32>()?;
    let logits: Vec<f64> = logits.into_iter().map(f64::from).collect();
    let recorded: Vec<f64> =
        reference.json["logits_at_labelled"].as_array().into_iter().flatten().flat_map(numbers).collect();
    let mut quantities = vec![Quantity::vector("logits at labelled places", &logits, &recorded, 1e-4)];
    let (again, input_again) = (model.clone(), input.clone());
    quantities.extend(network::check(
        reference,
        ReferenceNetwork {
            store,
            run: Box::new(move |tape, watch| {
                watch_blocks(model.bert(), tape, &input, watch)?;
                let states = model.states_at(tape, &input, &real)?;
                watch("logits_real_positions", &model.logits(tape, &states)?);
                Ok(())
            }),
            loss: Box::new(move |tape| {
                let states = again.states_at(tape, &input_again, &places)?;
                let over = LossDivisor::Sum(labels.len() as f64);
                let targets = RowTargets { labels: (&labels).into(), weights: None, over };
                Ok((again.loss(tape, &states, &targets, CrossEntropyOptions::default())?, Vec::new()))
            }),
            outputs: &["logits_real_positions"],
            after: None,
        },
    )?);
    Ok(quantities)
}

fn check_classifier(
    reference: &Reference<'_>,
    config: &BertConfig,
    input: EncoderInput,
) -> Result<Vec<Quantity>, ParityError> {
    let labels = whole(&reference.json["labels"]);
    let (model, store) = filled(reference, |scope| BertClassifier::new(scope, config, labels.len()))?;
    let (again, input_again) = (model.clone(), input.clone());
    network::check(
        reference,
        ReferenceNetwork {
            store,
            run: Box::new(move |tape, watch| {
                let pooled = model.pooled(tape, &input)?;
                watch("bert.pooler", &pooled);
                watch("logits", &model.classify(tape, &pooled)?);
                Ok(())
            }),
            loss: Box::new(move |tape| {
                let logits = again.forward(tape, &input_again)?;
                let over = LossDivisor::Count(labels.len());
                Ok((cross_entropy(tape, &logits, &labels, 0.0, over)?, Vec::new()))
            }),
            outputs: &["logits"],
            after: None,
        },
    )
}

/// Runs the blocks one by one.
fn watch_blocks(
    bert: &Bert,
    tape: &Tape,
    input: &EncoderInput,
    watch: &mut dyn FnMut(&str, &Value),
) -> Result<()> {
    let mut inputs = vec![input.tokens.clone(), input.types.clone()];
    for block in bert.blocks() {
        let states = tape.run(block, &inputs)?;
        states.iter().for_each(|states| watch(block.name(), states));
        inputs = states.into_iter().chain([input.lengths.clone()]).collect();
    }
    Ok(())
}

fn whole(json: &Json) -> Vec<u32> {
    numbers(json).into_iter().map(|number| number as u32).collect()
}

fn array(rows: &[Vec<u32>]) -> Result<Value> {
    let length = rows.first().map_or(0, Vec::len);
    Ok(Value::constant(Tensor::from_vec(rows.concat(), (rows.len(), length), &Device::Cpu)?))
}

fn vector(values: &[u32]) -> Result<Value> {
    Ok(Value::constant(Tensor::from_slice(values, values.len(), &Device::Cpu)?))
}

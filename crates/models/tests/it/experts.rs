//! Decoders with experts: the numbers of transformers, and of one expert alone.

use std::path::Path;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use phalanx_models::{Decoder, DecoderConfig, ExpertsConfig, LanguageModel, TokenInput};
use phalanx_tensor::loss::{self, LossDivisor};
use phalanx_tensor::{BuildOptions, Context, Key, ParamStore, Session, Tape, ops};
use serde_json::Value;

use crate::harness::{build, evaluation_tape, numbers};
use crate::language::{logits, row};

const SMALL: DecoderConfig = DecoderConfig {
    vocab: 13,
    context: 16,
    width: 16,
    layers: 2,
    heads: 4,
    key_heads: 2,
    head_dim: 4,
    inner: 24,
    experts: Some(ExpertsConfig { count: 4, chosen: 2 }),
    eps: 1e-5,
    projection_bias: false,
    head_norms: false,
    tied: false,
    rotary: phalanx_models::RotaryConfig { theta: 10_000.0, scaling: phalanx_models::RotaryScaling::Default },
    init_std: 0.02,
};

/// Fills parameters by their names, as `tests/fixtures/mixtral.py` does.
fn fill(store: &ParamStore) {
    for param in store.params() {
        let start = f64::from(param.name().bytes().map(u32::from).sum::<u32>() % 1000);
        let more = if param.name().contains("norm") { 1.0 } else { 0.0 };
        let value = |at: usize| ((0.3 * (0.37 * at as f64 + start).sin()) as f32) + more;
        let values: Vec<f32> = (0..param.elem_count()).map(value).collect();
        param.set(&Tensor::from_vec(values, param.dims(), &Device::Cpu).expect("as many")).expect("it fits");
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().expect("a number")
}

fn norm(store: &ParamStore, name: &str) -> f64 {
    let grad = store.param(name).expect("known").grad().expect("built").expect("trained");
    let squares = grad.flatten_all().and_then(|t| t.to_vec1::<f32>()).expect("f32");
    squares.iter().map(|g| f64::from(*g) * f64::from(*g)).sum::<f64>().sqrt()
}

#[test]
fn logits_and_gradients_are_those_of_transformers() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/mixtral.json");
    let expected: Value = serde_json::from_slice(&std::fs::read(file).expect("there")).expect("JSON");
    let (model, store) = build(BuildOptions::default(), |scope| Decoder::new(scope, &SMALL));
    fill(&store);
    let tokens: Vec<Vec<u32>> = serde_json::from_value(expected["tokens"].clone()).expect("tokens");
    let tokens = Tensor::new(tokens, &Device::Cpu).expect("rows of one length");
    let tape = Tape::recording(Session::training(Arc::new(Context::new(2)), Key::new(0)));
    let hidden = model.hidden(&tape, &TokenInput::new(&tokens).expect("rows")).expect("it fits");
    let logits = model.logits(&tape, &hidden).expect("it fits");
    for (found, expected) in numbers(&logits).iter().zip(expected["logits"].as_array().expect("logits")) {
        assert!((f64::from(*found) - number(expected)).abs() < 2e-5, "{found} and {expected}");
    }
    let rows = ops::narrow(&tape, &logits, 1, 0, 6).expect("it fits");
    let rows = ops::reshape(&tape, &rows, (12, 13)).expect("it fits");
    let labels = tokens.narrow(1, 1, 6).and_then(|t| t.flatten_all()?.to_vec1::<u32>()).expect("labels");
    let labels = phalanx_tensor::Array::from(&Tensor::new(labels, &Device::Cpu).expect("small"));
    let loss = loss::cross_entropy(&tape, &rows, &labels, 0.0, LossDivisor::Batch).expect("it fits");
    assert!((f64::from(numbers(&loss)[0]) - number(&expected["loss"])).abs() < 1e-5);
    tape.backward(&loss).expect("a number");
    let grads = expected["grads"].as_object().expect("gradients");
    for (name, expected) in grads {
        let found: Vec<(f64, f64)> = match name.strip_prefix("experts of layer 0, ") {
            None => {
                let own = name.replace("mlp.gate", "block_sparse_moe.gate");
                vec![(norm(&store, &own), number(expected))]
            }
            Some(part) => (0..4)
                .map(|index| {
                    let own = format!("model.layers.0.block_sparse_moe.experts.{index}.{part}.weight");
                    (norm(&store, &own), number(&expected[index]))
                })
                .collect(),
        };
        assert!(found.iter().all(|(a, b)| (a - b).abs() < 1e-4 * b), "{name}: {found:?}");
    }
}

#[test]
fn one_expert_of_all_is_the_plain_model() {
    let one = ExpertsConfig { count: 1, chosen: 1 };
    let (experts, stored) = build(BuildOptions::default(), |scope| {
        Decoder::new(scope, &DecoderConfig { experts: Some(one), ..SMALL })
    });
    let (plain, store) = build(BuildOptions::default(), |scope| {
        Decoder::new(scope, &DecoderConfig { experts: None, ..SMALL })
    });
    fill(&store);
    for param in stored.params().iter().filter(|param| !param.name().ends_with("moe.gate.weight")) {
        let name = param.name().replace("block_sparse_moe.experts.0.", "mlp.");
        let name = name.replace("w1", "gate_proj").replace("w2", "down_proj").replace("w3", "up_proj");
        param.set(&store.param(&name).expect("known").tensor().expect("filled")).expect("it fits");
    }
    let input = TokenInput::new(&row(&[3, 1, 4, 1, 5])).expect("a row");
    assert_eq!(logits(&experts, &input), logits(&plain, &input));
}

#[test]
fn experts_without_tokens_have_gradients_of_zero_and_ties_go_to_the_first() {
    let (model, store) = build(BuildOptions::default(), |scope| Decoder::new(scope, &SMALL));
    fill(&store);
    let router = store.param("model.layers.0.block_sparse_moe.gate.weight").expect("known");
    router.set(&Tensor::zeros((4, 16), DType::F32, &Device::Cpu).expect("small")).expect("fits");
    let tape = Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)));
    let hidden = model.hidden(&tape, &TokenInput::new(&row(&[3, 1, 4])).expect("a row")).expect("it fits");
    let sum = ops::sum(&tape, &hidden).expect("a sum");
    tape.backward(&sum).expect("a number");
    let norms = [0, 1, 2, 3]
        .map(|index| norm(&store, &format!("model.layers.0.block_sparse_moe.experts.{index}.w2.weight")));
    assert!(norms[0] > 0.0 && norms[1] > 0.0 && norms[2] == 0.0 && norms[3] == 0.0, "{norms:?}");
}

#[test]
fn texts_have_balances_of_their_own_and_need_a_weight_for_each_token() {
    let (model, store) = build(BuildOptions::default(), |scope| Decoder::new(scope, &SMALL));
    fill(&store);
    let texts = [[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]];
    let weights = [1.0, 1.0, 0.5, 1.0, 0.0, 0.0, 2.0, 1.0, 1.0, 1.0, 1.0, 0.0];
    let balance = |tokens: &Tensor, weights: &[f32]| {
        let input = TokenInput::new(tokens).expect("rows");
        let routed = model.routed(&evaluation_tape(), &input, weights).expect("it fits");
        f64::from(numbers(&routed.balance.expect("experts"))[0])
    };
    let both = Tensor::new(&texts, &Device::Cpu).expect("rows of one length");
    let parts = [0, 1].map(|at| balance(&row(&texts[at]), &weights[6 * at..][..6]));
    assert!((balance(&both, &weights) - parts[0] - parts[1]).abs() < 1e-5, "{parts:?}");
    // Between even use and the same two of four experts.
    assert!(parts[0] / 3.5 < 2.0 && parts[0] / 3.5 > 0.9, "{parts:?}");
    let input = TokenInput::new(&both).expect("rows");
    let error = model.routed(&evaluation_tape(), &input, &weights[..4]).expect_err("too few").to_string();
    assert!(error.contains("4 weights for 2 texts of 6 tokens"), "{error}");
    let (plain, _) = build(BuildOptions::default(), |scope| {
        Decoder::new(scope, &DecoderConfig { experts: None, ..SMALL })
    });
    let routed = plain.routed(&evaluation_tape(), &input, &weights).expect("it fits");
    assert!(routed.balance.is_none());
}

//! `resnet*.json` and `mobilenet_v2.json`: a forward pass, three training steps, and a forward pass after them.
//!
//! Some of these quantities need a wider tolerance. In the last stage, batch norm over the four or eight values of a
//! 32×32 image's map amplifies rounding. After two steps the differences are chaotic. PyTorch's own f32 values then
//! differ from exact arithmetic by more than the usual tolerance; see [`crate::arithmetic`].

use std::sync::Arc;

use candle_core::{DType, Tensor};
use phalanx_models::{MobileNetV2, MobileNetV2Config, ResNet, ResNetConfig, ResNetVariant};
use phalanx_tensor::loss::{LossDivisor, cross_entropy};
use phalanx_tensor::optim::{Optimizer as _, Sgd};
use phalanx_tensor::{BuildOptions, Context, Key, ParamStore, Result, Session, StoreBuilder, Tape, Value};
use serde_json::Value as Json;

use crate::arithmetic::{Arithmetic, compare_widened};
use crate::report::numbers;
use crate::{ParityError, Quantity, Reference, fill};

/// Relative tolerances: before training, of gradients, and after the first step.
const BEFORE: f64 = 1e-4;
const GRADIENTS: f64 = 1e-3;
const LATER: f64 = 2e-3;
/// The floor of gradient norms, as a fraction of the largest. Below it, errors are relative to the floor. The gradient
/// of a bias before a batch norm is only rounding, so it has no relative error.
const FLOOR: f64 = 1e-5;

type Forward = Box<dyn Fn(&Tape, &Value) -> Result<Value>>;

/// The computed values of everything that a file records.
struct Measured {
    parameters: f64,
    logits: Vec<f64>,
    losses: Vec<f64>,
    gradients: Vec<(String, f64)>,
    buffers: Vec<(String, f64)>,
    logits_after: Vec<f64>,
}

pub(super) fn check(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    compare_widened(&recorded(reference)?, |arithmetic| measure(reference, arithmetic), compare)
}

/// Reads the recorded values.
fn recorded(reference: &Reference<'_>) -> Result<Measured, ParityError> {
    let json = reference.json;
    let named = |json: &Json| -> Vec<(String, f64)> {
        let pairs = json.as_object().into_iter().flatten();
        pairs.map(|(name, value)| (name.clone(), value.as_f64().unwrap_or(f64::NAN))).collect()
    };
    let steps = json["train_steps"].as_array().ok_or_else(|| reference.lacks("train_steps"))?;
    Ok(Measured {
        parameters: reference.number("param_count")?,
        logits: numbers(&json["eval_logits"]),
        losses: steps.iter().map(|step| step["loss"].as_f64().unwrap_or(f64::NAN)).collect(),
        gradients: steps.first().map(|step| named(&step["grad_l2"])).unwrap_or_default(),
        buffers: named(&json["buffers_l2_after"]),
        logits_after: numbers(&json["eval_logits_after"]),
    })
}

fn compare(found: &Measured, expected: &Measured) -> Vec<Quantity> {
    let each = |name, found: &[(String, f64)], expected: &[(String, f64)], tolerance| {
        let pairs: Vec<_> = expected
            .iter()
            .map(|(name, expected)| {
                let found =
                    found.iter().find(|(known, _)| known == name).map_or(f64::NAN, |(_, found)| *found);
                (name.clone(), found, *expected)
            })
            .collect();
        Quantity::each(name, &pairs, FLOOR, tolerance)
    };
    let mut quantities = vec![
        Quantity::exact("param_count", &[found.parameters], &[expected.parameters]),
        Quantity::vector("eval_logits", &found.logits, &expected.logits, BEFORE),
    ];
    for (step, expected) in expected.losses.iter().enumerate() {
        let found = found.losses.get(step).copied().unwrap_or(f64::NAN);
        let tolerance = if step == 0 { BEFORE } else { LATER };
        quantities.push(Quantity::vector(
            &format!("loss of step {}", step + 1),
            &[found],
            &[*expected],
            tolerance,
        ));
    }
    quantities.push(each("gradient norms", &found.gradients, &expected.gradients, GRADIENTS));
    quantities.push(each("buffer norms after", &found.buffers, &expected.buffers, LATER));
    quantities.push(Quantity::vector(
        "eval_logits_after",
        &found.logits_after,
        &expected.logits_after,
        LATER,
    ));
    quantities
}

/// Computes the recorded quantities.
fn measure(reference: &Reference<'_>, arithmetic: Arithmetic) -> Result<Measured, ParityError> {
    let json = reference.json;
    let name = json["model"].as_str().ok_or_else(|| reference.lacks("model"))?;
    let (forward, store) = build(reference, name, arithmetic)?;
    let dims: Vec<usize> = numbers(&json["input"]).into_iter().map(|size| size as usize).collect();
    let labels: Vec<u32> = numbers(&json["labels"]).into_iter().map(|label| label as u32).collect();
    let input = fill::sym("input", reference.seed, dims.iter().product(), 1.0);
    let images = Value::constant(arithmetic.tensor("input", input, &dims)?);
    let context = Arc::new(
        Context::from_env(std::thread::available_parallelism().map_or(1, usize::from))
            .map_err(phalanx_tensor::TensorError::from)?,
    );
    let logits = |key: &str| -> Result<Vec<f64>, ParityError> {
        let tape = Tape::forward_only(Session::evaluation(context.clone()));
        let found = doubles(&forward(&tape, &images)?.tensor()?)?;
        // The file lists the logits of the first images only.
        Ok(found.into_iter().take(numbers(&json[key]).len()).collect())
    };

    let parameters = store.num_parameters() as f64;
    let before = logits("eval_logits")?;
    let optimizer = &json["optimizer"];
    let field = |name: &str| optimizer[name].as_f64().ok_or_else(|| reference.lacks(name));
    let nesterov = optimizer["nesterov"].as_bool().unwrap_or(false);
    let mut sgd = Sgd::new(field("momentum")?, nesterov, field("weight_decay")?);
    let lr = field("lr")?;
    let (mut losses, mut gradients) = (Vec::new(), Vec::new());
    for step in 0..json["train_steps"].as_array().map_or(0, Vec::len) {
        let tape = Tape::recording(Session::training(context.clone(), Key::new(0).step(step as u64)));
        let loss = cross_entropy(&tape, &forward(&tape, &images)?, &labels, 0.0, LossDivisor::Batch)?;
        losses.extend(doubles(&loss.tensor()?)?);
        store.zero_grads();
        tape.backward(&loss)?;
        if step == 0 {
            for param in store.params() {
                let Some(grad) = param.grad()? else { continue };
                gradients.push((param.name().to_owned(), norm(&grad)?));
            }
        }
        sgd.step(store.buckets(), lr, &context)?;
    }
    let counters = |name: &str| name.ends_with("num_batches_tracked");
    let buffers = store.buffers().iter().filter(|buffer| !counters(buffer.name()));
    let buffers = buffers.map(|buffer| Ok((buffer.name().to_owned(), norm(&buffer.to_host()?)?)));
    let buffers = buffers.collect::<Result<Vec<_>, ParityError>>()?;
    let logits_after = logits("eval_logits_after")?;
    Ok(Measured { parameters, logits: before, losses, gradients, buffers, logits_after })
}

/// Builds the model that a file names, with parameters filled by formula.
fn build(
    reference: &Reference<'_>,
    name: &str,
    arithmetic: Arithmetic,
) -> Result<(Forward, ParamStore), ParityError> {
    let classes = reference.json["num_classes"].as_u64().ok_or_else(|| reference.lacks("num_classes"))?;
    let classes = usize::try_from(classes).map_err(|_| reference.lacks("num_classes"))?;
    let builder = StoreBuilder::new(BuildOptions { dtype: arithmetic.dtype, ..BuildOptions::default() });
    let scope = builder.root();
    let resnet = |variant| -> Result<Forward> {
        let model = ResNet::new(&scope, &ResNetConfig::new(variant, classes))?;
        Ok(Box::new(move |tape, images| model.forward(tape, images)))
    };
    let forward: Forward = match name {
        "resnet18" => resnet(ResNetVariant::R18)?,
        "resnet34" => resnet(ResNetVariant::R34)?,
        "resnet50" => resnet(ResNetVariant::R50)?,
        "mobilenet_v2" => {
            let dropout = reference.number("dropout")?;
            let config = MobileNetV2Config { dropout, ..MobileNetV2Config::new(classes) };
            let model = MobileNetV2::new(&scope, &config)?;
            Box::new(move |tape, images| model.forward(tape, images))
        }
        _ => return Err(reference.unknown("model", name)),
    };
    let store = builder.build()?;
    for param in store.params() {
        let values = fill::parameter(param.name(), reference.seed, param.dims());
        param.set(&arithmetic.tensor(param.name(), values, param.dims())?)?;
    }
    Ok((forward, store))
}

fn doubles(values: &Tensor) -> Result<Vec<f64>, ParityError> {
    Ok(values.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?)
}

fn norm(values: &Tensor) -> Result<f64, ParityError> {
    Ok(doubles(values)?.iter().map(|value| value * value).sum::<f64>().sqrt())
}

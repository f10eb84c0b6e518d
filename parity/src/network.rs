//! Comparisons of a network with its file: names, outputs, activations, three training steps and gradients.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_tensor::optim::{Adam, Optimizer as _};
use phalanx_tensor::{
    BuildOptions, Context, Key, ParamStore, Result, Scope, Session, StoreBuilder, Tape, Value,
};
use serde_json::Value as Json;

use crate::report::numbers;
use crate::{ParityError, Quantity, Reference, fill};

/// Relative tolerances: before training, of gradients, of later losses, and of outputs after training.
const BEFORE: f64 = 1e-4;
const GRADIENTS: f64 = 1e-3;
const LATER: f64 = 2e-3;
const AFTER: f64 = 1e-2;
/// Norms below this fraction of the largest are rounding errors.
const FLOOR: f64 = 1e-5;

/// The outputs and intermediate values of a network, by name.
pub(super) type Run = Box<dyn Fn(&Tape, &mut dyn FnMut(&str, &Value)) -> Result<()>>;
/// The loss of a training step, and its parts by name.
pub(super) type LossOf = Box<dyn Fn(&Tape) -> Result<(Value, Vec<(&'static str, Value)>)>>;

/// A network and the computations that the file records.
pub(super) struct ReferenceNetwork {
    pub(super) store: ParamStore,
    pub(super) run: Run,
    pub(super) loss: LossOf,
    /// The keys of the outputs at the top level of the file.
    pub(super) outputs: &'static [&'static str],
    pub(super) after: Option<&'static str>,
}

/// Compares a network with its file.
pub(super) fn check(
    reference: &Reference<'_>,
    subject: ReferenceNetwork,
) -> Result<Vec<Quantity>, ParityError> {
    let json = reference.json;
    let context = Arc::new(Context::new(1));
    let ReferenceNetwork { store, run, loss, outputs, after } = subject;
    let mut quantities = vec![Quantity::exact(
        "param_count",
        &[store.num_parameters() as f64],
        &[reference.number("param_count")?],
    )];
    let mut own: Vec<(String, Vec<usize>)> =
        store.params().iter().map(|param| (param.name().to_owned(), param.dims().to_vec())).collect();
    let named = json["names"].as_object().ok_or_else(|| reference.lacks("names"))?;
    let mut names: Vec<(String, Vec<usize>)> = named
        .iter()
        // A tied parameter is one, under the other name.
        .filter(|(name, _)| json["tied"].get(name.as_str()).is_none())
        .map(|(name, dims)| (name.clone(), sizes(dims)))
        .collect();
    own.sort();
    names.sort();
    quantities.push(Quantity::exact("names and shapes", &own, &names));

    let watched = |what: &str| -> Result<Vec<(String, Vec<f64>)>, ParityError> {
        let tape = Tape::forward_only(Session::evaluation(context.clone()));
        let mut seen = Vec::new();
        let mut problem = None;
        run(&tape, &mut |name, value| match doubles(value) {
            Ok(values) => seen.push((name.to_owned(), values)),
            Err(error) => problem = Some(error),
        })?;
        match problem {
            Some(error) => Err(error),
            None if seen.is_empty() => Err(reference.lacks(what)),
            None => Ok(seen),
        }
    };
    let before = watched("activations")?;
    for key in outputs {
        compare(&mut quantities, key, &before, key, &json[*key], BEFORE);
    }
    for (name, expected) in json["activations"].as_object().into_iter().flatten() {
        // Activations inside of a block are not observable.
        if before.iter().any(|(known, _)| known == name) {
            compare(&mut quantities, &format!("at {name}"), &before, name, expected, BEFORE);
        }
    }
    train(reference, &store, &loss, &context, &mut quantities)?;
    if let Some(key) = after {
        compare(&mut quantities, key, &watched(key)?, outputs[0], &json[key], AFTER);
    }
    Ok(quantities)
}

/// Compares three steps of AdamW, and the gradients of the first.
fn train(
    reference: &Reference<'_>,
    store: &ParamStore,
    loss: &LossOf,
    context: &Arc<Context>,
    quantities: &mut Vec<Quantity>,
) -> Result<(), ParityError> {
    let json = reference.json;
    let optimizer = &json["optimizer"];
    let field = |name: &str| optimizer[name].as_f64().ok_or_else(|| reference.lacks(name));
    let betas = numbers(&optimizer["betas"]);
    let [first, second] = betas.as_slice() else { return Err(reference.lacks("betas")) };
    let mut adam = Adam::decoupled((*first, *second), field("eps")?, field("weight_decay")?);
    let lr = field("lr")?;
    let zero: Vec<&str> =
        json["zero_gradients"].as_array().into_iter().flatten().filter_map(Json::as_str).collect();
    let steps = json["train_steps"].as_array().ok_or_else(|| reference.lacks("train_steps"))?;
    for (step, expected) in steps.iter().enumerate() {
        let tape = Tape::recording(Session::training(context.clone(), Key::new(0).step(step as u64)));
        let (value, parts) = loss(&tape)?;
        let tolerance = if step == 0 { BEFORE } else { LATER };
        for (name, value) in [("loss", value.clone())].into_iter().chain(parts) {
            let of_step = format!("{name} of step {}", step + 1);
            let recorded = expected[name].as_f64().unwrap_or(f64::NAN);
            quantities.push(Quantity::vector(&of_step, &doubles(&value)?, &[recorded], tolerance));
        }
        store.zero_grads();
        tape.backward(&value)?;
        if let Some(norms) = expected["grad_l2"].as_object() {
            let mut pairs = Vec::new();
            let mut vanishing: f64 = 0.0;
            for (name, recorded) in norms {
                let grad = store.param(name)?.grad()?;
                let found = grad.map_or(Ok(f64::NAN), |grad| norm(&grad))?;
                match zero.contains(&name.as_str()) {
                    true => vanishing = vanishing.max(found),
                    false => pairs.push((name.clone(), found, recorded.as_f64().unwrap_or(f64::NAN))),
                }
            }
            let largest = pairs.iter().fold(0.0_f64, |largest, (_, _, norm)| largest.max(*norm));
            quantities.push(Quantity::each("gradient norms", &pairs, FLOOR, GRADIENTS));
            if !zero.is_empty() {
                let found = [1.0 + vanishing / largest];
                quantities.push(Quantity::vector(
                    "gradients that vanish, against the largest",
                    &found,
                    &[1.0],
                    FLOOR,
                ));
            }
        }
        adam.step(store.buckets(), lr, context)?;
    }
    Ok(())
}

/// Compares the first elements and the norm of a named value.
fn compare(
    quantities: &mut Vec<Quantity>,
    what: &str,
    seen: &[(String, Vec<f64>)],
    name: &str,
    expected: &Json,
    tolerance: f64,
) {
    let values = seen.iter().find(|(known, _)| known == name).map(|(_, values)| values.as_slice());
    let values = values.unwrap_or_default();
    let head = numbers(&expected["head"]);
    let l2 = values.iter().map(|value| value * value).sum::<f64>().sqrt();
    quantities.push(Quantity::vector(what, &values[..head.len().min(values.len())], &head, tolerance));
    let recorded = expected["l2"].as_f64().unwrap_or(f64::NAN);
    quantities.push(Quantity::vector(&format!("{what}, L2"), &[l2], &[recorded], tolerance));
}

/// Registers a network and fills its parameters by formula.
pub(super) fn filled<M>(
    reference: &Reference<'_>,
    build: impl FnOnce(&Scope) -> Result<M>,
) -> Result<(M, ParamStore), ParityError> {
    let builder = StoreBuilder::new(BuildOptions::default());
    let model = build(&builder.root())?;
    let store = builder.build()?;
    for param in store.params() {
        let values = fill::parameter(param.name(), reference.seed, param.dims());
        param.set(&Tensor::from_vec(values, param.dims(), &Device::Cpu)?)?;
    }
    Ok((model, store))
}

/// Returns a number of the configuration.
pub(super) fn size(reference: &Reference<'_>, key: &str) -> Result<usize, ParityError> {
    let size = reference.json["config"][key].as_u64().and_then(|size| usize::try_from(size).ok());
    size.ok_or_else(|| reference.lacks(key))
}

/// Returns a real number of the configuration.
pub(super) fn real(reference: &Reference<'_>, key: &str) -> Result<f64, ParityError> {
    reference.json["config"][key].as_f64().ok_or_else(|| reference.lacks(key))
}

pub(super) fn sizes(json: &Json) -> Vec<usize> {
    numbers(json).into_iter().map(|size| size as usize).collect()
}

/// Computes `sym(name, dims, scale)` of the file's formulae.
pub(super) fn sym(
    reference: &Reference<'_>,
    name: &str,
    dims: &[usize],
    scale: f64,
) -> Result<Value, ParityError> {
    let values = fill::sym(name, reference.seed, dims.iter().product(), scale);
    Ok(Value::constant(Tensor::from_vec(values, dims, &Device::Cpu)?))
}

fn doubles(value: &Value) -> Result<Vec<f64>, ParityError> {
    let values = value.tensor()?.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.into_iter().map(f64::from).collect())
}

fn norm(values: &Tensor) -> Result<f64, ParityError> {
    let values = values.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt())
}

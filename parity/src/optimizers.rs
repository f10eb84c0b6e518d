//! `optimizers.json`: 20 steps of each optimizer on a small problem.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_tensor::optim::{Adam, Optimizer, Sgd};
use phalanx_tensor::{BuildOptions, Context, Init, Session, StoreBuilder, Tape, Value, ops};

use crate::report::numbers;
use crate::{ParityError, Quantity, Reference, fill};

/// The optimizer and learning rate of each run, by its name in the file.
fn optimizer(name: &str) -> Option<(Box<dyn Optimizer>, f64)> {
    let found: (Box<dyn Optimizer>, f64) = match name {
        "sgd" => (Box::new(Sgd::new(0.0, false, 0.0)), 0.05),
        "sgd_momentum" => (Box::new(Sgd::new(0.9, false, 0.0)), 0.05),
        "sgd_nesterov_wd" => (Box::new(Sgd::new(0.9, true, 0.01)), 0.05),
        "adam" => (Box::new(Adam::new((0.9, 0.999), 1e-8, 0.0)), 0.01),
        "adam_stackgan" => (Box::new(Adam::new((0.5, 0.999), 1e-8, 0.0)), 2e-4),
        "adamw" => (Box::new(Adam::decoupled((0.9, 0.999), 1e-8, 0.1)), 0.01),
        _ => return None,
    };
    Some(found)
}

pub(super) fn check(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    let runs = reference.json["runs"].as_object().ok_or_else(|| reference.lacks("runs"))?;
    let mut quantities = Vec::new();
    for (name, run) in runs {
        let (optimizer, lr) = optimizer(name).ok_or_else(|| reference.unknown("optimizer", name))?;
        let (losses, weights) = run_steps(reference.seed, optimizer, lr)?;
        quantities.push(Quantity::vector(&format!("{name} losses"), &losses, &numbers(&run["losses"]), 1e-4));
        quantities.push(Quantity::vector(&format!("{name} weights"), &weights, &numbers(&run["w"]), 1e-4));
    }
    Ok(quantities)
}

/// loss(w) = mean((A w - b)^2) + mean(cos w), and 20 steps down it.
fn run_steps(
    seed: u64,
    mut optimizer: Box<dyn Optimizer>,
    lr: f64,
) -> Result<(Vec<f64>, Vec<f64>), ParityError> {
    const N: usize = 64;
    let tensor = |name: &str, dims: &[usize], scale: f64| {
        let n = dims.iter().product();
        Tensor::from_vec(fill::sym(name, seed, n, scale), dims, &Device::Cpu)
    };
    let builder = StoreBuilder::new(BuildOptions::default());
    let weights = builder.root().param("w", N, Init::Constant(0.0))?;
    let store = builder.build()?;
    weights.set(&tensor("w", &[N], 1.0)?)?;
    let (a, b) = (Value::constant(tensor("A", &[N, N], 0.2)?), Value::constant(tensor("b", &[1, N], 1.0)?));
    let context = Arc::new(Context::new(1));
    let mut losses = Vec::new();
    for _ in 0..20 {
        let tape = Tape::recording(Session::training(context.clone(), phalanx_tensor::Key::new(0)));
        let w = tape.param(&weights)?;
        let row = ops::reshape(&tape, &w, (1, N))?;
        let residual = ops::sub(&tape, &ops::linear(&tape, &row, &a, None)?, &b)?;
        let squares = ops::mean(&tape, &ops::mul(&tape, &residual, &residual)?)?;
        let values = w.tensor()?;
        let cosines = tape.push("cos", &[&w], values.cos()?, move |_, grad, grads| {
            grads.add(0, (values.sin()?.neg()? * grad.tensor()?)?)
        })?;
        let loss = ops::add(&tape, &squares, &ops::mean(&tape, &cosines)?)?;
        losses.push(f64::from(loss.tensor()?.to_scalar::<f32>()?));
        store.zero_grads();
        tape.backward(&loss)?;
        optimizer.step(store.buckets(), lr, &context)?;
    }
    let weights = weights.tensor()?.to_vec1::<f32>()?.into_iter().map(f64::from).collect();
    Ok((losses, weights))
}

//! A candle-nn model with the whole command line: it learns sin(x·y) from points.
//!
//! `cargo run --release --example own_candle_model -- train --ranks 2 --strategy fsdp`; `--help` says what else there is.
use std::sync::Arc;

use candle_nn::{Linear, Module as _, linear};
use phalanx::{Program, Setup, StepInput, TaskSpec, TrainError, Training, number, settings};
use phalanx_data::{Batch, CollatedDataset, Dataset, Samples, Split};
use phalanx_tensor::{CandleModule, Value, loss};

settings! {
    /// The model.
    struct FitSettings {
        /// Features of the hidden layer.
        width: usize = 64;
    }
}

struct Points(Split);

impl Dataset for Points {
    type Item = [f32; 3];

    fn name(&self) -> &str {
        "points of sin(x y)"
    }

    fn len(&self) -> usize {
        if self.0 == Split::Train { 1000 } else { 100 }
    }

    fn get(&self, index: usize, _epoch: u64) -> phalanx_data::Result<[f32; 3]> {
        let offset = if self.0 == Split::Train { 0.0 } else { 0.5 };
        let (x, y) = (index as f32 + offset).sin_cos();
        let (x, y) = (2.0 * x, y * (0.7 * index as f32).sin());
        Ok([x, y, (x * y).sin()])
    }
}

fn collate(samples: &mut Samples<'_, [f32; 3]>) -> phalanx_data::Result<Batch> {
    let rows = samples.map(|sample| Ok(sample?.1)).collect::<phalanx_data::Result<Vec<_>>>()?;
    let inputs = rows.iter().flat_map(|row| [row[0], row[1]]).collect::<Vec<_>>();
    let targets = rows.iter().map(|row| row[2]).collect::<Vec<_>>();
    Batch::new(rows.len()).with("points", [rows.len(), 2], inputs)?.with("targets", [rows.len(), 1], targets)
}

struct Fit(CandleModule<(Linear, Linear)>);

impl Fit {
    fn build(setup: &mut Setup<'_>, settings: &FitSettings) -> Result<Training<Self>, TrainError> {
        let width = settings.width;
        // The model as candle builds it.
        let module = setup.model(|scope| {
            CandleModule::register(&scope.pp("mlp").block(), move |vb| {
                Ok((linear(2, width, vb.pp("hidden"))?, linear(width, 1, vb.pp("out"))?))
            })
        })?;
        let training = Training::new("a candle model of two layers", Self(module)).loss(Self::loss);
        Ok(training.evaluate(["loss"], |fit, step| Ok([number(&fit.loss(step)?)?])))
    }

    fn loss(&self, step: &StepInput<'_>) -> Result<Value, TrainError> {
        let output = self.0.forward(step.tape, &[&step.value("points")?], |(hidden, out), inputs| {
            out.forward(&hidden.forward(&inputs[0])?.tanh()?)
        })?;
        Ok(loss::mse(step.tape, &output, &step.value("targets")?, step.over()?)?)
    }
}

// Memory that a step frees is kept for the next one.
#[global_allocator]
static ALLOCATOR: phalanx::Allocator = phalanx::Allocator;

fn main() -> std::process::ExitCode {
    let task = TaskSpec::new("fit", "Learns a function of two numbers", Fit::build)
        .data(|_, _, split| Ok(Arc::new(CollatedDataset::new(Arc::new(Points(split)), collate))));
    let preset = "[train]\nsteps = 300\n[optim]\nlr = 1e-2\n";
    phalanx::main(&Program::new("own_candle_model").task(task).preset("sine", preset))
}

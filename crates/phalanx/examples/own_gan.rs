//! A generative adversarial network of one's own: two networks, each with its optimizer, learn points on a circle.
//! `cargo run --release --example own_gan -- train --ranks 2 --strategy fsdp`; `--help` says what else there is.
use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx::{Loss, Program, Setup, StepInput, TaskSpec, TrainError, Training, number, settings};
use phalanx_data::{Batch, CollatedDataset, Dataset, Samples, Split};
use phalanx_models::{Mlp, MlpConfig};
use phalanx_tensor::{Value, loss, ops};

settings! {
    /// The networks.
    struct GanSettings {
        /// Numbers that the generator makes a point of.
        noise: usize = 4;
    }
}

struct Circle(Split);

impl Dataset for Circle {
    type Item = [f32; 2];

    fn name(&self) -> &str {
        "points on a circle"
    }

    fn len(&self) -> usize {
        if self.0 == Split::Train { 1000 } else { 50 }
    }

    fn get(&self, index: usize, _epoch: u64) -> phalanx_data::Result<[f32; 2]> {
        Ok((index as f32).sin_cos().into())
    }
}

fn collate(samples: &mut Samples<'_, [f32; 2]>) -> phalanx_data::Result<Batch> {
    let points = samples.map(|sample| Ok(sample?.1)).collect::<phalanx_data::Result<Vec<_>>>()?;
    Batch::new(points.len()).with("points", [points.len(), 2], points.concat())
}

struct Gan(Mlp, Mlp, usize);

impl Gan {
    fn build(setup: &mut Setup<'_>, settings: &GanSettings) -> Result<Training<Self>, TrainError> {
        let mlp = |inputs, num_classes| MlpConfig { inputs, width: 32, depth: 2, num_classes };
        let generator = setup.network("generator", |scope| Mlp::new(scope, &mlp(settings.noise, 2)))?;
        let critic = setup.network("critic", |scope| Mlp::new(scope, &mlp(2, 1)))?;
        Ok(Training::new("a generator and a critic", Self(generator, critic, settings.noise))
            .phase("critic", ["critic"], |gan, step| {
                let (points, fake) = (step.value("points")?, gan.fake(step)?);
                let (real, made) = (gan.judge(step, &points, 1.0)?, gan.judge(step, &fake, 0.0)?);
                Ok(Loss::new(ops::add(step.tape, &real, &made)?, [step.diversity(&fake, &points)?]))
            })
            .measures(["diversity"])
            .watched(["diversity"])
            .phase("generator", ["generator"], |gan, step| gan.judge(step, &gan.fake(step)?, 1.0))
            .evaluate(["doubt"], |gan, step| Ok([number(&gan.judge(step, &step.value("points")?, 1.0)?)?])))
    }

    fn fake(&self, step: &StepInput<'_>) -> Result<Value, TrainError> {
        Ok(self.0.forward(step.tape, &step.normal(&[self.2])?)?)
    }

    /// The critic's loss for points that should count as real (1) or generated (0).
    fn judge(&self, step: &StepInput<'_>, points: &Value, truth: f32) -> Result<Value, TrainError> {
        step.mean(&self.1.forward(step.tape, points)?, |logits, _, over| {
            let truth = Value::constant(Tensor::full(truth, logits.shape(), &Device::Cpu)?);
            loss::bce_with_logits(step.tape, logits, &truth, over)
        })
    }
}

fn main() -> std::process::ExitCode {
    let task = TaskSpec::new("gan", "Learns where points lie", Gan::build)
        .data(|_, _, split| Ok(Arc::new(CollatedDataset::new(Arc::new(Circle(split)), collate))));
    let preset = "[train]\nsteps = 200\n[optim]\nlr = 2e-3\nbetas = [0.5, 0.9]\n[critic.optim]\nlr = 1e-3\n";
    phalanx::main(&Program::new("own_gan").task(task).preset("circle", preset))
}

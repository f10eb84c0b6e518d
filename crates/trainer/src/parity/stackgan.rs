//! `stackgan.json`: the images, judgements, losses and gradients of both stages.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_models::stackgan::{Discriminator, Generated, SampleWeights, generator_loss};
use phalanx_models::{StackGanConfig, StageOneGenerator, StageTwoGenerator};
use phalanx_tensor::{
    BuildOptions, Context, Key, ParamStore, Scope, Session, StoreBuilder, Tape, TensorError, Value, ops,
};
use serde_json::Value as Json;

use super::report::numbers;
use super::{ParityError, Quantity, Reference, fill};

const TOLERANCE: f64 = 1e-4;
const GRADIENT_TOLERANCE: f64 = 1e-3;

/// The weight of the divergence that the authors' code has.
const KL_WEIGHT: f64 = 2.0;

/// A network whose parameters are filled under their names with a prefix.
fn filled<N>(
    prefix: &str,
    seed: u64,
    new: impl FnOnce(&Scope) -> Result<N, TensorError>,
) -> Result<(N, ParamStore), ParityError> {
    let builder = StoreBuilder::new(BuildOptions::default());
    let network = new(&builder.root())?;
    let store = builder.build()?;
    for param in store.params() {
        let values = fill::parameter(&format!("{prefix}{}", param.name()), seed, param.dims());
        param.set(&Tensor::from_vec(values, param.dims(), &Device::Cpu)?)?;
    }
    Ok((network, store))
}

fn flat(value: &Value) -> Result<Vec<f64>, ParityError> {
    Ok(value.tensor()?.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f64::from).collect())
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// One stage: what its generator has made on a tape, and who judges it.
struct Stage<'a> {
    name: &'a str,
    expected: &'a Json,
    tape: &'a Tape,
    generated: &'a Generated,
    of_generator: &'a ParamStore,
    discriminator: &'a Discriminator,
    reference: &'a Reference<'a>,
}

impl Stage<'_> {
    fn check(&self) -> Result<Vec<Quantity>, ParityError> {
        let Self { name, expected, tape, generated, discriminator, .. } = self;
        let missing = |key: &str| self.reference.lacks(&format!("{name}.{key}"));
        let scalar = |key: &str| expected[key].as_f64().ok_or_else(|| missing(key));
        let quantity = |what: &str, found: &[f64], expected: &[f64]| {
            Quantity::vector(&format!("{name}: {what}"), found, expected, TOLERANCE)
        };
        let image = flat(&generated.image)?;
        let first = numbers(&expected["image"]);
        let mut quantities = vec![
            quantity("image, first elements", &image[..first.len().min(image.len())], &first),
            quantity("image, L2", &[norm(&image)], &[scalar("image_l2")?]),
        ];
        let features = discriminator.features(tape, &generated.image.detach())?;
        let logits = discriminator.logits(tape, &features, &generated.condition.mu.detach())?;
        let judged = flat(&ops::sigmoid(tape, &logits)?)?;
        quantities.push(quantity("D(image, condition)", &judged, &numbers(&expected["D_cond"])));
        if let Some(logits) = discriminator.logits_alone(tape, &features)? {
            let judged = flat(&ops::sigmoid(tape, &logits)?)?;
            quantities.push(quantity("D(image)", &judged, &numbers(&expected["D_uncond"])));
        }
        let weights = vec![1.0; generated.image.dims()[0]];
        let counts = SampleWeights { weights: &weights, sum: weights.len() as f64 };
        // The values were recorded with the condition not cut off.
        let shown = &generated.condition.mu;
        let losses = generator_loss(tape, discriminator, generated, shown, KL_WEIGHT, counts)?;
        if let Some(kl) = expected["kl"].as_f64() {
            quantities.push(quantity("divergence", &flat(&losses.kl)?, &[kl]));
        }
        quantities.push(quantity("loss", &flat(&losses.total)?, &[scalar("loss_G")?]));
        tape.backward(&losses.total)?;
        let gradients = expected["grad_l2_G"].as_object().ok_or_else(|| missing("grad_l2_G"))?;
        for (parameter, expected) in gradients {
            let grad = self.of_generator.param(parameter)?.grad()?;
            let grad = grad.map(|grad| grad.flatten_all()?.to_vec1::<f32>()).transpose()?.unwrap_or_default();
            let found = norm(&grad.into_iter().map(f64::from).collect::<Vec<_>>());
            let expected = [expected.as_f64().unwrap_or(f64::NAN)];
            let what = format!("{name}: gradient of {parameter}, L2");
            quantities.push(Quantity::vector(&what, &[found], &expected, GRADIENT_TOLERANCE));
        }
        Ok(quantities)
    }
}

pub(super) fn check(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    let size = |key: &str| {
        let size = reference.json["config"][key].as_u64().and_then(|size| usize::try_from(size).ok());
        size.ok_or_else(|| reference.lacks(key))
    };
    let config = StackGanConfig {
        text_dim: size("text_dim")?,
        condition_dim: size("condition_dim")?,
        z_dim: size("z_dim")?,
        gf_dim: size("gf_dim")?,
        df_dim: size("df_dim")?,
        residual_blocks: size("r_num")?,
        ..StackGanConfig::new()
    };
    let (batch, seed) = (size("batch")?, reference.seed);
    let (generator, of_generator) = filled("G1.", seed, |scope| StageOneGenerator::new(scope, &config))?;
    let (discriminator, _of_discriminator) =
        filled("D1.", seed, |scope| Discriminator::stage_one(scope, &config))?;
    let input = |name: &str, width: usize| {
        let values = fill::sym(name, seed, batch * width, 1.0);
        Ok::<_, ParityError>(Value::constant(Tensor::from_vec(values, (batch, width), &Device::Cpu)?))
    };
    let text = input("text", config.text_dim)?;
    let (noise, condition_noise) = (input("noise", config.z_dim)?, input("ca_eps", config.condition_dim)?);
    let tape = || Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)));

    let of_stage = tape();
    let small = generator.forward(&of_stage, &text, &noise, &condition_noise)?;
    let stage = |name, tape, generated, of_generator, discriminator| {
        let expected = &reference.json[name];
        Stage { name, expected, tape, generated, of_generator, discriminator, reference }.check()
    };
    let mut quantities = stage("stage1", &of_stage, &small, &of_generator, &discriminator)?;

    let (generator, of_generator) = filled("G2.", seed, |scope| StageTwoGenerator::new(scope, &config))?;
    let (discriminator, _of_discriminator) =
        filled("D2.", seed, |scope| Discriminator::stage_two(scope, &config))?;
    let of_stage = tape();
    let large = generator.forward(&of_stage, &small.image.detach(), &text, &condition_noise)?;
    quantities.extend(stage("stage2", &of_stage, &large, &of_generator, &discriminator)?);
    Ok(quantities)
}

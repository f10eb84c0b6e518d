//! `stackgan.json`: the images, judgements, losses and gradients of both stages.
//!
//! The gradients of stage II pass a discriminator of nine layers with batch norm over four images. Rounding moves the
//! kinks of its activations; see [`crate::arithmetic`].

use std::sync::Arc;

use candle_core::DType;
use phalanx_models::stackgan::{
    AdversarialLoss, Discriminator, GanObjective, GeneratorOutput, SampleWeights,
};
use phalanx_models::{StackGanConfig, StageOneGenerator, StageTwoGenerator};
use phalanx_tensor::{
    BuildOptions, Context, Key, ParamStore, Scope, Session, StoreBuilder, Tape, TensorError, Value, ops,
};
use serde_json::Value as Json;

use crate::arithmetic::{Arithmetic, compare_widened};
use crate::report::numbers;
use crate::{ParityError, Quantity, Reference, fill};

const TOLERANCE: f64 = 1e-4;
const GRADIENT_TOLERANCE: f64 = 1e-3;

/// The weight of the KL divergence in the authors' code.
const KL_WEIGHT: f64 = 2.0;

/// The floor of gradient norms, as a fraction of the largest. Below it, errors are relative to the floor.
const FLOOR: f64 = 1e-5;

/// The recorded values of a stage: names with numbers, and the norms of gradients by parameter.
struct MeasuredStage {
    name: &'static str,
    outputs: Vec<(String, Vec<f64>)>,
    gradients: Vec<(String, f64)>,
}

pub(super) fn check(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    let recorded = recorded(reference)?;
    compare_widened(&recorded, |arithmetic| measure(reference, arithmetic), compare)
}

fn compare(found: &[MeasuredStage; 2], expected: &[MeasuredStage; 2]) -> Vec<Quantity> {
    let compared = found.iter().zip(expected).flat_map(|(found, expected)| {
        let name = expected.name;
        let outputs = expected.outputs.iter().map(move |(key, expected)| {
            let found = found.outputs.iter().find(|(known, _)| known == key);
            let found = found.map_or(&[][..], |(_, numbers)| numbers);
            // The file records the first elements of images.
            let found = &found[..found.len().min(expected.len())];
            Quantity::vector(&format!("{name}: {key}"), found, expected, TOLERANCE)
        });
        let gradients = expected.gradients.iter().map(|(parameter, expected)| {
            let found = found.gradients.iter().find(|(known, _)| known == parameter);
            (parameter.clone(), found.map_or(f64::NAN, |(_, norm)| *norm), *expected)
        });
        let gradients: Vec<_> = gradients.collect();
        let norms = Quantity::each(&format!("{name}: gradient norms"), &gradients, FLOOR, GRADIENT_TOLERANCE);
        outputs.chain([norms])
    });
    compared.collect()
}

/// Reads the recorded values.
fn recorded(reference: &Reference<'_>) -> Result<[MeasuredStage; 2], ParityError> {
    let of_stage = |name: &'static str| {
        let recorded = reference.json[name].as_object().ok_or_else(|| reference.lacks(name))?;
        let mut stage = MeasuredStage { name, outputs: Vec::new(), gradients: Vec::new() };
        for (key, value) in recorded {
            match value {
                Json::Number(_) => {
                    stage.outputs.push((key.clone(), numbers(&Json::from(vec![value.clone()]))));
                }
                Json::Array(_) => stage.outputs.push((key.clone(), numbers(value))),
                Json::Object(norms) => {
                    let norms = norms.iter();
                    let norms = norms.map(|(name, norm)| (name.clone(), norm.as_f64().unwrap_or(f64::NAN)));
                    stage.gradients.extend(norms);
                }
                _ => return Err(reference.lacks(&format!("{name}.{key}"))),
            }
        }
        Ok(stage)
    };
    Ok([of_stage("stage1")?, of_stage("stage2")?])
}

/// Builds a network, with parameters filled by their names with a prefix.
fn filled<N>(
    prefix: &str,
    reference: &Reference<'_>,
    arithmetic: Arithmetic,
    new: impl FnOnce(&Scope) -> Result<N, TensorError>,
) -> Result<(N, ParamStore), ParityError> {
    let builder = StoreBuilder::new(BuildOptions { dtype: arithmetic.dtype, ..BuildOptions::default() });
    let network = new(&builder.root())?;
    let store = builder.build()?;
    for param in store.params() {
        let name = format!("{prefix}{}", param.name());
        let values = fill::parameter(&name, reference.seed, param.dims());
        param.set(&arithmetic.tensor(&name, values, param.dims())?)?;
    }
    Ok((network, store))
}

fn flat(value: &Value) -> Result<Vec<f64>, ParityError> {
    Ok(value.tensor()?.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?)
}

fn norm(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum::<f64>().sqrt()
}

/// One stage: the output of its generator on a tape, and its discriminator.
struct Stage<'a> {
    name: &'static str,
    tape: &'a Tape,
    generated: &'a GeneratorOutput,
    of_generator: &'a ParamStore,
    discriminator: &'a Discriminator,
}

impl Stage<'_> {
    fn measure(&self) -> Result<MeasuredStage, ParityError> {
        let Self { name, tape, generated, discriminator, .. } = *self;
        let mut outputs = Vec::new();
        let mut push = |key: &str, numbers: Vec<f64>| outputs.push((key.to_owned(), numbers));
        let image = flat(&generated.image)?;
        push("image_shape", generated.image.dims().iter().map(|size| *size as f64).collect());
        push("image_l2", vec![norm(&image)]);
        push("image", image);
        let features = discriminator.features(tape, &generated.image.detach())?;
        let logits = discriminator.logits(tape, &features, &generated.condition.mu.detach())?;
        push("D_cond", flat(&ops::sigmoid(tape, &logits)?)?);
        if let Some(logits) = discriminator.logits_alone(tape, &features)? {
            push("D_uncond", flat(&ops::sigmoid(tape, &logits)?)?);
        }
        let weights = vec![1.0; generated.image.dims()[0]];
        let counts = SampleWeights { weights: &weights, sum: weights.len() as f64 };
        // The values were recorded without detaching the condition.
        let shown = &generated.condition.mu;
        let objective =
            GanObjective { adversarial: AdversarialLoss::CrossEntropy, kl_weight: KL_WEIGHT, counts };
        let losses = objective.generator_loss(tape, discriminator, generated, shown)?;
        push("kl", flat(&losses.kl)?);
        push("loss_G", flat(&losses.total)?);
        tape.backward(&losses.total)?;
        let mut gradients = Vec::new();
        for param in self.of_generator.params() {
            let Some(grad) = param.grad()? else { continue };
            gradients.push((param.name().to_owned(), norm(&flat(&Value::constant(grad))?)));
        }
        Ok(MeasuredStage { name, outputs, gradients })
    }
}

/// Computes the recorded quantities.
fn measure(reference: &Reference<'_>, arithmetic: Arithmetic) -> Result<[MeasuredStage; 2], ParityError> {
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
    let batch = size("batch")?;
    let input = |name: &str, width: usize| {
        let values = fill::sym(name, reference.seed, batch * width, 1.0);
        Ok::<_, ParityError>(Value::constant(arithmetic.tensor(name, values, &[batch, width])?))
    };
    let text = input("text", config.text_dim)?;
    let (noise, condition_noise) = (input("noise", config.z_dim)?, input("ca_eps", config.condition_dim)?);
    let tape = || Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)));

    let (maker, store) =
        filled("G1.", reference, arithmetic, |scope| StageOneGenerator::new(scope, &config))?;
    let (judge, _judge_store) =
        filled("D1.", reference, arithmetic, |scope| Discriminator::stage_one(scope, &config))?;
    let of_first = tape();
    let small = maker.forward(&of_first, &text, &noise, &condition_noise)?;
    let stage = Stage {
        name: "stage1",
        tape: &of_first,
        generated: &small,
        of_generator: &store,
        discriminator: &judge,
    };
    let first = stage.measure()?;

    let (maker, store) =
        filled("G2.", reference, arithmetic, |scope| StageTwoGenerator::new(scope, &config))?;
    let (judge, _judge_store) =
        filled("D2.", reference, arithmetic, |scope| Discriminator::stage_two(scope, &config))?;
    let of_second = tape();
    let large = maker.forward(&of_second, &small.image.detach(), &text, &condition_noise)?;
    let stage = Stage {
        name: "stage2",
        tape: &of_second,
        generated: &large,
        of_generator: &store,
        discriminator: &judge,
    };
    Ok([first, stage.measure()?])
}

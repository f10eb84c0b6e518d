//! `stackgan.json`: the first stage's image, judgement, loss and gradients. The second stage is not there yet.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_models::stackgan::stage_one_generator_loss;
use phalanx_models::{StackGanConfig, StageOneDiscriminator, StageOneGenerator};
use phalanx_tensor::{BuildOptions, Context, Key, ParamStore, Session, StoreBuilder, Tape, Value, ops};

use super::report::numbers;
use super::{ParityError, Quantity, Reference, fill};

const TOLERANCE: f64 = 1e-4;
const GRADIENT_TOLERANCE: f64 = 1e-3;

/// Fills a model's parameters under their names with a prefix.
fn fill_store(store: &ParamStore, prefix: &str, seed: u64) -> Result<(), ParityError> {
    for param in store.params() {
        let values = fill::parameter(&format!("{prefix}{}", param.name()), seed, param.dims());
        param.set(&Tensor::from_vec(values, param.dims(), &Device::Cpu)?)?;
    }
    Ok(())
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
    };
    let batch = size("batch")?;
    let (of_generator, of_discriminator) =
        (StoreBuilder::new(BuildOptions::default()), StoreBuilder::new(BuildOptions::default()));
    let generator = StageOneGenerator::new(&of_generator.root(), &config)?;
    let discriminator = StageOneDiscriminator::new(&of_discriminator.root(), &config)?;
    let (of_generator, of_discriminator) = (of_generator.build()?, of_discriminator.build()?);
    fill_store(&of_generator, "G1.", reference.seed)?;
    fill_store(&of_discriminator, "D1.", reference.seed)?;
    let input = |name: &str, width: usize| {
        let values = fill::sym(name, reference.seed, batch * width, 1.0);
        Ok::<_, ParityError>(Value::constant(Tensor::from_vec(values, (batch, width), &Device::Cpu)?))
    };
    let text = input("text", config.text_dim)?;
    let (noise, condition_noise) = (input("noise", config.z_dim)?, input("ca_eps", config.condition_dim)?);

    let tape = Tape::recording(Session::training(Arc::new(Context::new(1)), Key::new(0)));
    let generated = generator.forward(&tape, &text, &noise, &condition_noise)?;
    let features = discriminator.features(&tape, &generated.image.detach())?;
    let logits = discriminator.logits(&tape, &features, &generated.condition.mu.detach())?;
    let judged = ops::sigmoid(&tape, &logits)?.tensor()?.to_vec1::<f32>()?;
    // The values were recorded with the condition not cut off.
    let shown = &generated.condition.mu;
    let losses = stage_one_generator_loss(&tape, &discriminator, &generated, shown)?;

    let expected = &reference.json["stage1"];
    let scalar = |key: &str| expected[key].as_f64().ok_or_else(|| reference.lacks(key));
    let value = |value: &Value| Ok::<_, ParityError>(f64::from(value.tensor()?.to_scalar::<f32>()?));
    let widen = |values: Vec<f32>| values.into_iter().map(f64::from).collect::<Vec<f64>>();
    let image = widen(generated.image.tensor()?.flatten_all()?.to_vec1::<f32>()?);
    let first = numbers(&expected["image"]);
    let norm = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>().sqrt();
    let mut quantities = vec![
        Quantity::vector("image, first elements", &image[..first.len()], &first, TOLERANCE),
        Quantity::vector("image, L2", &[norm(&image)], &[scalar("image_l2")?], TOLERANCE),
        Quantity::vector("D(image, condition)", &widen(judged), &numbers(&expected["D_cond"]), TOLERANCE),
        Quantity::vector("divergence", &[value(&losses.kl)?], &[scalar("kl")?], TOLERANCE),
        Quantity::vector("loss", &[value(&losses.total)?], &[scalar("loss_G")?], TOLERANCE),
    ];
    tape.backward(&losses.total)?;
    let gradients = expected["grad_l2_G"].as_object().ok_or_else(|| reference.lacks("grad_l2_G"))?;
    for (name, expected) in gradients {
        let grad = of_generator.param(name)?.grad()?;
        let grad = grad.map(|grad| grad.flatten_all()?.to_vec1::<f32>()).transpose()?.unwrap_or_default();
        let expected = [expected.as_f64().unwrap_or(f64::NAN)];
        let name = format!("gradient of {name}, L2");
        quantities.push(Quantity::vector(&name, &[norm(&widen(grad))], &expected, GRADIENT_TOLERANCE));
    }
    Ok(quantities)
}

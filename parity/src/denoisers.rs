//! `unet.json`, `unet_pixel.json` and `autoencoder_kl.json`: outputs, activations, three training steps and gradients
//! of diffusion networks.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use phalanx_models::diffusion::{
    AutoencoderKL, AutoencoderKLConfig, UNet2DConditionConfig, UNet2DConditionModel, UNet2DConfig,
    UNet2DModel,
};
use phalanx_tensor::loss::{LossDivisor, l1, mse};
use phalanx_tensor::optim::{Adam, Optimizer as _};
use phalanx_tensor::{
    BuildOptions, Context, Key, ParamStore, Result, Scope, Session, StoreBuilder, Tape, Value, ops,
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
type Run = Box<dyn Fn(&Tape, &mut dyn FnMut(&str, &Value)) -> Result<()>>;
/// The loss of a training step, and its parts by name.
type LossOf = Box<dyn Fn(&Tape) -> Result<(Value, Vec<(&'static str, Value)>)>>;

/// A network and the computations that the file records.
struct ReferenceNetwork {
    store: ParamStore,
    run: Run,
    loss: LossOf,
    /// The keys of the outputs at the top level of the file.
    outputs: &'static [&'static str],
    after: Option<&'static str>,
}

pub(super) fn check(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    let json = reference.json;
    let model = json["model"].as_str().ok_or_else(|| reference.lacks("model"))?;
    let subject = match model.split_whitespace().next() {
        Some("UNet2DConditionModel") => conditioned(reference)?,
        Some("UNet2DModel") => plain(reference)?,
        Some("AutoencoderKL") => autoencoder(reference)?,
        _ => return Err(reference.unknown("model", model)),
    };
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
    let mut names: Vec<(String, Vec<usize>)> =
        named.iter().map(|(name, dims)| (name.clone(), sizes(dims))).collect();
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
fn filled<M>(
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
fn size(reference: &Reference<'_>, key: &str) -> Result<usize, ParityError> {
    let size = reference.json["config"][key].as_u64().and_then(|size| usize::try_from(size).ok());
    size.ok_or_else(|| reference.lacks(key))
}

fn sizes(json: &Json) -> Vec<usize> {
    numbers(json).into_iter().map(|size| size as usize).collect()
}

/// Returns the widths of the levels, and the levels with attention.
fn levels(reference: &Reference<'_>) -> Result<(Vec<usize>, Vec<bool>), ParityError> {
    let config = &reference.json["config"];
    let types = config["down_block_types"].as_array().ok_or_else(|| reference.lacks("down_block_types"))?;
    let attends = types.iter().map(|kind| kind.as_str().is_some_and(|kind| kind.contains("Attn")));
    Ok((sizes(&config["block_out_channels"]), attends.collect()))
}

/// Computes `sym(name, dims, scale)` of the file's formulae.
fn sym(reference: &Reference<'_>, name: &str, dims: &[usize], scale: f64) -> Result<Value, ParityError> {
    let values = fill::sym(name, reference.seed, dims.iter().product(), scale);
    Ok(Value::constant(Tensor::from_vec(values, dims, &Device::Cpu)?))
}

fn conditioned(reference: &Reference<'_>) -> Result<ReferenceNetwork, ParityError> {
    let (block_out_channels, attention) = levels(reference)?;
    let heads = size(reference, "heads")?;
    let config = UNet2DConditionConfig {
        in_channels: size(reference, "in_channels")?,
        out_channels: size(reference, "out_channels")?,
        num_heads: vec![heads; block_out_channels.len()],
        block_out_channels,
        attention,
        layers_per_block: size(reference, "layers_per_block")?,
        norm_num_groups: size(reference, "norm_num_groups")?,
        cross_attention_dim: size(reference, "cross_attention_dim")?,
        transformer_layers_per_block: size(reference, "transformer_layers_per_block")?,
        ..UNet2DConditionConfig::stable_diffusion_1()
    };
    let (model, store) = filled(reference, |scope| UNet2DConditionModel::new(scope, &config))?;
    let side = size(reference, "sample_size")?;
    let dims = [2, config.in_channels, side, side];
    let (sample, target) = (sym(reference, "input", &dims, 1.0)?, sym(reference, "eps", &dims, 1.7)?);
    let text = sym(reference, "text", &[2, 5, config.cross_attention_dim], 1.0)?;
    let timesteps = numbers(&reference.json["inputs"]["timesteps"]);
    let others = numbers(&reference.json["output_other_timesteps"]["timesteps"]);
    let (again, sample_again, text_again, steps_again) =
        (model.clone(), sample.clone(), text.clone(), timesteps.clone());
    Ok(ReferenceNetwork {
        store,
        run: Box::new(move |tape, watch| {
            let output = model.forward_watched(tape, &sample, &timesteps, &text, watch)?;
            watch("output", &output);
            watch("output_other_timesteps", &model.forward(tape, &sample, &others, &text)?);
            Ok(())
        }),
        loss: Box::new(move |tape| {
            let output = again.forward(tape, &sample_again, &steps_again, &text_again)?;
            Ok((mse(tape, &output, &target, LossDivisor::Batch)?, Vec::new()))
        }),
        outputs: &["output", "output_other_timesteps"],
        after: Some("output_after"),
    })
}

fn plain(reference: &Reference<'_>) -> Result<ReferenceNetwork, ParityError> {
    let (block_out_channels, attention) = levels(reference)?;
    let config = UNet2DConfig {
        block_out_channels,
        attention,
        layers_per_block: size(reference, "layers_per_block")?,
        norm_num_groups: size(reference, "norm_num_groups")?,
        attention_head_dim: Some(size(reference, "attention_head_dim")?),
        ..UNet2DConfig::small(size(reference, "in_channels")?)
    };
    let (model, store) = filled(reference, |scope| UNet2DModel::new(scope, &config))?;
    let side = size(reference, "sample_size")?;
    let dims = [2, config.in_channels, side, side];
    let (sample, target) = (sym(reference, "input", &dims, 1.0)?, sym(reference, "eps", &dims, 1.7)?);
    let timesteps = numbers(&reference.json["inputs"]["timesteps"]);
    let (again, sample_again, steps_again) = (model.clone(), sample.clone(), timesteps.clone());
    Ok(ReferenceNetwork {
        store,
        run: Box::new(move |tape, watch| {
            let output = model.forward_watched(tape, &sample, &timesteps, watch)?;
            watch("output", &output);
            Ok(())
        }),
        loss: Box::new(move |tape| {
            let output = again.forward(tape, &sample_again, &steps_again)?;
            Ok((mse(tape, &output, &target, LossDivisor::Batch)?, Vec::new()))
        }),
        outputs: &["output"],
        after: Some("output_after"),
    })
}

fn autoencoder(reference: &Reference<'_>) -> Result<ReferenceNetwork, ParityError> {
    let config = AutoencoderKLConfig {
        in_channels: size(reference, "in_channels")?,
        out_channels: size(reference, "out_channels")?,
        block_out_channels: sizes(&reference.json["config"]["block_out_channels"]),
        layers_per_block: size(reference, "layers_per_block")?,
        latent_channels: size(reference, "latent_channels")?,
        norm_num_groups: size(reference, "norm_num_groups")?,
    };
    let (model, store) = filled(reference, |scope| AutoencoderKL::new(scope, &config))?;
    let side = size(reference, "sample_size")?;
    let small = side / config.factor();
    let images = sym(reference, "input", &[2, config.in_channels, side, side], 1.0)?;
    let noise = sym(reference, "ae_eps", &[2, config.latent_channels, small, small], 1.7)?;
    let (again, images_again, noise_again) = (model.clone(), images.clone(), noise.clone());
    Ok(ReferenceNetwork {
        store,
        run: Box::new(move |tape, watch| {
            let latent = model.encode_watched(tape, &images, watch)?;
            watch("mean", &latent.mean);
            watch("logvar", &latent.logvar);
            watch("decode_mean", &model.decode(tape, &latent.mean)?);
            let drawn = latent.sample(tape, &noise)?;
            let decoded = model.decode_watched(tape, &drawn, watch)?;
            watch("decode_z", &decoded);
            Ok(())
        }),
        loss: Box::new(move |tape| {
            let latent = again.encode(tape, &images_again)?;
            let decoded = again.decode(tape, &latent.sample(tape, &noise_again)?)?;
            let (l1, kl) = (
                l1(tape, &decoded, &images_again, LossDivisor::Batch)?,
                latent.kl(tape, LossDivisor::Batch)?,
            );
            let total = ops::add(tape, &l1, &ops::scale(tape, &kl, 1e-4)?)?;
            Ok((total, vec![("l1", l1), ("kl", kl)]))
        }),
        outputs: &["mean", "logvar", "decode_mean", "decode_z"],
        after: None,
    })
}

fn doubles(value: &Value) -> Result<Vec<f64>, ParityError> {
    let values = value.tensor()?.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.into_iter().map(f64::from).collect())
}

fn norm(values: &Tensor) -> Result<f64, ParityError> {
    let values = values.flatten_all()?.to_vec1::<f32>()?;
    Ok(values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt())
}

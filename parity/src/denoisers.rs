//! `unet.json`, `unet_pixel.json` and `autoencoder_kl.json`: diffusion networks.

use phalanx_models::diffusion::{
    AutoencoderKL, AutoencoderKLConfig, UNet2DConditionConfig, UNet2DConditionModel, UNet2DConfig,
    UNet2DModel,
};
use phalanx_tensor::loss::{LossDivisor, l1, mse};
use phalanx_tensor::ops;

use crate::network::{self, ReferenceNetwork, filled, size, sizes, sym};
use crate::report::numbers;
use crate::{ParityError, Quantity, Reference};

pub(super) fn check(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    let json = reference.json;
    let model = json["model"].as_str().ok_or_else(|| reference.lacks("model"))?;
    let subject = match model.split_whitespace().next() {
        Some("UNet2DConditionModel") => conditioned(reference)?,
        Some("UNet2DModel") => plain(reference)?,
        Some("AutoencoderKL") => autoencoder(reference)?,
        _ => return Err(reference.unknown("model", model)),
    };
    network::check(reference, subject)
}

/// Returns the widths of the levels, and the levels with attention.
fn levels(reference: &Reference<'_>) -> Result<(Vec<usize>, Vec<bool>), ParityError> {
    let config = &reference.json["config"];
    let types = config["down_block_types"].as_array().ok_or_else(|| reference.lacks("down_block_types"))?;
    let attends = types.iter().map(|kind| kind.as_str().is_some_and(|kind| kind.contains("Attn")));
    Ok((sizes(&config["block_out_channels"]), attends.collect()))
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

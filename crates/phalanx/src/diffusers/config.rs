//! Reads the configurations of the networks and the scheduler.

use phalanx_models::ClipTextConfig;
use phalanx_models::diffusion::{
    AutoencoderKLConfig, BetaSchedule, NoiseSchedule, Prediction, UNet2DConditionConfig,
};
use serde_json::{Value, json};

use super::DiffusersError;
use super::json::Json;

/// Reads the U-Net's configuration, and the size of the latent images on which it was trained.
pub(super) fn unet(json: &Json) -> Result<(UNet2DConditionConfig, usize), DiffusersError> {
    check_unet(json)?;
    let widths = json.sizes("block_out_channels")?;
    let levels = widths.len();
    let attention = attention_levels(json, levels)?;
    // `attention_head_dim` of Stable Diffusion 1 is the number of heads.
    let heads =
        if json.get("num_attention_heads").is_some() { "num_attention_heads" } else { "attention_head_dim" };
    let num_heads = match json.get(heads) {
        Some(Value::Array(_)) => json.sizes(heads)?,
        _ => vec![json.size_or(heads, 8)?; levels],
    };
    let config = UNet2DConditionConfig {
        in_channels: json.size("in_channels")?,
        out_channels: json.size("out_channels")?,
        block_out_channels: widths,
        attention,
        layers_per_block: json.count_or("layers_per_block", 2)?,
        norm_num_groups: json.size_or("norm_num_groups", 32)?,
        cross_attention_dim: json.size("cross_attention_dim")?,
        projection_class_embeddings_input_dim: None,
        num_heads,
        transformer_layers_per_block: json.count_or("transformer_layers_per_block", 1)?,
        use_linear_projection: json.flag_or("use_linear_projection", false)?,
        dropout: 0.0,
        zero_init: false,
    };
    Ok((config, json.size_or("sample_size", 64)?))
}

/// Rejects a U-Net with an unsupported computation.
fn check_unet(json: &Json) -> Result<(), DiffusersError> {
    json.only(&[
        ("_class_name", json!("UNet2DConditionModel")),
        ("act_fn", json!("silu")),
        ("center_input_sample", json!(false)),
        ("flip_sin_to_cos", json!(true)),
        ("freq_shift", json!(0)),
        ("downsample_padding", json!(1)),
        ("mid_block_scale_factor", json!(1)),
        ("mid_block_type", json!("UNetMidBlock2DCrossAttn")),
        ("norm_eps", json!(1e-5)),
        ("resnet_time_scale_shift", json!("default")),
        ("time_embedding_type", json!("positional")),
        ("dual_cross_attention", json!(false)),
        ("only_cross_attention", json!(false)),
        ("conv_in_kernel", json!(3)),
        ("conv_out_kernel", json!(3)),
    ])?;
    for key in [
        "class_embed_type",
        "num_class_embeds",
        "addition_embed_type",
        "encoder_hid_dim",
        "time_cond_proj_dim",
    ] {
        if let Some(value) = json.get(key) {
            let problem = format!("`{key}` is {value}, which is not computed here");
            return Err(DiffusersError::unfit(&json.path, problem));
        }
    }
    Ok(())
}

/// Returns, for each level of the U-Net, true if it has attention.
fn attention_levels(json: &Json, levels: usize) -> Result<Vec<bool>, DiffusersError> {
    let (down, up) = (json.words("down_block_types")?, json.words("up_block_types")?);
    let attends = |words: &[String], plain: &str, attending: &str| -> Result<Vec<bool>, DiffusersError> {
        let of = |word: &String| match word.as_str() {
            word if word == attending => Ok(true),
            word if word == plain => Ok(false),
            other => {
                let problem = format!("a block of type {other}; {attending} and {plain} are computed here");
                Err(DiffusersError::unfit(&json.path, problem))
            }
        };
        words.iter().map(of).collect()
    };
    let attention = attends(&down, "DownBlock2D", "CrossAttnDownBlock2D")?;
    let mut mirrored = attends(&up, "UpBlock2D", "CrossAttnUpBlock2D")?;
    mirrored.reverse();
    if attention != mirrored || attention.len() != levels {
        let problem =
            format!("down_block_types and up_block_types do not mirror each other over {levels} levels");
        return Err(DiffusersError::unfit(&json.path, problem));
    }
    Ok(attention)
}

/// Reads the autoencoder's configuration, and the scaling factor of its latent images.
pub(super) fn autoencoder(json: &Json) -> Result<(AutoencoderKLConfig, f64), DiffusersError> {
    json.only(&[
        ("_class_name", json!("AutoencoderKL")),
        ("act_fn", json!("silu")),
        ("use_quant_conv", json!(true)),
        ("use_post_quant_conv", json!(true)),
        ("mid_block_add_attention", json!(true)),
        ("in_channels", json!(3)),
        ("out_channels", json!(3)),
    ])?;
    for (key, only) in [("down_block_types", "DownEncoderBlock2D"), ("up_block_types", "UpDecoderBlock2D")] {
        if let Some(other) = json.words(key)?.iter().find(|word| *word != only) {
            let problem = format!("`{key}` has a {other}; only {only} is computed here");
            return Err(DiffusersError::unfit(&json.path, problem));
        }
    }
    if let Some(shift) = json.get("shift_factor") {
        return Err(DiffusersError::unfit(
            &json.path,
            format!("`shift_factor` is {shift}, which is not computed here"),
        ));
    }
    let config = AutoencoderKLConfig {
        in_channels: 3,
        out_channels: 3,
        block_out_channels: json.sizes("block_out_channels")?,
        layers_per_block: json.count_or("layers_per_block", 1)?,
        latent_channels: json.size_or("latent_channels", 4)?,
        norm_num_groups: json.size_or("norm_num_groups", 32)?,
    };
    Ok((config, json.number_or("scaling_factor", 0.18215)?))
}

/// Reads the text encoder's configuration.
pub(super) fn text(json: &Json) -> Result<ClipTextConfig, DiffusersError> {
    json.only(&[
        ("model_type", json!("clip_text_model")),
        ("hidden_act", json!("quick_gelu")),
        ("layer_norm_eps", json!(1e-5)),
    ])?;
    let width = json.size("hidden_size")?;
    let inner = json.size("intermediate_size")?;
    if inner != 4 * width {
        let problem = format!("`intermediate_size` is {inner}; expected 4 x hidden_size = {}", 4 * width);
        return Err(DiffusersError::unfit(&json.path, problem));
    }
    Ok(ClipTextConfig {
        context: json.size("max_position_embeddings")?,
        vocab: json.size("vocab_size")?,
        width,
        heads: json.size("num_attention_heads")?,
        layers: json.count("num_hidden_layers")?,
        // The projected feature is not used.
        embed: width,
        causal: true,
    })
}

/// Reads the noise schedule from the scheduler's file.
#[derive(Debug, Clone)]
pub(super) struct Scheduler {
    pub(super) schedule: NoiseSchedule,
    pub(super) prediction: Prediction,
    pub(super) steps_offset: usize,
    pub(super) set_alpha_to_one: bool,
}

pub(super) fn scheduler(json: &Json) -> Result<Scheduler, DiffusersError> {
    let wrong = |error: phalanx_tensor::TensorError| DiffusersError::unfit(&json.path, error.to_string());
    if let Some(betas) = json.get("trained_betas") {
        return Err(DiffusersError::unfit(
            &json.path,
            format!("`trained_betas` are {betas}, which are not read"),
        ));
    }
    let kind: BetaSchedule = json.word_or("beta_schedule", "linear")?.parse().map_err(wrong)?;
    let range = (json.number_or("beta_start", 1e-4)?, json.number_or("beta_end", 0.02)?);
    let mut schedule =
        NoiseSchedule::new(kind, json.size_or("num_train_timesteps", 1000)?, range).map_err(wrong)?;
    if json.flag_or("rescale_betas_zero_snr", false)? {
        schedule = schedule.zero_terminal_snr();
    }
    let offset = json.number_or("steps_offset", 0.0)?;
    Ok(Scheduler {
        schedule,
        prediction: json.word_or("prediction_type", "epsilon")?.parse().map_err(wrong)?,
        steps_offset: offset.max(0.0) as usize,
        set_alpha_to_one: json.flag_or("set_alpha_to_one", true)?,
    })
}

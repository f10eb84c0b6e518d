//! The trained network: a U-Net, and the text encoder of its captions.

use phalanx_models::diffusion::{
    COORDINATES, TextAttention, TextCondition, UNet2DConditionConfig, UNet2DConditionModel, UNet2DConfig,
    UNet2DModel, Uncertainty, from_patches, to_patches, with_coordinates,
};
use phalanx_models::{ClipTextConfig, ClipTextEncoder, TextFeatures};
use phalanx_tensor::{Buffer, Result, Scope, Tape, TensorError, Value};

use super::DiffusionSettings;
use crate::tasks::text::Texts;
use phalanx_trainer::engine::TrainError;

/// A U-Net, with a text encoder if it is conditional, and the scale of the images that it denoises.
pub(super) struct Denoiser {
    unet: Unet,
    /// Adds coordinates to the images.
    has_coordinates: bool,
    /// The side of the patches that are positions of the U-Net.
    patch: usize,
    /// The expected error of each timestep, if it is learnt.
    uncertainty: Option<Uncertainty>,
    /// The scaling factor of latent images; 0 until it is measured.
    scale: Buffer,
}

enum Unet {
    Conditional(Box<(UNet2DConditionModel, ClipTextEncoder)>),
    Unconditional(Box<UNet2DModel>),
}

impl Denoiser {
    /// Registers a U-Net for `channels` channels under `unet`, and with `text` a text encoder under `text`.
    pub(super) fn new(
        scope: &Scope,
        settings: &DiffusionSettings,
        channels: usize,
        text: Option<&ClipTextConfig>,
    ) -> Result<Self> {
        let place = scope.pp("unet");
        let has_coordinates = settings.unet.coordinates;
        let patch = settings.unet.patch;
        let channels = channels * patch * patch;
        let in_channels = channels + if has_coordinates { COORDINATES } else { 0 };
        let unet = match text {
            Some(text) => {
                let config = UNet2DConditionConfig {
                    in_channels,
                    out_channels: channels,
                    block_out_channels: settings.unet.widths.clone(),
                    attention: settings.unet.attention.clone(),
                    layers_per_block: settings.unet.layers,
                    norm_num_groups: settings.unet.groups,
                    cross_attention_dim: text.width,
                    projection_class_embeddings_input_dim: settings.pool_text.then_some(text.embed),
                    num_heads: vec![settings.unet.heads; settings.unet.widths.len()],
                    dropout: settings.unet.dropout,
                    zero_init: settings.unet.zero_init,
                    ..UNet2DConditionConfig::stable_diffusion_1()
                };
                let of_text = scope.pp("text");
                let frozen = settings.caption.freeze_text && !settings.caption.text.text_weights.is_empty();
                let of_text = if frozen { of_text.frozen() } else { of_text };
                let encoder = ClipTextEncoder::new(&of_text, text)?;
                Unet::Conditional(Box::new((UNet2DConditionModel::new(&place, &config)?, encoder)))
            }
            None => {
                let config = UNet2DConfig {
                    in_channels,
                    block_out_channels: settings.unet.widths.clone(),
                    attention: settings.unet.attention.clone(),
                    layers_per_block: settings.unet.layers,
                    norm_num_groups: settings.unet.groups,
                    // As many heads at every width as the smallest that attends has.
                    attention_head_dim: settings
                        .unet
                        .widths
                        .last()
                        .map(|width| width / settings.unet.heads.max(1)),
                    dropout: settings.unet.dropout,
                    zero_init: settings.unet.zero_init,
                    ..UNet2DConfig::small(channels)
                };
                Unet::Unconditional(Box::new(UNet2DModel::new(&place, &config)?))
            }
        };
        let uncertainty = settings.target.uncertainty.then(|| Uncertainty::new(scope)).transpose()?;
        Ok(Self { unet, has_coordinates, patch, uncertainty, scale: scope.buffer("latent_scale", 1, 0.0)? })
    }

    /// Returns the scaling factor of latent images, if it was measured.
    pub(super) fn scale(&self) -> Result<Option<f64>> {
        let scale = self.scale.array().number()?;
        Ok((scale != 0.0).then_some(scale))
    }

    /// Sets the scaling factor of latent images.
    pub(super) fn set_scale(&self, scale: f64) -> Result<()> {
        let like = self.scale.array();
        let value = like.to_host()?.affine(0.0, scale)?;
        self.scale.set_array(like.alongside(&value)?)
    }

    /// Encodes captions, if the network is conditional.
    pub(super) fn read(
        &self,
        tape: &Tape,
        texts: &Texts,
        captions: &[String],
    ) -> std::result::Result<Option<TextFeatures>, TrainError> {
        let Unet::Conditional(both) = &self.unet else { return Ok(None) };
        Ok(Some(both.1.forward_whole(tape, &texts.encode(captions)?)?))
    }

    /// Returns the prediction for samples at timesteps. A conditional network needs the features of captions.
    pub(super) fn predict(
        &self,
        tape: &Tape,
        sample: &Value,
        timesteps: &[f64],
        features: Option<&TextFeatures>,
    ) -> Result<Value> {
        let sample = &self.input(tape, sample)?;
        let predicted = match (&self.unet, features) {
            (Unet::Conditional(both), Some(features)) => {
                both.0.forward(tape, sample, timesteps, condition(&both.0, features))
            }
            (Unet::Unconditional(unet), _) => unet.forward(tape, sample, timesteps),
            (Unet::Conditional(_), None) => {
                let problem = "a conditional network needs captions".to_owned();
                Err(TensorError::Shape { op: "u-net", problem })
            }
        }?;
        if self.patch == 1 { Ok(predicted) } else { from_patches(tape, &predicted, self.patch) }
    }

    /// Returns the logarithm of the expected error at timesteps, [N, 1], if it is learnt.
    pub(super) fn log_error(&self, tape: &Tape, timesteps: &[f64]) -> Result<Option<Value>> {
        self.uncertainty.as_ref().map(|uncertainty| uncertainty.forward(tape, timesteps)).transpose()
    }

    /// Returns the attention of each layer to captions; none of an unconditional network.
    pub(super) fn text_attention(
        &self,
        tape: &Tape,
        sample: &Value,
        timesteps: &[f64],
        features: Option<&TextFeatures>,
    ) -> Result<Vec<TextAttention>> {
        let sample = &self.input(tape, sample)?;
        match (&self.unet, features) {
            (Unet::Conditional(both), Some(features)) => {
                both.0.text_attention(tape, sample, timesteps, condition(&both.0, features))
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Returns the input of the network: images as patches, with coordinates if it takes them.
    fn input(&self, tape: &Tape, sample: &Value) -> Result<Value> {
        let patches = if self.patch == 1 { sample.clone() } else { to_patches(tape, sample, self.patch)? };
        if self.has_coordinates { with_coordinates(tape, &patches) } else { Ok(patches) }
    }
}

/// The features of captions that a network takes.
fn condition<'f>(unet: &UNet2DConditionModel, features: &'f TextFeatures) -> TextCondition<'f> {
    let pooled = unet.config().projection_class_embeddings_input_dim.is_some();
    TextCondition { tokens: &features.tokens, feature: pooled.then_some(&features.pooled) }
}

//! The U-Net with a text.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use phalanx_tensor::{Block, Result, Scope, Tape, TensorError, Value};

use super::UNet2DConfig;
use super::trunk::{Trunk, TrunkInput};
use crate::diffusion::layers::{TextShares, Transformer2D, TransformerConfig};
use crate::run_block::run_block;

/// The settings of a [`UNet2DConditionModel`], under diffusers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct UNet2DConditionConfig {
    /// The channels of the noisy images: 4 for Stable Diffusion's latent images.
    pub in_channels: usize,
    /// The channels of the prediction.
    pub out_channels: usize,
    /// The channels of each level, from full size inwards; each further level has half the size.
    pub block_out_channels: Vec<usize>,
    /// The levels with spatial transformers after their residual blocks, downwards and upwards. The middle always has
    /// one.
    pub attention: Vec<bool>,
    /// The residual blocks of each level on the way down; the way up has one more.
    pub layers_per_block: usize,
    /// The groups of each group norm.
    pub norm_num_groups: usize,
    /// The width of the text tokens.
    pub cross_attention_dim: usize,
    /// The width of a feature of the whole text that is projected and added to the embedded time: diffusers'
    /// `class_embed_type` "simple_projection". `None` uses the time alone.
    pub projection_class_embeddings_input_dim: Option<usize>,
    /// The attention heads of each level. Stable Diffusion 1 calls the number `attention_head_dim`.
    pub num_heads: Vec<usize>,
    /// The layers of each spatial transformer.
    pub transformer_layers_per_block: usize,
    /// Uses fully connected layers rather than 1×1 convolutions at both ends of spatial transformers.
    pub use_linear_projection: bool,
    /// The dropout probability of residual blocks.
    pub dropout: f64,
    /// Starts the last layer of each residual branch and of the network at zero, as in DDPM; diffusers initialises them
    /// like the rest.
    pub zero_init: bool,
}

impl UNet2DConditionConfig {
    /// Returns settings for tests and small latent images: 64 and 128 channels, transformers at both sizes.
    pub fn small(channels: usize, cross_attention_dim: usize) -> Self {
        Self {
            block_out_channels: vec![64, 128],
            attention: vec![true; 2],
            layers_per_block: 1,
            num_heads: vec![4, 4],
            norm_num_groups: 8,
            cross_attention_dim,
            in_channels: channels,
            out_channels: channels,
            ..Self::stable_diffusion_1()
        }
    }

    /// Returns the settings of Stable Diffusion 1.1 to 1.5: 859,520,964 parameters, for latent images of 4 channels and
    /// the texts of CLIP ViT-L/14.
    pub fn stable_diffusion_1() -> Self {
        Self {
            in_channels: 4,
            out_channels: 4,
            block_out_channels: vec![320, 640, 1280, 1280],
            attention: vec![true, true, true, false],
            layers_per_block: 2,
            norm_num_groups: 32,
            cross_attention_dim: 768,
            projection_class_embeddings_input_dim: None,
            num_heads: vec![8; 4],
            transformer_layers_per_block: 1,
            use_linear_projection: false,
            dropout: 0.0,
            zero_init: false,
        }
    }

    /// Returns the settings of Stable Diffusion 2.0 and 2.1: heads of 64 elements, the texts of OpenCLIP ViT-H/14.
    pub fn stable_diffusion_2() -> Self {
        Self {
            cross_attention_dim: 1024,
            num_heads: vec![5, 10, 20, 20],
            use_linear_projection: true,
            ..Self::stable_diffusion_1()
        }
    }
}

/// The texts that condition a [`UNet2DConditionModel`].
#[derive(Debug, Clone, Copy)]
pub struct TextCondition<'v> {
    /// The tokens [N, S, cross_attention_dim].
    pub tokens: &'v Value,
    /// The features [N, projection_class_embeddings_input_dim], for a network that takes them.
    pub feature: Option<&'v Value>,
}

impl<'v> From<&'v Value> for TextCondition<'v> {
    fn from(tokens: &'v Value) -> Self {
        Self { tokens, feature: None }
    }
}

/// A U-Net whose spatial transformers attend to the tokens of a text, with the parameter names of diffusers'
/// `UNet2DConditionModel`.
#[derive(Debug, Clone)]
pub struct UNet2DConditionModel {
    config: UNet2DConditionConfig,
    trunk: Trunk,
    /// The spatial transformers, in the order of execution.
    transformers: Vec<PlacedTransformer>,
}

/// A spatial transformer, with its name in the network.
#[derive(Debug, Clone)]
struct PlacedTransformer {
    name: String,
    transformer: Arc<Transformer2D>,
}

/// The attention of a spatial transformer to a text.
#[derive(Debug, Clone)]
pub struct TextAttention {
    /// The name of the transformer in diffusers, such as `mid_block.attentions.0`.
    pub name: String,
    /// Height and width of its images.
    pub size: [usize; 2],
    /// The shares [N, H·W, S] that pixels, row by row, take from each token; the mean of heads and layers. They sum to 1.
    pub shares: Value,
}

impl UNet2DConditionModel {
    /// Registers the model's parameters.
    ///
    /// # Errors
    /// If a name is taken, groups or heads do not divide widths, or the numbers of levels differ.
    pub fn new(scope: &Scope, config: &UNet2DConditionConfig) -> Result<Self> {
        let levels = config.block_out_channels.len();
        if config.num_heads.len() != levels {
            let problem = format!("`num_heads` has {} entries for {levels} levels", config.num_heads.len());
            return Err(TensorError::Shape { op: "u-net", problem });
        }
        let trunk = UNet2DConfig {
            in_channels: config.in_channels,
            out_channels: config.out_channels,
            block_out_channels: config.block_out_channels.clone(),
            attention: config.attention.clone(),
            layers_per_block: config.layers_per_block,
            norm_num_groups: config.norm_num_groups,
            norm_eps: 1e-5,
            attention_head_dim: None,
            flip_sin_to_cos: true,
            freq_shift: 0.0,
            downsample_padding: 1,
            dropout: config.dropout,
            zero_init: config.zero_init,
        };
        let transformers = RefCell::new(Vec::new());
        let prefix = scope.prefix();
        let attend = |scope: &Scope, channels: usize, level: usize| -> Result<Arc<dyn Block>> {
            let config = TransformerConfig {
                channels,
                heads: config.num_heads[level],
                layers: config.transformer_layers_per_block,
                groups: config.norm_num_groups,
                text: config.cross_attention_dim,
                linear: config.use_linear_projection,
                zero_init: config.zero_init,
            };
            let transformer = Arc::new(Transformer2D::new(scope, config)?);
            let name = scope.prefix();
            let name = name.strip_prefix(prefix).unwrap_or(name).trim_start_matches('.').to_owned();
            transformers.borrow_mut().push(PlacedTransformer { name, transformer: transformer.clone() });
            Ok(transformer)
        };
        let class = config.projection_class_embeddings_input_dim;
        let trunk = Trunk::new(scope, trunk, class, attend)?;
        Ok(Self { trunk, transformers: transformers.into_inner(), config: config.clone() })
    }

    /// Returns the settings.
    pub fn config(&self) -> &UNet2DConditionConfig {
        &self.config
    }

    /// Returns every block in the order of execution. They are not a sequence: residual blocks also take the embedded
    /// time and, on the way up, a skip connection; spatial transformers take the text.
    pub fn blocks(&self) -> Vec<Arc<dyn Block>> {
        self.trunk.blocks()
    }

    /// Computes the prediction for noisy images at timesteps and texts.
    ///
    /// # Shapes
    /// `sample` [N, in_channels, H, W], `timesteps` one for each sample or one for all, `text` [N, S,
    /// cross_attention_dim], with features if the network takes them. The result is [N, out_channels, H, W].
    ///
    /// # Errors
    /// If the shapes do not fit, or features are given or missing against the settings.
    pub fn forward<'v>(
        &self,
        tape: &Tape,
        sample: &Value,
        timesteps: &[f64],
        text: impl Into<TextCondition<'v>>,
    ) -> Result<Value> {
        self.forward_watched(tape, sample, timesteps, text, &mut |_, _| {})
    }

    /// Like [`UNet2DConditionModel::forward`], and passes intermediate values to `watch`, with the names of their
    /// modules in diffusers.
    ///
    /// # Errors
    /// Errors of [`UNet2DConditionModel::forward`].
    pub fn forward_watched<'v>(
        &self,
        tape: &Tape,
        sample: &Value,
        timesteps: &[f64],
        text: impl Into<TextCondition<'v>>,
        watch: &mut dyn FnMut(&str, &Value),
    ) -> Result<Value> {
        let TextCondition { tokens: text, feature } = text.into();
        let width = self.config.cross_attention_dim;
        if !matches!(text.dims(), [batch, _, last] if *last == width && *batch == sample.dims()[0]) {
            let (text, sample) = (text.shape(), sample.shape());
            let problem = format!("a text of {text:?} for images of {sample:?}; expected [N, S, {width}]");
            return Err(TensorError::Shape { op: "u-net", problem });
        }
        self.trunk.forward(tape, TrunkInput { sample, timesteps, text: Some(text), feature }, watch)
    }

    /// Computes what the pixels of noisy images attend to in a text, in each spatial transformer.
    ///
    /// # Errors
    /// Errors of [`UNet2DConditionModel::forward`].
    pub fn text_attention<'v>(
        &self,
        tape: &Tape,
        sample: &Value,
        timesteps: &[f64],
        text: impl Into<TextCondition<'v>>,
    ) -> Result<Vec<TextAttention>> {
        let text = text.into();
        let mut inputs = BTreeMap::new();
        self.forward_watched(tape, sample, timesteps, text, &mut |name, value| {
            if name.contains("resnets") {
                inputs.insert(name.replace("resnets", "attentions"), value.clone());
            }
        })?;
        let of = |placed: &PlacedTransformer| {
            let x = inputs.remove(&placed.name).ok_or_else(|| {
                TensorError::Backward(format!("the input of {} was not watched", placed.name))
            })?;
            let size = [x.dims()[2], x.dims()[3]];
            let block: Arc<dyn Block> = Arc::new(TextShares(placed.transformer.clone()));
            let shares = run_block(tape, &block, &[x, text.tokens.clone()])?;
            Ok(TextAttention { name: placed.name.clone(), size, shares })
        };
        self.transformers.iter().map(of).collect()
    }
}

//! The spatial transformer: attention of the pixels of an image to each other and to a text (Rombach et al. 2022).

use std::sync::Arc;

use phalanx_tensor::nn::{Conv2d, GroupNorm, LayerNorm, Linear};
use phalanx_tensor::ops::{self, Conv2dOptions};
use phalanx_tensor::{Block, Result, Scope, Tape, TensorError, Value};

use super::attention::{Projections, to_image, to_tokens};
use super::{conv, linear};

/// The sizes of a [`Transformer2D`].
#[derive(Debug, Clone, Copy)]
pub(in crate::diffusion) struct TransformerConfig {
    /// The channels.
    pub(in crate::diffusion) channels: usize,
    /// The heads.
    pub(in crate::diffusion) heads: usize,
    /// The layers.
    pub(in crate::diffusion) layers: usize,
    /// The groups of the norm.
    pub(in crate::diffusion) groups: usize,
    /// The width of the text tokens.
    pub(in crate::diffusion) text: usize,
    /// Uses fully connected layers rather than 1×1 convolutions for `proj_in` and `proj_out`.
    pub(in crate::diffusion) linear: bool,
    /// Starts `proj_out` at zero.
    pub(in crate::diffusion) zero_init: bool,
}

/// Self-attention, cross-attention and feed-forward, each after a layer norm and with a skip connection: diffusers'
/// `BasicTransformerBlock`.
#[derive(Debug)]
struct Layer {
    norm1: LayerNorm,
    attn1: Projections,
    norm2: LayerNorm,
    attn2: Projections,
    norm3: LayerNorm,
    /// `ff.net.0.proj`: to values and gates.
    expand: Linear,
    /// `ff.net.2`.
    reduce: Linear,
}

impl Layer {
    fn new(scope: &Scope, config: TransformerConfig) -> Result<Self> {
        let TransformerConfig { channels, heads, text, .. } = config;
        let norm = |name: &str| LayerNorm::new(&scope.pp(name), channels, 1e-5);
        let attention =
            |name: &str, seen| Projections::new(&scope.pp(name), (channels, seen), heads, false, false);
        let net = scope.pp("ff").pp("net");
        let inner = 4 * channels;
        Ok(Self {
            norm1: norm("norm1")?,
            attn1: attention("attn1", channels)?,
            norm2: norm("norm2")?,
            attn2: attention("attn2", text)?,
            norm3: norm("norm3")?,
            expand: Linear::new(&net.pp(0).pp("proj"), channels, 2 * inner)?,
            reduce: Linear::new(&net.pp(2), inner, channels)?,
        })
    }

    /// Returns the shares [N, T, S] that tokens [N, T, C] take from those of the text.
    fn text_shares(&self, tape: &Tape, x: &Value, text: &Value) -> Result<Value> {
        let x = self.mixed(tape, x)?;
        self.attn2.shares(tape, &self.norm2.forward(tape, &x)?, text)
    }

    /// Applies self-attention.
    fn mixed(&self, tape: &Tape, x: &Value) -> Result<Value> {
        let normed = self.norm1.forward(tape, x)?;
        ops::add(tape, &self.attn1.forward(tape, &normed, &normed)?, x)
    }

    fn forward(&self, tape: &Tape, x: &Value, text: &Value) -> Result<Value> {
        let x = self.mixed(tape, x)?;
        let seen = self.attn2.forward(tape, &self.norm2.forward(tape, &x)?, text)?;
        let x = ops::add(tape, &seen, &x)?;
        let both = self.expand.forward(tape, &self.norm3.forward(tape, &x)?)?;
        let out = self.reduce.forward(tape, &ops::geglu(tape, &both)?)?;
        ops::add(tape, &out, &x)
    }
}

/// A projection of channels, over the image or over its tokens.
#[derive(Debug)]
enum Projection {
    Conv(Conv2d),
    Linear(Linear),
}

/// Norm, `proj_in`, layers over the pixels, `proj_out`, and a skip connection, with the names of diffusers'
/// `Transformer2DModel`.
#[derive(Debug)]
pub(in crate::diffusion) struct Transformer2D {
    name: String,
    norm: GroupNorm,
    proj_in: Projection,
    layers: Vec<Layer>,
    proj_out: Projection,
}

impl Transformer2D {
    pub(in crate::diffusion) fn new(scope: &Scope, config: TransformerConfig) -> Result<Self> {
        let scope = scope.block();
        let TransformerConfig { channels, groups, .. } = config;
        let project = |name: &str, zero: bool| -> Result<Projection> {
            let (scope, sizes) = (scope.pp(name), (channels, channels, 1));
            Ok(match config.linear {
                true => Projection::Linear(linear(&scope, channels, channels, zero)?),
                false => Projection::Conv(conv(&scope, sizes, Conv2dOptions::new(1, 0), zero)?),
            })
        };
        let layers = scope.pp("transformer_blocks");
        Ok(Self {
            // Stable Diffusion has 1e-6 here and 1e-5 elsewhere.
            norm: GroupNorm::new(&scope.pp("norm"), groups, channels, 1e-6)?,
            proj_in: project("proj_in", false)?,
            layers: (0..config.layers)
                .map(|index| Layer::new(&layers.pp(index), config))
                .collect::<Result<_>>()?,
            proj_out: project("proj_out", config.zero_init)?,
            name: scope.block_name().to_owned(),
        })
    }

    /// Returns the tokens [N, H·W, C] of images [N, C, H, W].
    fn tokens(&self, tape: &Tape, x: &Value) -> Result<Value> {
        let normed = self.norm.forward(tape, x)?;
        match &self.proj_in {
            Projection::Conv(conv) => to_tokens(tape, &conv.forward(tape, &normed)?),
            Projection::Linear(linear) => linear.forward(tape, &to_tokens(tape, &normed)?),
        }
    }
}

/// Splits the inputs of a block into images and a text.
fn images_and_text(inputs: &[Value]) -> Result<(&Value, &Value)> {
    match inputs {
        [x, text] => Ok((x, text)),
        _ => {
            let problem = "a spatial transformer takes images and a text".to_owned();
            Err(TensorError::Shape { op: "attention", problem })
        }
    }
}

impl Block for Transformer2D {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes images [N, C, H, W] and text tokens [N, S, text]; returns images.
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let (x, text) = images_and_text(inputs)?;
        let mut tokens = self.tokens(tape, x)?;
        for layer in &self.layers {
            tokens = layer.forward(tape, &tokens, text)?;
        }
        let out = match &self.proj_out {
            Projection::Conv(conv) => conv.forward(tape, &to_image(tape, &tokens, x)?)?,
            Projection::Linear(linear) => to_image(tape, &linear.forward(tape, &tokens)?, x)?,
        };
        Ok(vec![ops::add(tape, &out, x)?])
    }
}

/// The attention of a [`Transformer2D`] to the text, as a block of the same parameters.
#[derive(Debug)]
pub(in crate::diffusion) struct TextShares(pub(in crate::diffusion) Arc<Transformer2D>);

impl Block for TextShares {
    fn name(&self) -> &str {
        self.0.name()
    }

    /// Takes images [N, C, H, W] and text tokens [N, S, text]; returns the shares [N, H·W, S] that pixels take from each token, the mean
    /// of heads and layers.
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let (x, text) = images_and_text(inputs)?;
        let layers = &self.0.layers;
        let mut tokens = self.0.tokens(tape, x)?;
        let mut sum: Option<Value> = None;
        for layer in layers {
            let shares = layer.text_shares(tape, &tokens, text)?;
            sum = Some(match sum {
                Some(sum) => ops::add(tape, &sum, &shares)?,
                None => shares,
            });
            tokens = layer.forward(tape, &tokens, text)?;
        }
        let sum = sum.ok_or_else(|| TensorError::Backward("a spatial transformer has no layers".into()))?;
        Ok(vec![ops::scale(tape, &sum, 1.0 / layers.len() as f64)?])
    }
}

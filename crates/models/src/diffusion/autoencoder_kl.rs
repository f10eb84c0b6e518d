//! The autoencoder of latent diffusion (Rombach et al. 2022), after diffusers' `AutoencoderKL`.

use std::sync::Arc;

use phalanx_tensor::loss::{self, Over};
use phalanx_tensor::{Block, Result, Scope, Tape, TensorError, Value, ops};

use super::layers::{
    Attention, AttentionConfig, Convolution, Downsample2D, NormAndConvolution, ResnetBlock2D, ResnetConfig,
    Upsample2D,
};

/// Added to the variance in every norm.
const EPS: f64 = 1e-6;

/// The settings of an [`AutoencoderKL`], under diffusers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct AutoencoderKLConfig {
    /// Channels of images.
    pub in_channels: usize,
    /// Channels of reconstructions.
    pub out_channels: usize,
    /// Channels of each level, from the whole size inwards; each next level has half the size.
    pub block_out_channels: Vec<usize>,
    /// Residual blocks of a level of the encoder; the decoder has one more.
    pub layers_per_block: usize,
    /// Channels of latent images.
    pub latent_channels: usize,
    /// Groups of each group norm.
    pub norm_num_groups: usize,
}

impl AutoencoderKLConfig {
    /// One for small pictures: 32 and 64 channels, latent images of 4 channels and half the size.
    pub fn small() -> Self {
        Self {
            in_channels: 3,
            out_channels: 3,
            block_out_channels: vec![32, 64],
            layers_per_block: 1,
            latent_channels: 4,
            norm_num_groups: 8,
        }
    }

    /// Stable Diffusion's: 83,653,863 parameters, latent images of 4 channels and an eighth of the size.
    pub fn stable_diffusion() -> Self {
        Self {
            block_out_channels: vec![128, 256, 512, 512],
            layers_per_block: 2,
            norm_num_groups: 32,
            ..Self::small()
        }
    }

    /// How many times smaller a latent image's sides are.
    pub fn factor(&self) -> usize {
        1 << self.block_out_channels.len().saturating_sub(1)
    }
}

/// A latent distribution: a mean and the logarithm of a variance for every element, [N, latent_channels, H, W] each.
#[derive(Debug, Clone)]
pub struct LatentDistribution {
    /// The mean.
    pub mean: Value,
    /// The logarithm of the variance, between −30 and 20.
    pub logvar: Value,
}

impl LatentDistribution {
    /// A draw: mean + e^(logvar/2)·ε, of noise of the same shape; gradients flow to both.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn sample(&self, tape: &Tape, noise: &Value) -> Result<Value> {
        let std = ops::exp(tape, &ops::scale(tape, &self.logvar, 0.5)?)?;
        ops::add(tape, &self.mean, &ops::mul(tape, &std, noise)?)
    }

    /// The divergence from the standard normal distribution, summed over a sample's elements, the mean over samples.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn kl(&self, tape: &Tape, over: Over) -> Result<Value> {
        loss::kl_standard_normal(tape, &self.mean, &self.logvar, over)
    }
}

/// An autoencoder of images whose latent codes are images too, with the parameter names of diffusers' `AutoencoderKL`.
#[derive(Debug, Clone)]
pub struct AutoencoderKL {
    config: AutoencoderKLConfig,
    /// Images to moments, each of one value.
    encoder: Vec<(String, Arc<dyn Block>)>,
    /// Latent images to images, each of one value.
    decoder: Vec<(String, Arc<dyn Block>)>,
}

impl AutoencoderKL {
    /// Registers the model's parameters.
    ///
    /// # Errors
    /// If a name is taken, or groups do not divide widths.
    pub fn new(scope: &Scope, config: &AutoencoderKLConfig) -> Result<Self> {
        let (Some(&first), Some(&last)) =
            (config.block_out_channels.first(), config.block_out_channels.last())
        else {
            let problem = "an autoencoder has at least one level".to_owned();
            return Err(TensorError::Shape { op: "autoencoder", problem });
        };
        let (latent, groups) = (config.latent_channels, config.norm_num_groups);
        let mut encoder = Side::new(scope.pp("encoder"), "encoder", groups);
        encoder.push("conv_in", |scope| Convolution::new(scope, (config.in_channels, first, 3)))?;
        encoder.levels(
            "down_blocks",
            &config.block_out_channels,
            config.layers_per_block,
            first,
            |side, width| side.push("downsamplers.0", |scope| Downsample2D::new(scope, width, 0)),
        )?;
        encoder.middle(last)?;
        encoder.exit(last, 2 * latent)?;
        let mut encoder = encoder.blocks;
        let quant = Convolution::new(&scope.pp("quant_conv"), (2 * latent, 2 * latent, 1))?;
        encoder.push(("quant_conv".into(), Arc::new(quant)));
        let post_quant = Convolution::new(&scope.pp("post_quant_conv"), (latent, latent, 1))?;
        let mut decoder = Side::new(scope.pp("decoder"), "decoder", groups);
        decoder.blocks.push(("post_quant_conv".into(), Arc::new(post_quant)));
        decoder.push("conv_in", |scope| Convolution::new(scope, (latent, last, 3)))?;
        decoder.middle(last)?;
        let widths: Vec<usize> = config.block_out_channels.iter().rev().copied().collect();
        decoder.levels("up_blocks", &widths, config.layers_per_block + 1, last, |side, width| {
            side.push("upsamplers.0", |scope| Upsample2D::new(scope, width))
        })?;
        decoder.exit(first, config.out_channels)?;
        Ok(Self { config: config.clone(), encoder, decoder: decoder.blocks })
    }

    /// The settings.
    pub fn config(&self) -> &AutoencoderKLConfig {
        &self.config
    }

    /// The encoder's blocks, from images to means and logarithms of variances one after the other along the channels: a
    /// sequence.
    pub fn encoder_blocks(&self) -> Vec<Arc<dyn Block>> {
        self.encoder.iter().map(|(_, block)| block.clone()).collect()
    }

    /// The decoder's blocks, from latent images to images: a sequence.
    pub fn decoder_blocks(&self) -> Vec<Arc<dyn Block>> {
        self.decoder.iter().map(|(_, block)| block.clone()).collect()
    }

    /// The latent distribution of images.
    ///
    /// # Shapes
    /// `images` [N, in_channels, H, W], their sides multiples of [`AutoencoderKLConfig::factor`].
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn encode(&self, tape: &Tape, images: &Value) -> Result<LatentDistribution> {
        self.encode_watched(tape, images, &mut |_, _| {})
    }

    /// [`AutoencoderKL::encode`], telling `watch` the values on the way by the names that their makers have in diffusers.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn encode_watched(
        &self,
        tape: &Tape,
        images: &Value,
        watch: &mut dyn FnMut(&str, &Value),
    ) -> Result<LatentDistribution> {
        let factor = self.config.factor();
        if !matches!(images.dims(), [_, _, h, w] if h.is_multiple_of(factor) && w.is_multiple_of(factor)) {
            let problem =
                format!("images of {:?}; expected sides that are multiples of {factor}", images.shape());
            return Err(TensorError::Shape { op: "autoencoder", problem });
        }
        let moments = run(tape, &self.encoder, images, watch)?;
        let latent = self.config.latent_channels;
        let mean = ops::narrow(tape, &moments, 1, 0, latent)?;
        let logvar = ops::clamp(tape, &ops::narrow(tape, &moments, 1, latent, latent)?, -30.0, 20.0)?;
        Ok(LatentDistribution { mean, logvar })
    }

    /// Images of latent images: near [−1, 1], but not cut off there.
    ///
    /// # Shapes
    /// `latent` [N, latent_channels, H, W]; the sides of the result are [`AutoencoderKLConfig::factor`] times as long.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn decode(&self, tape: &Tape, latent: &Value) -> Result<Value> {
        self.decode_watched(tape, latent, &mut |_, _| {})
    }

    /// [`AutoencoderKL::decode`], telling `watch` the values on the way by the names that their makers have in diffusers.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn decode_watched(
        &self,
        tape: &Tape,
        latent: &Value,
        watch: &mut dyn FnMut(&str, &Value),
    ) -> Result<Value> {
        run(tape, &self.decoder, latent, watch)
    }
}

fn run(
    tape: &Tape,
    blocks: &[(String, Arc<dyn Block>)],
    input: &Value,
    watch: &mut dyn FnMut(&str, &Value),
) -> Result<Value> {
    blocks.iter().try_fold(input.clone(), |x, (name, block)| {
        let x = tape.run1(block, &x)?;
        watch(name, &x);
        Ok(x)
    })
}

/// The encoder or the decoder while it is registered.
struct Side {
    scope: Scope,
    name: &'static str,
    groups: usize,
    blocks: Vec<(String, Arc<dyn Block>)>,
}

impl Side {
    fn new(scope: Scope, name: &'static str, groups: usize) -> Self {
        Self { scope, name, groups, blocks: Vec::new() }
    }

    /// Adds a block at a place.
    fn push<B: Block + 'static>(
        &mut self,
        place: &str,
        make: impl FnOnce(&Scope) -> Result<B>,
    ) -> Result<()> {
        let block = make(&self.scope.pp(place))?;
        self.blocks.push((format!("{}.{place}", self.name), Arc::new(block)));
        Ok(())
    }

    fn resnet(&mut self, place: &str, inputs: usize, outputs: usize) -> Result<()> {
        let config =
            ResnetConfig { groups: self.groups, eps: EPS, time: None, dropout: 0.0, zero_init: false };
        self.push(place, |scope| ResnetBlock2D::new(scope, inputs, outputs, config))
    }

    /// Adds levels of `layers` residual blocks each, and what `resize` adds between them.
    fn levels(
        &mut self,
        place: &str,
        widths: &[usize],
        layers: usize,
        mut inputs: usize,
        resize: impl Fn(&mut Self, usize) -> Result<()>,
    ) -> Result<()> {
        let whole = self.scope.clone();
        for (level, &width) in widths.iter().enumerate() {
            for layer in 0..layers {
                self.resnet(&format!("{place}.{level}.resnets.{layer}"), inputs, width)?;
                inputs = width;
            }
            if level + 1 < widths.len() {
                self.scope = whole.pp(place).pp(level);
                let resized = resize(self, width);
                self.scope = whole.clone();
                resized?;
            }
            // What a level gives has the level's name.
            if let Some((name, _)) = self.blocks.last_mut() {
                *name = format!("{}.{place}.{level}", self.name);
            }
        }
        Ok(())
    }

    /// Adds a residual block, attention of one head, and a residual block.
    fn middle(&mut self, channels: usize) -> Result<()> {
        let config = AttentionConfig { channels, heads: 1, groups: self.groups, eps: EPS, zero_init: false };
        self.resnet("mid_block.resnets.0", channels, channels)?;
        self.push("mid_block.attentions.0", |scope| Attention::new(scope, config))?;
        self.resnet("mid_block.resnets.1", channels, channels)?;
        if let Some((name, _)) = self.blocks.last_mut() {
            *name = format!("{}.mid_block", self.name);
        }
        Ok(())
    }

    /// Adds the last norm and convolution.
    fn exit(&mut self, inputs: usize, outputs: usize) -> Result<()> {
        let block = NormAndConvolution::new(&self.scope, (inputs, outputs), self.groups, EPS, false)?;
        self.blocks.push((self.name.to_owned(), Arc::new(block)));
        Ok(())
    }
}

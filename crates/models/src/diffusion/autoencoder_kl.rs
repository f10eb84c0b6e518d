//! The autoencoder of latent diffusion (Rombach et al. 2022), after diffusers' `AutoencoderKL`.

use std::sync::Arc;

use phalanx_tensor::loss::{self, LossDivisor};
use phalanx_tensor::{Block, Result, Scope, Tape, TensorError, TensorPlan, Value, ops};

use super::layers::{
    Attention, AttentionConfig, Convolution, Downsample2D, NormAndConvolution, ResnetBlock2D, ResnetConfig,
    Upsample2D,
};

/// Added to the variance in every norm.
const EPS: f64 = 1e-6;

/// The settings of an [`AutoencoderKL`], under diffusers' names.
#[derive(Debug, Clone, PartialEq)]
pub struct AutoencoderKLConfig {
    /// The channels of images.
    pub in_channels: usize,
    /// The channels of reconstructions.
    pub out_channels: usize,
    /// The channels of each level, from full size inwards; each further level has half the size.
    pub block_out_channels: Vec<usize>,
    /// The residual blocks of each level of the encoder; the decoder has one more.
    pub layers_per_block: usize,
    /// The channels of latent images.
    pub latent_channels: usize,
    /// The groups of each group norm.
    pub norm_num_groups: usize,
}

impl AutoencoderKLConfig {
    /// Returns settings for small images: 32 and 64 channels, latent images of 4 channels and half the size.
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

    /// Returns Stable Diffusion's settings: 83,653,863 parameters, latent images of 4 channels and an eighth of the
    /// size.
    pub fn stable_diffusion() -> Self {
        Self {
            block_out_channels: vec![128, 256, 512, 512],
            layers_per_block: 2,
            norm_num_groups: 32,
            ..Self::small()
        }
    }

    /// Returns how the residual blocks can be cut over ranks: by the channels between their convolutions. Ranks divide the groups of norms.
    ///
    /// # Errors
    /// None that is known.
    pub fn tensor_plan(&self) -> Result<TensorPlan> {
        TensorPlan::new([
            "*.resnets.*.conv1 = column",
            "*.resnets.*.norm2 = column",
            "*.resnets.*.conv2 = row",
        ])
    }

    /// Returns the ratio of the sides of images and latent images.
    pub fn factor(&self) -> usize {
        1 << self.block_out_channels.len().saturating_sub(1)
    }
}

/// A latent distribution: mean and log-variance of each element, [N, latent_channels, H, W] each.
#[derive(Debug, Clone)]
pub struct LatentDistribution {
    /// The mean.
    pub mean: Value,
    /// The logarithm of the variance, between −30 and 20.
    pub logvar: Value,
}

impl LatentDistribution {
    /// Samples the distribution: mean + e^(logvar/2)·ε, with noise of the same shape. Gradients flow to both.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn sample(&self, tape: &Tape, noise: &Value) -> Result<Value> {
        let std = ops::exp(tape, &ops::scale(tape, &self.logvar, 0.5)?)?;
        ops::add(tape, &self.mean, &ops::mul(tape, &std, noise)?)
    }

    /// Returns the divergence from the standard normal distribution, summed over the elements of a sample and averaged
    /// over samples.
    ///
    /// # Errors
    /// If the shapes differ.
    pub fn kl(&self, tape: &Tape, over: LossDivisor) -> Result<Value> {
        loss::kl_standard_normal(tape, &self.mean, &self.logvar, over)
    }
}

/// An autoencoder of images with latent images, with the parameter names of diffusers' `AutoencoderKL`.
#[derive(Debug, Clone)]
pub struct AutoencoderKL {
    config: AutoencoderKLConfig,
    /// Images to moments, a sequence of named blocks.
    encoder: Vec<(String, Arc<dyn Block>)>,
    /// Latent images to images, a sequence of named blocks.
    decoder: Vec<(String, Arc<dyn Block>)>,
}

impl AutoencoderKL {
    /// Registers the model's parameters.
    ///
    /// # Errors
    /// If a name is taken, or the groups do not divide the widths.
    pub fn new(scope: &Scope, config: &AutoencoderKLConfig) -> Result<Self> {
        let (Some(&first), Some(&last)) =
            (config.block_out_channels.first(), config.block_out_channels.last())
        else {
            let problem = "an autoencoder has at least one level".to_owned();
            return Err(TensorError::Shape { op: "autoencoder", problem });
        };
        let (latent, groups) = (config.latent_channels, config.norm_num_groups);
        let mut encoder = SequenceBuilder::new(scope.pp("encoder"), "encoder", groups);
        encoder.push("conv_in", |scope| Convolution::new(scope, (config.in_channels, first, 3)))?;
        encoder.levels(
            "down_blocks",
            &config.block_out_channels,
            config.layers_per_block,
            first,
            |builder, width| builder.push("downsamplers.0", |scope| Downsample2D::new(scope, width, 0)),
        )?;
        encoder.middle(last)?;
        encoder.exit(last, 2 * latent)?;
        let mut encoder = encoder.blocks;
        let quant = Convolution::new(&scope.pp("quant_conv"), (2 * latent, 2 * latent, 1))?;
        encoder.push(("quant_conv".into(), Arc::new(quant)));
        let post_quant = Convolution::new(&scope.pp("post_quant_conv"), (latent, latent, 1))?;
        let mut decoder = SequenceBuilder::new(scope.pp("decoder"), "decoder", groups);
        decoder.blocks.push(("post_quant_conv".into(), Arc::new(post_quant)));
        decoder.push("conv_in", |scope| Convolution::new(scope, (latent, last, 3)))?;
        decoder.middle(last)?;
        let widths: Vec<usize> = config.block_out_channels.iter().rev().copied().collect();
        decoder.levels("up_blocks", &widths, config.layers_per_block + 1, last, |builder, width| {
            builder.push("upsamplers.0", |scope| Upsample2D::new(scope, width))
        })?;
        decoder.exit(first, config.out_channels)?;
        Ok(Self { config: config.clone(), encoder, decoder: decoder.blocks })
    }

    /// Returns the settings.
    pub fn config(&self) -> &AutoencoderKLConfig {
        &self.config
    }

    /// Returns the encoder's blocks, a sequence from images to means and log-variances, concatenated along the
    /// channels.
    pub fn encoder_blocks(&self) -> Vec<Arc<dyn Block>> {
        self.encoder.iter().map(|(_, block)| block.clone()).collect()
    }

    /// Returns the decoder's blocks, a sequence from latent images to images.
    pub fn decoder_blocks(&self) -> Vec<Arc<dyn Block>> {
        self.decoder.iter().map(|(_, block)| block.clone()).collect()
    }

    /// Computes the latent distribution of images.
    ///
    /// # Shapes
    /// `images` [N, in_channels, H, W], their sides multiples of [`AutoencoderKLConfig::factor`].
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn encode(&self, tape: &Tape, images: &Value) -> Result<LatentDistribution> {
        self.encode_watched(tape, images, &mut |_, _| {})
    }

    /// Like [`AutoencoderKL::encode`], and passes intermediate values to `watch`, with the names of their modules in
    /// diffusers.
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

    /// Decodes latent images to images near [−1, 1], not clamped.
    ///
    /// # Shapes
    /// `latent` [N, latent_channels, H, W]; the sides of the result are [`AutoencoderKLConfig::factor`] times as long.
    ///
    /// # Errors
    /// If the shapes do not fit.
    pub fn decode(&self, tape: &Tape, latent: &Value) -> Result<Value> {
        self.decode_watched(tape, latent, &mut |_, _| {})
    }

    /// Like [`AutoencoderKL::decode`], and passes intermediate values to `watch`, with the names of their modules in
    /// diffusers.
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

/// The builder of the encoder or the decoder.
struct SequenceBuilder {
    scope: Scope,
    name: &'static str,
    groups: usize,
    blocks: Vec<(String, Arc<dyn Block>)>,
}

impl SequenceBuilder {
    fn new(scope: Scope, name: &'static str, groups: usize) -> Self {
        Self { scope, name, groups, blocks: Vec::new() }
    }

    /// Adds a block at a path.
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

    /// Adds levels of `layers` residual blocks each; `resize` adds the block between two levels.
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
            // The output of a level has the level's name.
            if let Some((name, _)) = self.blocks.last_mut() {
                *name = format!("{}.{place}.{level}", self.name);
            }
        }
        Ok(())
    }

    /// Adds a residual block, attention with one head, and a residual block.
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

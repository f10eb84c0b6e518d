//! The trunk of both U-Nets: levels of residual blocks with skip connections between the way down and the way up.

use std::sync::Arc;

use phalanx_tensor::{Block, Result, Scope, Tape, TensorError, Value, ops};

use super::UNet2DConfig;
use crate::diffusion::layers::{
    ClassEmbedding, Convolution, Downsample2D, NormAndConvolution, ResnetBlock2D, ResnetConfig,
    TimeEmbedding, Upsample2D, sinusoids,
};
use crate::run_block::run_block;

/// A residual block, and the attention after it.
#[derive(Debug, Clone)]
struct Layer {
    resnet: Arc<dyn Block>,
    attention: Option<Arc<dyn Block>>,
}

impl Layer {
    fn blocks(&self) -> impl Iterator<Item = Arc<dyn Block>> {
        std::iter::once(self.resnet.clone()).chain(self.attention.clone())
    }
}

/// Layers of one size, and the resampling after them.
#[derive(Debug, Clone)]
struct Level {
    name: String,
    layers: Vec<Layer>,
    resize: Option<Arc<dyn Block>>,
}

impl Level {
    fn blocks(&self) -> impl Iterator<Item = Arc<dyn Block>> {
        self.layers.iter().flat_map(Layer::blocks).chain(self.resize.clone())
    }
}

/// The blocks of a U-Net.
#[derive(Debug, Clone)]
pub(super) struct Trunk {
    config: UNet2DConfig,
    conv_in: Arc<dyn Block>,
    time_embedding: Arc<dyn Block>,
    class_embedding: Option<Arc<dyn Block>>,
    down: Vec<Level>,
    middle: Layer,
    middle_resnet: Arc<dyn Block>,
    up: Vec<Level>,
    out: Arc<dyn Block>,
}

/// The inputs of [`Trunk::forward`].
#[derive(Debug, Clone, Copy)]
pub(super) struct TrunkInput<'v> {
    /// The samples [N, in_channels, H, W].
    pub(super) sample: &'v Value,
    /// One timestep for each sample or one for all.
    pub(super) timesteps: &'v [f64],
    /// The tokens of the texts [N, S, C].
    pub(super) text: Option<&'v Value>,
    /// The features of the texts [N, D], which are projected and added to the embedded time.
    pub(super) feature: Option<&'v Value>,
}

/// An observer of intermediate values, with the names of their modules in diffusers.
pub(super) type Observer<'w> = &'w mut dyn FnMut(&str, &Value);

impl Trunk {
    /// Registers the parameters in the order of their use. `class` is the width of the text features that are added to
    /// the embedded time. `attend` makes the attention of a level of a number of channels.
    pub(super) fn new(
        scope: &Scope,
        config: UNet2DConfig,
        class: Option<usize>,
        attend: impl Fn(&Scope, usize, usize) -> Result<Arc<dyn Block>>,
    ) -> Result<Self> {
        check(&config)?;
        let widths = &config.block_out_channels;
        let (first, last) = (widths[0], widths[widths.len() - 1]);
        let time = 4 * first;
        let resnet = ResnetConfig {
            groups: config.norm_num_groups,
            eps: config.norm_eps,
            time: Some(time),
            dropout: config.dropout,
            zero_init: config.zero_init,
        };
        let builder = Builder { config: &config, resnet, attend };
        let conv_in = Arc::new(Convolution::new(&scope.pp("conv_in"), (config.in_channels, first, 3))?);
        let time_embedding = Arc::new(TimeEmbedding::new(&scope.pp("time_embedding"), first, time)?);
        let project = |width| -> Result<Arc<dyn Block>> {
            Ok(Arc::new(ClassEmbedding::new(&scope.pp("class_embedding"), width, time)?))
        };
        let class_embedding = class.map(project).transpose()?;
        let down = builder.down(&scope.pp("down_blocks"))?;
        let place = scope.pp("mid_block");
        let middle = builder.layer(&place, 0, LayerSizes { level: widths.len() - 1, inputs: last }, true)?;
        let middle_resnet = builder.resnet(&place, 1, last, last)?;
        let up = builder.up(&scope.pp("up_blocks"))?;
        let (groups, eps, sizes) = (config.norm_num_groups, config.norm_eps, (first, config.out_channels));
        let out = Arc::new(NormAndConvolution::new(scope, sizes, groups, eps, config.zero_init)?);
        Ok(Self { conv_in, time_embedding, class_embedding, down, middle, middle_resnet, up, out, config })
    }

    /// Returns every block, in the order of execution.
    pub(super) fn blocks(&self) -> Vec<Arc<dyn Block>> {
        let mut blocks = vec![self.time_embedding.clone()];
        blocks.extend(self.class_embedding.clone());
        blocks.push(self.conv_in.clone());
        blocks.extend(self.down.iter().flat_map(Level::blocks));
        blocks.extend(self.middle.blocks());
        blocks.push(self.middle_resnet.clone());
        blocks.extend(self.up.iter().flat_map(Level::blocks));
        blocks.push(self.out.clone());
        blocks
    }

    /// Computes the prediction [N, out_channels, H, W].
    pub(super) fn forward(&self, tape: &Tape, input: TrunkInput<'_>, watch: Observer<'_>) -> Result<Value> {
        let timesteps = self.check_input(&input)?;
        let time = self.embed(tape, &timesteps, &input, watch)?;
        let mut x = tape.run1(&self.conv_in, input.sample)?;
        watch("conv_in", &x);
        let mut skips = vec![alias(tape, &x)?];
        let mut pass = Pass { tape, time, text: input.text, watch };
        for level in &self.down {
            x = pass.down(level, x, &mut skips)?;
        }
        x = pass.residual(&self.middle.resnet, &[x])?;
        x = pass.attend(&self.middle, x, "mid_block.resnets.0")?;
        x = pass.residual(&self.middle_resnet, &[x])?;
        (pass.watch)("mid_block", &x);
        for level in &self.up {
            x = pass.up(level, x, &mut skips)?;
        }
        tape.run1(&self.out, &x)
    }

    /// Checks the shape of the samples, and returns one timestep for each.
    fn check_input(&self, input: &TrunkInput<'_>) -> Result<Vec<f64>> {
        let refuse = |problem| Err(TensorError::Shape { op: "u-net", problem });
        let (sample, config) = (input.sample, &self.config);
        let &[batch, channels, height, width] = sample.dims() else {
            return refuse(format!("expected [N, C, H, W], not {:?}", sample.shape()));
        };
        let factor = 1_usize << (self.down.len() - 1);
        if channels != config.in_channels || !height.is_multiple_of(factor) || !width.is_multiple_of(factor) {
            return refuse(format!(
                "an input of {:?}; expected {} channels and sides that are multiples of {factor}",
                sample.shape(),
                config.in_channels
            ));
        }
        match input.timesteps {
            [one] => Ok(vec![*one; batch]),
            several if several.len() == batch => Ok(several.to_vec()),
            several => refuse(format!("{} timesteps for {batch} samples", several.len())),
        }
    }

    /// Embeds the timesteps, and adds the projected features of the texts.
    fn embed(
        &self,
        tape: &Tape,
        timesteps: &[f64],
        input: &TrunkInput<'_>,
        watch: Observer<'_>,
    ) -> Result<Value> {
        let (first, flip) = (self.config.block_out_channels[0], self.config.flip_sin_to_cos);
        let dtype = input.sample.dtype()?;
        let time = sinusoids(tape, timesteps, first, flip, self.config.freq_shift, dtype)?;
        watch("time_proj", &time);
        let time = tape.run1(&self.time_embedding, &time)?;
        watch("time_embedding", &time);
        let problem = match (&self.class_embedding, input.feature) {
            (Some(class), Some(feature)) => return ops::add(tape, &time, &tape.run1(class, feature)?),
            (None, None) => return Ok(time),
            (Some(_), None) => "the network needs a text feature, and none is given",
            (None, Some(_)) => "the network takes no text feature, and one is given",
        };
        Err(TensorError::Shape { op: "u-net", problem: problem.to_owned() })
    }
}

/// Checks the sizes of a network.
fn check(config: &UNet2DConfig) -> Result<()> {
    let levels = config.block_out_channels.len();
    let groups = config.norm_num_groups;
    let problem = match () {
        () if levels == 0 || config.layers_per_block == 0 => {
            "a U-Net has at least one level of at least one layer".to_owned()
        }
        () if config.attention.len() != levels => {
            format!("`attention` has {} entries for {levels} levels", config.attention.len())
        }
        () if groups == 0 || config.block_out_channels.iter().any(|width| width % groups != 0) => {
            format!("{groups} groups do not divide the widths {:?}", config.block_out_channels)
        }
        () => return Ok(()),
    };
    Err(TensorError::Shape { op: "u-net", problem })
}

/// Registers the levels of a trunk.
struct Builder<'c, A> {
    config: &'c UNet2DConfig,
    resnet: ResnetConfig,
    attend: A,
}

/// The level and the input channels of a layer; its output channels are the width of the level.
#[derive(Clone, Copy)]
struct LayerSizes {
    level: usize,
    inputs: usize,
}

impl<A: Fn(&Scope, usize, usize) -> Result<Arc<dyn Block>>> Builder<'_, A> {
    fn resnet(&self, scope: &Scope, index: usize, inputs: usize, outputs: usize) -> Result<Arc<dyn Block>> {
        let scope = scope.pp("resnets").pp(index);
        Ok(Arc::new(ResnetBlock2D::new(&scope, inputs, outputs, self.resnet)?))
    }

    fn layer(&self, scope: &Scope, index: usize, sizes: LayerSizes, attends: bool) -> Result<Layer> {
        let LayerSizes { level, inputs } = sizes;
        let outputs = self.config.block_out_channels[level];
        let resnet = self.resnet(scope, index, inputs, outputs)?;
        let attention = || (self.attend)(&scope.pp("attentions").pp(index), outputs, level);
        Ok(Layer { resnet, attention: attends.then(attention).transpose()? })
    }

    /// The levels of the way down, from full size.
    fn down(&self, scope: &Scope) -> Result<Vec<Level>> {
        let config = self.config;
        let mut inputs = config.block_out_channels[0];
        let mut levels = Vec::new();
        for (level, (&width, &attends)) in config.block_out_channels.iter().zip(&config.attention).enumerate()
        {
            let scope = scope.pp(level);
            let mut layers = Vec::with_capacity(config.layers_per_block);
            for index in 0..config.layers_per_block {
                layers.push(self.layer(&scope, index, LayerSizes { level, inputs }, attends)?);
                inputs = width;
            }
            let resize = || -> Result<Arc<dyn Block>> {
                let place = scope.pp("downsamplers").pp(0);
                Ok(Arc::new(Downsample2D::new(&place, width, config.downsample_padding)?))
            };
            let is_last = level + 1 == config.block_out_channels.len();
            let resize = (!is_last).then(resize).transpose()?;
            levels.push(Level { name: format!("down_blocks.{level}"), layers, resize });
        }
        Ok(levels)
    }

    /// The levels of the way up, from the smallest size.
    fn up(&self, scope: &Scope) -> Result<Vec<Level>> {
        let (config, widths) = (self.config, &self.config.block_out_channels);
        let mut before = widths[widths.len() - 1];
        let mut levels = Vec::new();
        for (at, level) in (0..widths.len()).rev().enumerate() {
            let scope = scope.pp(at);
            let width = widths[level];
            // The last skip connection comes from the level before this one on the way down.
            let lower = widths[level.saturating_sub(1)];
            let mut layers = Vec::with_capacity(config.layers_per_block + 1);
            for index in 0..=config.layers_per_block {
                let skip = if index == config.layers_per_block { lower } else { width };
                let sizes = LayerSizes { level, inputs: before + skip };
                layers.push(self.layer(&scope, index, sizes, config.attention[level])?);
                before = width;
            }
            let resize = || -> Result<Arc<dyn Block>> {
                Ok(Arc::new(Upsample2D::new(&scope.pp("upsamplers").pp(0), width)?))
            };
            let resize = (level > 0).then(resize).transpose()?;
            levels.push(Level { name: format!("up_blocks.{at}"), layers, resize });
        }
        Ok(levels)
    }
}

/// One forward pass.
struct Pass<'p> {
    tape: &'p Tape,
    time: Value,
    text: Option<&'p Value>,
    watch: Observer<'p>,
}

impl Pass<'_> {
    /// Runs a residual block on images, given in one or several values, and the embedded time.
    fn residual(&self, block: &Arc<dyn Block>, images: &[Value]) -> Result<Value> {
        run_block(self.tape, block, &[images, std::slice::from_ref(&self.time)].concat())
    }

    /// Runs the attention of a layer on the output of its residual block, which is called `name`.
    fn attend(&mut self, layer: &Layer, x: Value, name: &str) -> Result<Value> {
        (self.watch)(name, &x);
        let Some(attention) = &layer.attention else { return Ok(x) };
        let mut inputs = vec![x];
        if let Some(text) = self.text {
            inputs.push(alias(self.tape, text)?);
        }
        let x = run_block(self.tape, attention, &inputs)?;
        (self.watch)(&name.replace("resnets", "attentions"), &x);
        Ok(x)
    }

    /// Runs a level of the way down, and keeps its outputs for the skip connections.
    fn down(&mut self, level: &Level, mut x: Value, skips: &mut Vec<Value>) -> Result<Value> {
        for (index, layer) in level.layers.iter().enumerate() {
            x = self.residual(&layer.resnet, &[x])?;
            x = self.attend(layer, x, &format!("{}.resnets.{index}", level.name))?;
            skips.push(alias(self.tape, &x)?);
        }
        if let Some(resize) = &level.resize {
            x = self.tape.run1(resize, &x)?;
            skips.push(alias(self.tape, &x)?);
        }
        (self.watch)(&level.name, &x);
        Ok(x)
    }

    /// Runs a level of the way up with its skip connections.
    fn up(&mut self, level: &Level, mut x: Value, skips: &mut Vec<Value>) -> Result<Value> {
        for (index, layer) in level.layers.iter().enumerate() {
            let skip = skips.pop().ok_or_else(|| TensorError::Backward("a skip is missing".into()))?;
            x = self.residual(&layer.resnet, &[x, skip])?;
            x = self.attend(layer, x, &format!("{}.resnets.{index}", level.name))?;
        }
        if let Some(resize) = &level.resize {
            x = self.tape.run1(resize, &x)?;
        }
        (self.watch)(&level.name, &x);
        Ok(x)
    }
}

/// Returns the value as another node of the tape. The gradients of each user are then added up before they are combined,
/// so a block that is recomputed in backward adds them in the same order.
fn alias(tape: &Tape, value: &Value) -> Result<Value> {
    ops::reshape(tape, value, value.shape().clone())
}

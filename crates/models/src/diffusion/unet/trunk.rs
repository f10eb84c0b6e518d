//! What both U-Nets have in common: levels of residual blocks, skips between the way down and the way up.

use std::sync::Arc;

use phalanx_tensor::{Block, Result, Scope, Tape, TensorError, Value, ops};

use crate::diffusion::layers::{
    ClassEmbedding, Convolution, Downsample2D, NormAndConvolution, ResnetBlock2D, ResnetConfig,
    TimeEmbedding, Upsample2D, sinusoids,
};

/// The sizes of a trunk.
#[derive(Debug, Clone)]
pub(super) struct TrunkConfig {
    pub(super) in_channels: usize,
    pub(super) out_channels: usize,
    pub(super) block_out_channels: Vec<usize>,
    /// Which levels attend.
    pub(super) attention: Vec<bool>,
    pub(super) layers_per_block: usize,
    pub(super) norm_num_groups: usize,
    pub(super) norm_eps: f64,
    pub(super) flip_sin_to_cos: bool,
    pub(super) freq_shift: f64,
    pub(super) downsample_padding: usize,
    pub(super) dropout: f64,
    pub(super) zero_init: bool,
    /// Width of what is added to the embedded time once it is projected.
    pub(super) class: Option<usize>,
}

impl TrunkConfig {
    fn check(&self) -> Result<()> {
        let levels = self.block_out_channels.len();
        let groups = self.norm_num_groups;
        let problem = match () {
            () if levels == 0 || self.layers_per_block == 0 => {
                "a U-Net has at least one level of at least one layer".to_owned()
            }
            () if self.attention.len() != levels => {
                format!("{} levels say whether they attend, of {levels}", self.attention.len())
            }
            () if groups == 0 || self.block_out_channels.iter().any(|width| width % groups != 0) => {
                format!("{groups} groups do not divide the widths {:?}", self.block_out_channels)
            }
            () => return Ok(()),
        };
        Err(TensorError::Shape { op: "u-net", problem })
    }
}

/// A residual block, and what attends behind it.
#[derive(Debug, Clone)]
struct Layer {
    resnet: Arc<dyn Block>,
    attention: Option<Arc<dyn Block>>,
}

/// Layers of one size, and the change of size behind them.
#[derive(Debug, Clone)]
struct Level {
    name: String,
    layers: Vec<Layer>,
    resize: Option<Arc<dyn Block>>,
}

#[derive(Debug, Clone)]
pub(super) struct Trunk {
    config: TrunkConfig,
    conv_in: Arc<dyn Block>,
    time_embedding: Arc<dyn Block>,
    class_embedding: Option<Arc<dyn Block>>,
    down: Vec<Level>,
    /// The middle: a layer, and a residual block behind it.
    mid: (Layer, Arc<dyn Block>),
    up: Vec<Level>,
    out: Arc<dyn Block>,
}

/// What is told about values on the way, by the names that their makers have in the reference.
pub(super) type Watch<'w> = &'w mut dyn FnMut(&str, &Value);

impl Trunk {
    /// Registers parameters in the order in which they are used. `attend` makes the attention of a level of so many
    /// channels in a place of its own.
    pub(super) fn new(
        scope: &Scope,
        config: TrunkConfig,
        attend: impl Fn(&Scope, usize, usize) -> Result<Arc<dyn Block>>,
    ) -> Result<Self> {
        config.check()?;
        let widths = &config.block_out_channels;
        let (levels, first, last) = (widths.len(), widths[0], widths[widths.len() - 1]);
        let time = 4 * first;
        let resnet_config = ResnetConfig {
            groups: config.norm_num_groups,
            eps: config.norm_eps,
            time: Some(time),
            dropout: config.dropout,
            zero_init: config.zero_init,
        };
        let resnet = |scope: &Scope, index: usize, inputs: usize, outputs: usize| -> Result<Arc<dyn Block>> {
            let scope = scope.pp("resnets").pp(index);
            Ok(Arc::new(ResnetBlock2D::new(&scope, inputs, outputs, resnet_config)?))
        };
        let layer =
            |scope: &Scope, index: usize, level: usize, attends: bool, inputs: usize, outputs: usize| {
                let resnet = resnet(scope, index, inputs, outputs)?;
                let attention = || attend(&scope.pp("attentions").pp(index), outputs, level);
                Ok::<_, TensorError>(Layer { resnet, attention: attends.then(attention).transpose()? })
            };
        let conv_in = Arc::new(Convolution::new(&scope.pp("conv_in"), (config.in_channels, first, 3))?);
        let time_embedding = Arc::new(TimeEmbedding::new(&scope.pp("time_embedding"), first, time)?);
        let project = |width| -> Result<Arc<dyn Block>> {
            Ok(Arc::new(ClassEmbedding::new(&scope.pp("class_embedding"), width, time)?))
        };
        let class_embedding = config.class.map(project).transpose()?;
        let mut down = Vec::with_capacity(levels);
        let mut inputs = first;
        for (level, (&width, &attends)) in widths.iter().zip(&config.attention).enumerate() {
            let scope = scope.pp("down_blocks").pp(level);
            let mut layers = Vec::with_capacity(config.layers_per_block);
            for index in 0..config.layers_per_block {
                layers.push(layer(&scope, index, level, attends, inputs, width)?);
                inputs = width;
            }
            let place = scope.pp("downsamplers").pp(0);
            let resize = || -> Result<Arc<dyn Block>> {
                Ok(Arc::new(Downsample2D::new(&place, width, config.downsample_padding)?))
            };
            let resize = (level + 1 < levels).then(resize).transpose()?;
            down.push(Level { name: format!("down_blocks.{level}"), layers, resize });
        }
        let place = scope.pp("mid_block");
        let mid = (layer(&place, 0, levels - 1, true, last, last)?, resnet(&place, 1, last, last)?);
        let mut up = Vec::with_capacity(levels);
        let mut before = last;
        for at in 0..levels {
            let level = levels - 1 - at;
            let scope = scope.pp("up_blocks").pp(at);
            let width = widths[level];
            // The last skip is what the level before this one has left, on the way down.
            let lower = widths[level.saturating_sub(1)];
            let mut layers = Vec::with_capacity(config.layers_per_block + 1);
            for index in 0..=config.layers_per_block {
                let skip = if index == config.layers_per_block { lower } else { width };
                layers.push(layer(&scope, index, level, config.attention[level], before + skip, width)?);
                before = width;
            }
            let place = scope.pp("upsamplers").pp(0);
            let resize = || -> Result<Arc<dyn Block>> { Ok(Arc::new(Upsample2D::new(&place, width)?)) };
            up.push(Level {
                name: format!("up_blocks.{at}"),
                layers,
                resize: (level > 0).then(resize).transpose()?,
            });
        }
        let (groups, eps, sizes) = (config.norm_num_groups, config.norm_eps, (first, config.out_channels));
        let out = Arc::new(NormAndConvolution::new(scope, sizes, groups, eps, config.zero_init)?);
        Ok(Self { conv_in, time_embedding, class_embedding, down, mid, up, out, config })
    }

    /// Every block, in the order in which they run.
    pub(super) fn blocks(&self) -> Vec<Arc<dyn Block>> {
        let of_layers = |layers: &[Layer]| -> Vec<Arc<dyn Block>> {
            layers
                .iter()
                .flat_map(|layer| [Some(layer.resnet.clone()), layer.attention.clone()])
                .flatten()
                .collect()
        };
        let of_levels = |levels: &[Level]| -> Vec<Arc<dyn Block>> {
            levels
                .iter()
                .flat_map(|level| of_layers(&level.layers).into_iter().chain(level.resize.clone()))
                .collect()
        };
        let mut blocks = vec![self.time_embedding.clone(), self.conv_in.clone()];
        blocks.extend(self.class_embedding.clone());
        blocks.extend(of_levels(&self.down));
        blocks.extend(of_layers(std::slice::from_ref(&self.mid.0)));
        blocks.push(self.mid.1.clone());
        blocks.extend(of_levels(&self.up));
        blocks.push(self.out.clone());
        blocks
    }

    /// [N, in, H, W] at timesteps, one for each sample or one for all, to [N, out, H, W], told texts by their tokens and their
    /// features.
    pub(super) fn forward(
        &self,
        tape: &Tape,
        (sample, timesteps): (&Value, &[f64]),
        (text, feature): (Option<&Value>, Option<&Value>),
        watch: Watch<'_>,
    ) -> Result<Value> {
        let &[batch, channels, height, width] = sample.dims() else {
            let problem = format!("expected [N, C, H, W], not {:?}", sample.shape());
            return Err(TensorError::Shape { op: "u-net", problem });
        };
        let factor = 1_usize << (self.down.len() - 1);
        let config = &self.config;
        if channels != config.in_channels || !height.is_multiple_of(factor) || !width.is_multiple_of(factor) {
            let problem = format!(
                "an input of {:?}; expected {} channels and sides that are multiples of {factor}",
                sample.shape(),
                config.in_channels
            );
            return Err(TensorError::Shape { op: "u-net", problem });
        }
        let timesteps = match timesteps {
            [one] => vec![*one; batch],
            several if several.len() == batch => several.to_vec(),
            several => {
                let problem = format!("{} timesteps for {batch} samples", several.len());
                return Err(TensorError::Shape { op: "u-net", problem });
            }
        };
        let (first, flip) = (config.block_out_channels[0], config.flip_sin_to_cos);
        let time = sinusoids(tape, &timesteps, first, flip, config.freq_shift, sample.dtype()?)?;
        watch("time_proj", &time);
        let time = tape.run1(&self.time_embedding, &time)?;
        watch("time_embedding", &time);
        let time = match (&self.class_embedding, feature) {
            (Some(class), Some(feature)) => ops::add(tape, &time, &tape.run1(class, feature)?)?,
            (None, None) => time,
            (class, _) => {
                let (told, given) =
                    if class.is_some() { ("the", "none is given") } else { ("no", "one is given") };
                let problem = format!("the network is told {told} feature of a text, and {given}");
                return Err(TensorError::Shape { op: "u-net", problem });
            }
        };
        let mut x = tape.run1(&self.conv_in, sample)?;
        watch("conv_in", &x);
        let attend = |layer: &Layer, mut x: Value, name: String, watch: Watch<'_>| -> Result<Value> {
            watch(&name, &x);
            if let Some(attention) = &layer.attention {
                let mut inputs = vec![x];
                if let Some(text) = text {
                    inputs.push(alias(tape, text)?);
                }
                x = single(tape.run(attention, &inputs)?)?;
                watch(&name.replace("resnets", "attentions"), &x);
            }
            Ok(x)
        };
        let mut skips = vec![alias(tape, &x)?];
        for level in &self.down {
            for (index, layer) in level.layers.iter().enumerate() {
                x = single(tape.run(&layer.resnet, &[x, time.clone()])?)?;
                x = attend(layer, x, format!("{}.resnets.{index}", level.name), watch)?;
                skips.push(alias(tape, &x)?);
            }
            if let Some(resize) = &level.resize {
                x = tape.run1(resize, &x)?;
                skips.push(alias(tape, &x)?);
            }
            watch(&level.name, &x);
        }
        let (layer, last) = &self.mid;
        x = single(tape.run(&layer.resnet, &[x, time.clone()])?)?;
        x = attend(layer, x, "mid_block.resnets.0".into(), watch)?;
        x = single(tape.run(last, &[x, time.clone()])?)?;
        watch("mid_block", &x);
        for level in &self.up {
            for (index, layer) in level.layers.iter().enumerate() {
                let skip = skips.pop().ok_or_else(|| TensorError::Backward("a skip is missing".into()))?;
                x = single(tape.run(&layer.resnet, &[x, skip, time.clone()])?)?;
                x = attend(layer, x, format!("{}.resnets.{index}", level.name), watch)?;
            }
            if let Some(resize) = &level.resize {
                x = tape.run1(resize, &x)?;
            }
            watch(&level.name, &x);
        }
        tape.run1(&self.out, &x)
    }
}

/// The value under another name on the tape, for another who uses it. The gradients of what a block does with a value
/// are added up before those of others are, so that a block that is run again in backward adds them in the same order.
fn alias(tape: &Tape, value: &Value) -> Result<Value> {
    ops::reshape(tape, value, value.shape().clone())
}

/// The one value of a block that gives one.
fn single(mut values: Vec<Value>) -> Result<Value> {
    match (values.pop(), values.is_empty()) {
        (Some(value), true) => Ok(value),
        _ => Err(TensorError::Backward("a block of the U-Net must give one value".into())),
    }
}

//! ResNet-18, -34, -50 and -101 (He et al. 2016), after torchvision's `resnet.py`.
//!
//! The stride of a bottleneck is in its 3×3 convolution ("v1.5"). Parameter names equal torchvision's state dict. For
//! small images the stem can be a 3×3 convolution with stride 1 and no pooling, as usual on CIFAR-10.

use std::sync::Arc;

use phalanx_tensor::nn::{BatchNormConfig, Linear};
use phalanx_tensor::ops::{self, Conv2dOptions, FusedActivation, PoolOptions};
use phalanx_tensor::{Block, Result, Scope, Tape, TensorPlan, Value};

use crate::conv_norm::ConvNorm;

/// The depth of a ResNet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResNetVariant {
    /// 18 layers of basic blocks.
    R18,
    /// 34 layers of basic blocks.
    R34,
    /// 50 layers of bottlenecks.
    R50,
    /// 101 layers of bottlenecks.
    R101,
}

impl ResNetVariant {
    /// Returns the number of blocks in each of the four stages.
    fn depths(self) -> [usize; 4] {
        match self {
            Self::R18 => [2, 2, 2, 2],
            Self::R34 | Self::R50 => [3, 4, 6, 3],
            Self::R101 => [3, 4, 23, 3],
        }
    }

    /// Returns the ratio of a block's output width to its inner width.
    fn expansion(self) -> usize {
        match self {
            Self::R18 | Self::R34 => 1,
            Self::R50 | Self::R101 => 4,
        }
    }
}

/// The settings of a ResNet.
#[derive(Debug, Clone, PartialEq)]
pub struct ResNetConfig {
    /// The depth.
    pub variant: ResNetVariant,
    /// The number of classes.
    pub num_classes: usize,
    /// The channels of the image.
    pub in_channels: usize,
    /// The channels of the first stage; the others have 2, 4 and 8 times as many. 64 in the paper.
    pub width: usize,
    /// Uses a 3×3 stem with stride 1 and no pooling, for small images.
    pub cifar_stem: bool,
    /// Starts the last norm of each block at zero, so that blocks begin as identities (Goyal et al. 2017).
    pub zero_init_residual: bool,
    /// Computes batch statistics over all ranks.
    pub sync_batch_norm: bool,
}

impl ResNetConfig {
    /// Returns how the residual blocks can be cut over ranks: by the channels between their last two convolutions.
    ///
    /// # Errors
    /// None that is known.
    pub fn tensor_plan(&self) -> Result<TensorPlan> {
        match self.variant.expansion() {
            1 => TensorPlan::new(["layer*.conv1 = column", "layer*.bn1 = column", "layer*.conv2 = row"]),
            _ => TensorPlan::new(["layer*.conv2 = column", "layer*.bn2 = column", "layer*.conv3 = row"]),
        }
    }

    /// Returns torchvision's settings for `num_classes` classes.
    pub fn new(variant: ResNetVariant, num_classes: usize) -> Self {
        Self {
            variant,
            num_classes,
            in_channels: 3,
            width: 64,
            cifar_stem: false,
            zero_init_residual: false,
            sync_batch_norm: false,
        }
    }
}

/// The first convolution, and max pooling unless images are small.
#[derive(Debug)]
struct Stem {
    name: String,
    first: ConvNorm,
    pool: bool,
}

impl Block for Stem {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = self.first.forward(tape, &inputs[0], FusedActivation::Relu)?;
        Ok(vec![if self.pool { ops::max_pool2d(tape, &x, PoolOptions::new(3, 2, 1))? } else { x }])
    }
}

/// A residual block: two 3×3 convolutions, or 1×1, 3×3, 1×1, with a skip connection.
#[derive(Debug)]
struct Residual {
    name: String,
    /// The convolutions with a ReLU of their own.
    convs: Vec<ConvNorm>,
    /// The convolution to whose output the skip connection is added.
    last: ConvNorm,
    downsample: Option<ConvNorm>,
}

impl Residual {
    fn new(
        scope: &Scope,
        config: &ResNetConfig,
        inputs: usize,
        planes: usize,
        stride: usize,
    ) -> Result<Self> {
        let scope = scope.block();
        let outputs = planes * config.variant.expansion();
        let norm = BatchNormConfig { sync: config.sync_batch_norm, ..Default::default() };
        let last = BatchNormConfig { weight: if config.zero_init_residual { 0.0 } else { 1.0 }, ..norm };
        let conv = |(conv, bn): (&str, &str), sizes, options, norm| {
            ConvNorm::new((&scope.pp(conv), &scope.pp(bn)), sizes, options, norm)
        };
        let wide = |stride| Conv2dOptions::new(stride, 1);
        let (convs, last) = if config.variant.expansion() == 1 {
            let first = conv(("conv1", "bn1"), (inputs, planes, 3), wide(stride), norm)?;
            (vec![first], conv(("conv2", "bn2"), (planes, planes, 3), wide(1), last)?)
        } else {
            let convs = vec![
                conv(("conv1", "bn1"), (inputs, planes, 1), Conv2dOptions::new(1, 0), norm)?,
                conv(("conv2", "bn2"), (planes, planes, 3), wide(stride), norm)?,
            ];
            (convs, conv(("conv3", "bn3"), (planes, outputs, 1), Conv2dOptions::new(1, 0), last)?)
        };
        let changes = stride != 1 || inputs != outputs;
        let scope = scope.pp("downsample");
        let shortcut = || {
            let (sizes, options) = ((inputs, outputs, 1), Conv2dOptions::new(stride, 0));
            ConvNorm::new((&scope.pp("0"), &scope.pp("1")), sizes, options, norm)
        };
        let downsample = changes.then(shortcut).transpose()?;
        Ok(Self { name: scope.block_name().to_owned(), convs, last, downsample })
    }
}

impl Block for Residual {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let skip = match &self.downsample {
            Some(conv) => conv.forward(tape, &inputs[0], FusedActivation::None)?,
            None => inputs[0].clone(),
        };
        let mut x = inputs[0].clone();
        for conv in &self.convs {
            x = conv.forward(tape, &x, FusedActivation::Relu)?;
        }
        Ok(vec![self.last.forward_added(tape, &x, &skip, FusedActivation::Relu)?])
    }
}

/// Global average pooling and the classifier.
#[derive(Debug)]
struct Head {
    name: String,
    fc: Linear,
}

impl Block for Head {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![self.fc.forward(tape, &ops::global_avg_pool2d(tape, &inputs[0])?)?])
    }
}

/// A ResNet.
#[derive(Debug, Clone)]
pub struct ResNet {
    blocks: Vec<Arc<dyn Block>>,
}

impl ResNet {
    /// Registers the model's parameters.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(scope: &Scope, config: &ResNetConfig) -> Result<Self> {
        let norm = BatchNormConfig { sync: config.sync_batch_norm, ..Default::default() };
        // torchvision has the stem's parameters at the top level, so the block needs an explicit name.
        let stem_scope = scope.block_named("stem");
        let (kernel, options) =
            if config.cifar_stem { (3, Conv2dOptions::new(1, 1)) } else { (7, Conv2dOptions::new(2, 3)) };
        let sizes = (config.in_channels, config.width, kernel);
        let mut blocks: Vec<Arc<dyn Block>> = Vec::new();
        blocks.push(Arc::new(Stem {
            name: stem_scope.block_name().to_owned(),
            first: ConvNorm::new((&stem_scope.pp("conv1"), &stem_scope.pp("bn1")), sizes, options, norm)?,
            pool: !config.cifar_stem,
        }));
        let mut channels = config.width;
        for (stage, depth) in config.variant.depths().into_iter().enumerate() {
            let planes = config.width << stage;
            for index in 0..depth {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                let place = scope.pp(format!("layer{}", stage + 1)).pp(index);
                blocks.push(Arc::new(Residual::new(&place, config, channels, planes, stride)?));
                channels = planes * config.variant.expansion();
            }
        }
        let head_scope = scope.pp("fc").block();
        blocks.push(Arc::new(Head {
            name: head_scope.block_name().to_owned(),
            fc: Linear::new(&head_scope, channels, config.num_classes)?,
        }));
        Ok(Self { blocks })
    }

    /// Returns the stem, the residual blocks and the head, a sequence: each takes and returns one value.
    pub fn blocks(&self) -> &[Arc<dyn Block>] {
        &self.blocks
    }

    /// Computes features and logits of images. Features are the input of the head: the last feature maps, averaged over
    /// their pixels.
    ///
    /// # Shapes
    /// `images` [N, C, H, W], normalised; the results are features [N, F] and logits [N, num_classes].
    ///
    /// # Errors
    /// If the shape does not fit.
    pub fn features_and_logits(&self, tape: &Tape, images: &Value) -> Result<(Value, Value)> {
        let trunk = self.blocks.len().saturating_sub(1);
        let maps = tape.run_sequence(&self.blocks[..trunk], images)?;
        let features = ops::global_avg_pool2d(tape, &maps)?;
        Ok((features, tape.run_sequence(&self.blocks[trunk..], &maps)?))
    }

    /// Computes logits of images.
    ///
    /// # Shapes
    /// `images` [N, C, H, W], normalised; the result is [N, num_classes].
    ///
    /// # Errors
    /// If the shape does not fit.
    pub fn forward(&self, tape: &Tape, images: &Value) -> Result<Value> {
        tape.run_sequence(&self.blocks, images)
    }
}

//! ResNet-18, -34, -50 and -101 (He et al. 2016), after torchvision's `resnet.py`.
//!
//! The stride of a bottleneck is in its 3×3 convolution ("v1.5"). Parameter names equal torchvision's state
//! dict. For small images the stem can be a single 3×3 convolution with stride 1 and no pooling, as is usual on
//! CIFAR-10.

use std::sync::Arc;

use phalanx_tensor::nn::{BatchNorm2d, BatchNormConfig, Conv2d, Linear};
use phalanx_tensor::ops::{self, Conv2dOptions, FusedActivation, PoolOptions};
use phalanx_tensor::{Block, Init, Result, Scope, Tape, Value};

/// Which of the family.
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
    /// Blocks in each of the four stages.
    fn depths(self) -> [usize; 4] {
        match self {
            Self::R18 => [2, 2, 2, 2],
            Self::R34 | Self::R50 => [3, 4, 6, 3],
            Self::R101 => [3, 4, 23, 3],
        }
    }

    /// How many times wider a block's output is than its inner convolutions.
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
    /// Which of the family.
    pub variant: ResNetVariant,
    /// Classes of the last layer.
    pub num_classes: usize,
    /// Channels of the image.
    pub in_channels: usize,
    /// Channels of the first stage; the others have 2, 4 and 8 times as many. 64 in the paper.
    pub width: usize,
    /// A 3×3 stem with stride 1 and no pooling, for small images.
    pub cifar_stem: bool,
    /// Start the last norm of each block at zero, so that blocks begin as identities (Goyal et al. 2017).
    pub zero_init_residual: bool,
    /// Batch statistics over all ranks.
    pub sync_batch_norm: bool,
}

impl ResNetConfig {
    /// torchvision's model for `num_classes` classes.
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

/// A convolution without bias and the norm after it.
#[derive(Debug, Clone)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm2d,
}

impl ConvNorm {
    fn new(
        scope: &Scope,
        (conv, norm): (&str, &str),
        (inputs, outputs, kernel): (usize, usize, usize),
        options: Conv2dOptions,
        config: BatchNormConfig,
    ) -> Result<Self> {
        let conv = scope.pp(conv);
        Ok(Self {
            conv: Conv2d::with_init(&conv, inputs, outputs, kernel, options, Init::KAIMING_FAN_OUT, None)?,
            norm: BatchNorm2d::new(&scope.pp(norm), outputs, config)?,
        })
    }

    fn forward(&self, tape: &Tape, x: &Value, activation: FusedActivation) -> Result<Value> {
        self.norm.forward(tape, &self.conv.forward(tape, x)?, activation)
    }

    /// Convolution and norm, then something added, then a ReLU.
    fn forward_added(&self, tape: &Tape, x: &Value, residual: &Value) -> Result<Value> {
        self.norm.forward_added(tape, &self.conv.forward(tape, x)?, residual, FusedActivation::Relu)
    }
}

/// The first convolution, and max pooling unless the image is small.
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

/// A residual block: two 3×3 convolutions, or 1×1, 3×3, 1×1, and the way around them.
#[derive(Debug)]
struct Residual {
    name: String,
    /// Those with a ReLU of their own.
    convs: Vec<ConvNorm>,
    /// The convolution that the way around is added to.
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
        let conv = |names, sizes, options, norm| ConvNorm::new(&scope, names, sizes, options, norm);
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
        let around =
            || ConvNorm::new(&scope, ("0", "1"), (inputs, outputs, 1), Conv2dOptions::new(stride, 0), norm);
        let downsample = changes.then(around).transpose()?;
        Ok(Self { name: scope.block_name().to_owned(), convs, last, downsample })
    }
}

impl Block for Residual {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let around = match &self.downsample {
            Some(conv) => conv.forward(tape, &inputs[0], FusedActivation::None)?,
            None => inputs[0].clone(),
        };
        let mut x = inputs[0].clone();
        for conv in &self.convs {
            x = conv.forward(tape, &x, FusedActivation::Relu)?;
        }
        Ok(vec![self.last.forward_added(tape, &x, &around)?])
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
        // torchvision has the stem's parameters at the top, so the block has a name that no prefix gives.
        let stem_scope = scope.block_named("stem");
        let (kernel, options) =
            if config.cifar_stem { (3, Conv2dOptions::new(1, 1)) } else { (7, Conv2dOptions::new(2, 3)) };
        let sizes = (config.in_channels, config.width, kernel);
        let mut blocks: Vec<Arc<dyn Block>> = Vec::new();
        blocks.push(Arc::new(Stem {
            name: stem_scope.block_name().to_owned(),
            first: ConvNorm::new(&stem_scope, ("conv1", "bn1"), sizes, options, norm)?,
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

    /// The stem, the residual blocks and the head, each of one value: a sequence.
    pub fn blocks(&self) -> &[Arc<dyn Block>] {
        &self.blocks
    }

    /// Logits of images, with what the head sees of them: the last block's maps, averaged over their places.
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

    /// Logits of images.
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

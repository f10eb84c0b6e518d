//! MobileNetV2 (Sandler et al. 2018), after torchvision's `mobilenetv2.py`; parameter names equal its state dict.

use std::sync::Arc;

use phalanx_tensor::nn::{BatchNorm2d, BatchNormConfig, Conv2d, Linear};
use phalanx_tensor::ops::{self, Conv2dOptions, FusedActivation};
use phalanx_tensor::{Block, Init, Result, Scope, Tape, Value};

/// Expansion, channels, repeats and first stride of the seven stages: table 2 of the paper.
const STAGES: [(usize, usize, usize, usize); 7] = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
];

/// The settings of a MobileNetV2.
#[derive(Debug, Clone, PartialEq)]
pub struct MobileNetV2Config {
    /// Classes of the last layer.
    pub num_classes: usize,
    /// Scales the channels of every layer; 1 in the paper.
    pub width_multiplier: f64,
    /// Probability of dropping a feature before the classifier; 0.2 in torchvision.
    pub dropout: f64,
    /// Stride 1 in the stem and in the stage of 24 channels, for small images.
    pub cifar_stem: bool,
    /// Batch statistics over all ranks.
    pub sync_batch_norm: bool,
}

impl MobileNetV2Config {
    /// torchvision's model for `num_classes` classes.
    pub fn new(num_classes: usize) -> Self {
        Self { num_classes, width_multiplier: 1.0, dropout: 0.2, cifar_stem: false, sync_batch_norm: false }
    }
}

/// Rounds channels to a multiple of 8, never more than a tenth below (torchvision's `_make_divisible`).
fn divisible(channels: f64) -> usize {
    let rounded = (((channels + 4.0) / 8.0) as usize * 8).max(8);
    if (rounded as f64) < 0.9 * channels { rounded + 8 } else { rounded }
}

/// A convolution without bias, its norm, and ReLU6 or nothing.
#[derive(Debug, Clone)]
struct ConvNorm {
    conv: Conv2d,
    norm: BatchNorm2d,
    activation: FusedActivation,
}

impl ConvNorm {
    fn new(
        (conv, norm): (&Scope, &Scope),
        (inputs, outputs, kernel): (usize, usize, usize),
        (stride, groups): (usize, usize),
        activation: FusedActivation,
        config: BatchNormConfig,
    ) -> Result<Self> {
        let options = Conv2dOptions::new(stride, (kernel - 1) / 2).groups(groups);
        Ok(Self {
            conv: Conv2d::with_init(conv, inputs, outputs, kernel, options, Init::KAIMING_FAN_OUT, None)?,
            norm: BatchNorm2d::new(norm, outputs, config)?,
            activation,
        })
    }

    fn forward(&self, tape: &Tape, x: &Value, added: Option<&Value>) -> Result<Value> {
        let x = self.conv.forward(tape, x)?;
        match added {
            Some(added) => self.norm.forward_added(tape, &x, added, self.activation),
            None => self.norm.forward(tape, &x, self.activation),
        }
    }
}

/// Layers one after the other, with a way around them if input and output are alike.
#[derive(Debug)]
struct Sequence {
    name: String,
    layers: Vec<ConvNorm>,
    residual: bool,
}

impl Sequence {
    /// Expand by 1×1, convolve each channel by 3×3, project by 1×1 without activation.
    fn inverted(
        scope: &Scope,
        expansion: usize,
        (inputs, outputs): (usize, usize),
        stride: usize,
        norm: BatchNormConfig,
    ) -> Result<Self> {
        let scope = scope.block();
        let conv = scope.pp("conv");
        let hidden = inputs * expansion;
        let mut layers = Vec::new();
        let relu6 = FusedActivation::Relu6;
        if expansion != 1 {
            let at = conv.pp(0);
            layers.push(ConvNorm::new((&at.pp(0), &at.pp(1)), (inputs, hidden, 1), (1, 1), relu6, norm)?);
        }
        let at = conv.pp(layers.len());
        layers.push(ConvNorm::new(
            (&at.pp(0), &at.pp(1)),
            (hidden, hidden, 3),
            (stride, hidden),
            relu6,
            norm,
        )?);
        let (project, last) = (conv.pp(layers.len()), conv.pp(layers.len() + 1));
        let none = FusedActivation::None;
        layers.push(ConvNorm::new((&project, &last), (hidden, outputs, 1), (1, 1), none, norm)?);
        let name = scope.block_name().to_owned();
        Ok(Self { name, layers, residual: stride == 1 && inputs == outputs })
    }

    fn single(
        scope: &Scope,
        sizes: (usize, usize, usize),
        stride: usize,
        norm: BatchNormConfig,
    ) -> Result<Self> {
        let scope = scope.block();
        let layer =
            ConvNorm::new((&scope.pp(0), &scope.pp(1)), sizes, (stride, 1), FusedActivation::Relu6, norm)?;
        Ok(Self { name: scope.block_name().to_owned(), layers: vec![layer], residual: false })
    }
}

impl Block for Sequence {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let mut x = inputs[0].clone();
        for (index, layer) in self.layers.iter().enumerate() {
            let added = (self.residual && index + 1 == self.layers.len()).then_some(&inputs[0]);
            x = layer.forward(tape, &x, added)?;
        }
        Ok(vec![x])
    }
}

/// Global average pooling, dropout and the classifier.
#[derive(Debug)]
struct Head {
    name: String,
    classifier: Linear,
    dropout: f64,
}

impl Block for Head {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let pooled = ops::global_avg_pool2d(tape, &inputs[0])?;
        let pooled = ops::dropout(tape, &pooled, self.dropout)?;
        Ok(vec![self.classifier.forward(tape, &pooled)?])
    }
}

/// A MobileNetV2.
#[derive(Debug, Clone)]
pub struct MobileNetV2 {
    blocks: Vec<Arc<dyn Block>>,
}

impl MobileNetV2 {
    /// Registers the model's parameters.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(scope: &Scope, config: &MobileNetV2Config) -> Result<Self> {
        let norm = BatchNormConfig { sync: config.sync_batch_norm, ..Default::default() };
        let all = scope.pp("features");
        let mut channels = divisible(32.0 * config.width_multiplier);
        let stem_stride = if config.cifar_stem { 1 } else { 2 };
        let stem = Sequence::single(&all.pp(0), (3, channels, 3), stem_stride, norm)?;
        let mut blocks: Vec<Arc<dyn Block>> = vec![Arc::new(stem)];
        for (expansion, base, repeats, first_stride) in STAGES {
            let outputs = divisible(base as f64 * config.width_multiplier);
            for index in 0..repeats {
                let shrinks = index == 0 && !(config.cifar_stem && base == 24);
                let stride = if shrinks { first_stride } else { 1 };
                let at = all.pp(blocks.len());
                let block = Sequence::inverted(&at, expansion, (channels, outputs), stride, norm)?;
                blocks.push(Arc::new(block));
                channels = outputs;
            }
        }
        let last = divisible(1280.0 * config.width_multiplier.max(1.0));
        let at = all.pp(blocks.len());
        blocks.push(Arc::new(Sequence::single(&at, (channels, last, 1), 1, norm)?));
        let head_scope = scope.pp("classifier").block();
        let weight = Init::Normal { mean: 0.0, std: 0.01 };
        let classifier =
            Linear::with_init(&head_scope.pp(1), last, config.num_classes, weight, Some(Init::ZEROS))?;
        let name = head_scope.block_name().to_owned();
        blocks.push(Arc::new(Head { name, classifier, dropout: config.dropout }));
        Ok(Self { blocks })
    }

    /// The stem, the inverted residual blocks, the last convolution and the head, each of one value: a sequence.
    pub fn blocks(&self) -> &[Arc<dyn Block>] {
        &self.blocks
    }

    /// Logits of images.
    ///
    /// # Shapes
    /// `images` [N, 3, H, W], normalised; the result is [N, num_classes].
    ///
    /// # Errors
    /// If the shape does not fit.
    pub fn forward(&self, tape: &Tape, images: &Value) -> Result<Value> {
        tape.run_sequence(&self.blocks, images)
    }
}

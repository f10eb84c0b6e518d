//! MobileNetV2 (Sandler et al. 2018), after torchvision's `mobilenetv2.py`; parameter names equal its state dict.

use std::sync::Arc;

use phalanx_tensor::nn::{BatchNormConfig, Linear};
use phalanx_tensor::ops::{self, Conv2dOptions, FusedActivation};
use phalanx_tensor::{Block, Init, Result, Scope, Tape, TensorPlan, Value};

use crate::conv_norm::ConvNorm;

/// Expansion, channels, repeats and first stride of the seven stages: table 2 of the paper.
pub(crate) const STAGES: [(usize, usize, usize, usize); 7] = [
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
    /// The number of classes.
    pub num_classes: usize,
    /// The factor of the channels of every layer; 1 in the paper.
    pub width_multiplier: f64,
    /// The dropout probability before the classifier; 0.2 in torchvision.
    pub dropout: f64,
    /// Uses stride 1 in the stem and in the stage of 24 channels, for small images.
    pub cifar_stem: bool,
    /// Computes batch statistics over all ranks.
    pub sync_batch_norm: bool,
}

impl MobileNetV2Config {
    /// Returns how the inverted residual blocks can be cut over ranks: by the channels between their expansion and their projection.
    ///
    /// # Errors
    /// None that is known.
    pub fn tensor_plan(&self) -> Result<TensorPlan> {
        TensorPlan::new([
            "features.*.conv.0 = column",
            "features.*.conv.1 = column",
            "features.*.conv.2 = row",
            // It has no expansion.
            "features.1.conv = whole",
        ])
    }

    /// Returns torchvision's settings for `num_classes` classes.
    pub fn new(num_classes: usize) -> Self {
        Self { num_classes, width_multiplier: 1.0, dropout: 0.2, cifar_stem: false, sync_batch_norm: false }
    }
}

/// Rounds channels to a multiple of 8, at most a tenth below (torchvision's `_make_divisible`).
fn divisible(channels: f64) -> usize {
    let rounded = (((channels + 4.0) / 8.0) as usize * 8).max(8);
    if (rounded as f64) < 0.9 * channels { rounded + 8 } else { rounded }
}

/// A convolution with its norm, and ReLU6 or no activation.
#[derive(Debug, Clone)]
struct Layer {
    conv: ConvNorm,
    activation: FusedActivation,
}

impl Layer {
    /// Registers a layer of (inputs, outputs, kernel) with (stride, groups).
    fn new(
        scopes: (&Scope, &Scope),
        sizes: (usize, usize, usize),
        (stride, groups): (usize, usize),
        activation: FusedActivation,
        norm: BatchNormConfig,
    ) -> Result<Self> {
        let options = Conv2dOptions::new(stride, (sizes.2 - 1) / 2).groups(groups);
        Ok(Self { conv: ConvNorm::new(scopes, sizes, options, norm)?, activation })
    }

    fn forward(&self, tape: &Tape, x: &Value, skip: Option<&Value>) -> Result<Value> {
        match skip {
            Some(skip) => self.conv.forward_added(tape, x, skip, self.activation),
            None => self.conv.forward(tape, x, self.activation),
        }
    }
}

/// Inverted residual block. It has a skip connection if input and output shapes match. The stem and the last
/// convolution are such blocks of a single layer.
#[derive(Debug)]
struct InvertedResidual {
    name: String,
    layers: Vec<Layer>,
    residual: bool,
}

impl InvertedResidual {
    /// Registers an expansion by 1×1, a depthwise 3×3 convolution, and a projection by 1×1 without activation.
    fn new(
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
            layers.push(Layer::new((&at.pp(0), &at.pp(1)), (inputs, hidden, 1), (1, 1), relu6, norm)?);
        }
        let at = conv.pp(layers.len());
        layers.push(Layer::new((&at.pp(0), &at.pp(1)), (hidden, hidden, 3), (stride, hidden), relu6, norm)?);
        let (project, last) = (conv.pp(layers.len()), conv.pp(layers.len() + 1));
        let none = FusedActivation::None;
        layers.push(Layer::new((&project, &last), (hidden, outputs, 1), (1, 1), none, norm)?);
        let name = scope.block_name().to_owned();
        Ok(Self { name, layers, residual: stride == 1 && inputs == outputs })
    }

    /// Registers a single convolution of (inputs, outputs, kernel).
    fn single(
        scope: &Scope,
        sizes: (usize, usize, usize),
        stride: usize,
        norm: BatchNormConfig,
    ) -> Result<Self> {
        let scope = scope.block();
        let layer =
            Layer::new((&scope.pp(0), &scope.pp(1)), sizes, (stride, 1), FusedActivation::Relu6, norm)?;
        Ok(Self { name: scope.block_name().to_owned(), layers: vec![layer], residual: false })
    }
}

impl Block for InvertedResidual {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let mut x = inputs[0].clone();
        for (index, layer) in self.layers.iter().enumerate() {
            let skip = (self.residual && index + 1 == self.layers.len()).then_some(&inputs[0]);
            x = layer.forward(tape, &x, skip)?;
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
        let stem = InvertedResidual::single(&all.pp(0), (3, channels, 3), stem_stride, norm)?;
        let mut blocks: Vec<Arc<dyn Block>> = vec![Arc::new(stem)];
        for (expansion, base, repeats, first_stride) in STAGES {
            let outputs = divisible(base as f64 * config.width_multiplier);
            for index in 0..repeats {
                let shrinks = index == 0 && !(config.cifar_stem && base == 24);
                let stride = if shrinks { first_stride } else { 1 };
                let at = all.pp(blocks.len());
                let block = InvertedResidual::new(&at, expansion, (channels, outputs), stride, norm)?;
                blocks.push(Arc::new(block));
                channels = outputs;
            }
        }
        let last = divisible(1280.0 * config.width_multiplier.max(1.0));
        let at = all.pp(blocks.len());
        blocks.push(Arc::new(InvertedResidual::single(&at, (channels, last, 1), 1, norm)?));
        let head_scope = scope.pp("classifier").block();
        let weight = Init::Normal { mean: 0.0, std: 0.01 };
        let classifier =
            Linear::with_init(&head_scope.pp(1), last, config.num_classes, weight, Some(Init::ZEROS))?;
        let name = head_scope.block_name().to_owned();
        blocks.push(Arc::new(Head { name, classifier, dropout: config.dropout }));
        Ok(Self { blocks })
    }

    /// Returns the stem, the inverted residual blocks, the last convolution and the head, a sequence: each takes and
    /// returns one value.
    pub fn blocks(&self) -> &[Arc<dyn Block>] {
        &self.blocks
    }

    /// Computes logits of images.
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

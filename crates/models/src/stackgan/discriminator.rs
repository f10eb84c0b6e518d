//! The discriminator of the first stage.

use std::sync::Arc;

use phalanx_tensor::nn::{BatchNorm2d, BatchNormConfig, Conv2d};
use phalanx_tensor::ops::{self, Conv2dOptions, FusedActivation};
use phalanx_tensor::{Block, Init, Result, Scope, Tape, Value};

use super::{NORM_WEIGHT, SLOPE, StackGanConfig, WEIGHT};

/// Half the size: 4×4 convolution, norm but for the first, leaky ReLU.
#[derive(Debug)]
struct Downsample {
    conv: Conv2d,
    norm: Option<BatchNorm2d>,
}

/// The image's features.
#[derive(Debug)]
struct Encoder {
    name: String,
    layers: Vec<Downsample>,
}

impl Block for Encoder {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let mut x = inputs[0].clone();
        for layer in &self.layers {
            x = layer.conv.forward(tape, &x)?;
            if let Some(norm) = &layer.norm {
                x = norm.forward(tape, &x, FusedActivation::None)?;
            }
            x = ops::leaky_relu(tape, &x, SLOPE)?;
        }
        Ok(vec![x])
    }
}

/// Features and condition to a logit.
#[derive(Debug)]
struct Judge {
    name: String,
    joint: Conv2d,
    norm: BatchNorm2d,
    logit: Conv2d,
}

impl Block for Judge {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let (features, condition) = (&inputs[0], &inputs[1]);
        let (batch, size) = (condition.dims()[0], condition.dims()[1]);
        let maps = ops::reshape(tape, condition, (batch, size, 1, 1))?;
        let maps = ops::broadcast_as(tape, &maps, (batch, size, 4, 4))?;
        let x = self.joint.forward(tape, &ops::cat(tape, &[features, &maps], 1)?)?;
        let x = self.norm.forward(tape, &x, FusedActivation::None)?;
        let x = self.logit.forward(tape, &ops::leaky_relu(tape, &x, SLOPE)?)?;
        Ok(vec![ops::reshape(tape, &x, batch)?])
    }
}

/// Judges images of 64×64 pixels and conditions together.
#[derive(Debug, Clone)]
pub struct StageOneDiscriminator {
    encoder: Arc<dyn Block>,
    judge: Arc<dyn Block>,
}

impl StageOneDiscriminator {
    /// Registers the model's parameters.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(scope: &Scope, config: &StackGanConfig) -> Result<Self> {
        let width = config.df_dim;
        let encode = scope.pp("encode_img").block();
        let config_of_norms = BatchNormConfig::default();
        // In the code's sequence the first layer has no norm and takes two places, the others three.
        let mut layers = Vec::new();
        let mut place = 0;
        for (inputs, outputs) in
            [(3, width), (width, 2 * width), (2 * width, 4 * width), (4 * width, 8 * width)]
        {
            let options = Conv2dOptions::new(2, 1);
            let conv = Conv2d::with_init(&encode.pp(place), inputs, outputs, 4, options, WEIGHT, None)?;
            let norm =
                || BatchNorm2d::with_init(&encode.pp(place + 1), outputs, config_of_norms, NORM_WEIGHT);
            let norm = (place > 0).then(norm).transpose()?;
            place += if norm.is_some() { 3 } else { 2 };
            layers.push(Downsample { conv, norm });
        }
        let encoder = Arc::new(Encoder { name: encode.block_name().to_owned(), layers });
        let scope = scope.pp("get_cond_logits").block();
        let logits = scope.pp("outlogits");
        let (inputs, outputs) = (8 * width + config.condition_dim, 8 * width);
        let wide = Conv2dOptions::new(1, 1);
        let judge = Arc::new(Judge {
            name: scope.block_name().to_owned(),
            joint: Conv2d::with_init(&logits.pp(0), inputs, outputs, 3, wide, WEIGHT, None)?,
            norm: BatchNorm2d::with_init(&logits.pp(1), outputs, config_of_norms, NORM_WEIGHT)?,
            logit: Conv2d::with_init(
                &logits.pp(3),
                outputs,
                1,
                4,
                Conv2dOptions::new(4, 0),
                WEIGHT,
                Some(Init::TorchBias { fan_in: outputs * 16 }),
            )?,
        });
        Ok(Self { encoder, judge })
    }

    /// Features [N, 8·df_dim, 4, 4] of images [N, 3, 64, 64].
    ///
    /// # Errors
    /// If the shape is another.
    pub fn features(&self, tape: &Tape, images: &Value) -> Result<Value> {
        tape.run1(&self.encoder, images)
    }

    /// A logit `[N]` for each pair of features and condition: large where both seem real and to belong together.
    ///
    /// # Errors
    /// If the shapes do not go together.
    pub fn logits(&self, tape: &Tape, features: &Value, condition: &Value) -> Result<Value> {
        Ok(tape.run(&self.judge, &[features.clone(), condition.clone()])?[0].clone())
    }
}

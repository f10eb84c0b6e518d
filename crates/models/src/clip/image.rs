//! A small image encoder of strided convolutions, to train a text encoder with from scratch on small images.

use std::sync::Arc;

use phalanx_tensor::nn::{Conv2d, GroupNorm, Linear};
use phalanx_tensor::ops::{self, Conv2dOptions};
use phalanx_tensor::{Block, Result, Scope, Tape, TensorPlan, Value};

use crate::paired_layers::{PairedLayer, rules_of_pairs};

/// The settings of an image tower.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageTowerConfig {
    /// The channels after each halving of the image.
    pub widths: Vec<usize>,
}

impl ImageTowerConfig {
    /// Returns how the stages can be cut over ranks, wherever the tower is in a network: in pairs, by the channels between their
    /// convolutions. Ranks divide the groups of norms.
    ///
    /// # Errors
    /// None that is known.
    pub fn tensor_plan(&self) -> Result<TensorPlan> {
        let stage = |index: usize| {
            PairedLayer::with_norm(format!("*stages.{index}.conv"), &format!("*stages.{index}.norm"))
        };
        let layers: Vec<PairedLayer> = (0..self.widths.len()).map(stage).collect();
        TensorPlan::new(rules_of_pairs(&layers).iter().map(String::as_str))
    }
}

impl Default for ImageTowerConfig {
    fn default() -> Self {
        Self { widths: vec![32, 64, 128] }
    }
}

/// A strided 3×3 convolution, group norm and SiLU.
#[derive(Debug)]
struct Stage {
    name: String,
    conv: Conv2d,
    norm: GroupNorm,
}

impl Block for Stage {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = self.norm.forward(tape, &self.conv.forward(tape, &inputs[0])?)?;
        Ok(vec![ops::silu(tape, &x)?])
    }
}

/// Global average pooling and a projection.
#[derive(Debug)]
struct Head {
    name: String,
    proj: Linear,
}

impl Block for Head {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = ops::global_avg_pool2d(tape, &inputs[0])?;
        Ok(vec![self.proj.forward(tape, &x)?])
    }
}

/// An image encoder.
#[derive(Debug, Clone)]
pub struct ImageTower {
    blocks: Vec<Arc<dyn Block>>,
}

impl ImageTower {
    /// Registers the tower's parameters; features have `embed` elements.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn new(scope: &Scope, config: &ImageTowerConfig, embed: usize) -> Result<Self> {
        let mut channels = 3;
        let mut blocks: Vec<Arc<dyn Block>> = Vec::new();
        for (index, &width) in config.widths.iter().enumerate() {
            let scope = scope.pp("stages").pp(index).block();
            blocks.push(Arc::new(Stage {
                name: scope.block_name().to_owned(),
                conv: Conv2d::new(&scope.pp("conv"), channels, width, 3, Conv2dOptions::new(2, 1))?,
                norm: GroupNorm::new(&scope.pp("norm"), crate::groups_for(width), width, 1e-5)?,
            }));
            channels = width;
        }
        let scope = scope.pp("proj").block();
        let head = Head { name: scope.block_name().to_owned(), proj: Linear::new(&scope, channels, embed)? };
        blocks.push(Arc::new(head));
        Ok(Self { blocks })
    }

    /// Returns the stages and the projection, a sequence: each takes and returns one value.
    pub fn blocks(&self) -> &[Arc<dyn Block>] {
        &self.blocks
    }

    /// Encodes images [N, 3, H, W] to features [N, embed].
    ///
    /// # Errors
    /// If the shape does not fit.
    pub fn forward(&self, tape: &Tape, images: &Value) -> Result<Value> {
        tape.run_sequence(&self.blocks, images)
    }
}

//! A multilayer perceptron on flattened images: fully connected layers with ReLU between them.
//!
//! Parameter names are those of `torch.nn.Sequential(Linear, ReLU, Linear, ReLU, …, Linear)`: `0.weight`, `0.bias`,
//! `2.weight`, and so on, since each ReLU takes a number. Each layer is a block of its name.

use std::sync::Arc;

use phalanx_tensor::nn::Linear;
use phalanx_tensor::{Block, Result, Scope, Tape, TensorError, TensorPlan, Value, ops};

use crate::paired_layers::{PairedLayer, rules_of_pairs};

/// The settings of a multilayer perceptron.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MlpConfig {
    /// The number of inputs: channels × height × width of an image.
    pub inputs: usize,
    /// The features of each hidden layer.
    pub width: usize,
    /// The number of hidden layers, at least one.
    pub depth: usize,
    /// The number of classes.
    pub num_classes: usize,
}

impl MlpConfig {
    /// Returns the number of parameters: `inputs·width + width` of the first layer, `width² + width` of each further
    /// hidden layer, and `width·classes + classes` of the last.
    pub fn num_parameters(&self) -> usize {
        let Self { inputs, width, depth, num_classes } = self;
        let layer = |inputs: usize, outputs: usize| (inputs + 1) * outputs;
        layer(*inputs, *width) + depth.saturating_sub(1) * layer(*width, *width) + layer(*width, *num_classes)
    }
}

impl MlpConfig {
    /// Returns how the layers can be cut over ranks: in pairs, of which the first is cut by its outputs and the second by its inputs. The
    /// last of an odd number of layers stays whole.
    ///
    /// # Errors
    /// None that is known.
    pub fn tensor_plan(&self) -> Result<TensorPlan> {
        let layer = |index: usize| PairedLayer { layer: (2 * index).to_string(), behind: Vec::new() };
        let layers: Vec<PairedLayer> = (0..=self.depth).map(layer).collect();
        TensorPlan::new(rules_of_pairs(&layers).iter().map(String::as_str))
    }
}

/// A fully connected layer, with ReLU except for the last.
#[derive(Debug)]
struct Layer {
    name: String,
    linear: Linear,
    relu: bool,
}

impl Block for Layer {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        let x = self.linear.forward(tape, &inputs[0])?;
        Ok(vec![if self.relu { ops::relu(tape, &x)? } else { x }])
    }
}

/// A multilayer perceptron.
#[derive(Debug, Clone)]
pub struct Mlp {
    layers: Vec<Arc<dyn Block>>,
    inputs: usize,
}

impl Mlp {
    /// Registers the model's parameters.
    ///
    /// # Errors
    /// If there is no hidden layer, or a name is taken.
    pub fn new(scope: &Scope, config: &MlpConfig) -> Result<Self> {
        if config.depth == 0 {
            return Err(TensorError::Shape {
                op: "mlp",
                problem: "depth 0: there must be at least one hidden layer".into(),
            });
        }
        let layer = |index: usize| -> Result<Arc<dyn Block>> {
            let last = index == config.depth;
            // A ReLU follows each layer but the last.
            let scope = scope.pp(2 * index).block();
            let inputs = if index == 0 { config.inputs } else { config.width };
            let outputs = if last { config.num_classes } else { config.width };
            let name = scope.block_name().to_owned();
            Ok(Arc::new(Layer { name, linear: Linear::new(&scope, inputs, outputs)?, relu: !last }))
        };
        let layers = (0..=config.depth).map(layer).collect::<Result<_>>()?;
        Ok(Self { layers, inputs: config.inputs })
    }

    /// Returns the layers, a sequence that takes flattened images [N, inputs].
    pub fn blocks(&self) -> &[Arc<dyn Block>] {
        &self.layers
    }

    /// Computes logits of images.
    ///
    /// # Shapes
    /// `images` [N, …], flattened to [N, inputs]; the result is [N, num_classes].
    ///
    /// # Errors
    /// If an image has a different number of elements.
    pub fn forward(&self, tape: &Tape, images: &Value) -> Result<Value> {
        let dims = images.dims();
        let (count, size) = (dims.first().copied().unwrap_or(0), dims.iter().skip(1).product::<usize>());
        if size != self.inputs {
            let problem =
                format!("images {dims:?} have {size} numbers each; the model takes {}", self.inputs);
            return Err(TensorError::Shape { op: "mlp", problem });
        }
        tape.run_sequence(&self.layers, &ops::reshape(tape, images, (count, size))?)
    }
}

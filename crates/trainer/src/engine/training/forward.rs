//! The forward pass of a trained network: its input and its outputs, for predictions and exports.

use phalanx_tensor::{Tape, Value};

use crate::engine::error::TrainError;

/// The input of a forward pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ForwardInput {
    /// The name, such as [`ForwardInput::IMAGES`].
    pub name: String,
    /// The sizes of a sample, without the batch.
    pub dims: Vec<usize>,
}

impl ForwardInput {
    /// The name of images, normalised as in training.
    pub const IMAGES: &'static str = "images";

    /// Describes images [N, 3, size, size], normalised as in training.
    pub fn images(size: usize) -> Self {
        Self { name: Self::IMAGES.to_owned(), dims: vec![3, size, size] }
    }
}

/// An output of a forward pass.
#[derive(Debug, Clone)]
pub struct ForwardOutput {
    /// The name.
    pub name: String,
    /// The values, [N, …].
    pub value: Value,
    /// The meaning.
    pub meaning: OutputMeaning,
}

/// The meaning of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OutputMeaning {
    /// Logits [N, classes] of the classes of the data.
    Classes,
    /// Logits [N, values] of these values of an attribute.
    Attribute(Vec<String>),
    /// Images [N, 3, H, W] in [-1, 1].
    Images,
}

pub(super) type ForwardFn<M> =
    Box<dyn Fn(&M, &Tape, &Value) -> Result<Vec<ForwardOutput>, TrainError> + Sync>;

/// Computes the outputs of an input.
type RunFn<'a> = Box<dyn Fn(&Tape, &Value) -> Result<Vec<ForwardOutput>, TrainError> + 'a>;

/// The forward pass of a training, with its model type erased.
pub(in crate::engine) struct ForwardPass<'a> {
    /// The input.
    pub(in crate::engine) input: &'a ForwardInput,
    run: RunFn<'a>,
}

impl<'a> ForwardPass<'a> {
    pub(super) fn new<M>(model: &'a M, (input, run): &'a (ForwardInput, ForwardFn<M>)) -> Self {
        Self { input, run: Box::new(move |tape, value| run(model, tape, value)) }
    }

    /// Computes the outputs of an input [N, …].
    pub(in crate::engine) fn run(
        &self,
        tape: &Tape,
        input: &Value,
    ) -> Result<Vec<ForwardOutput>, TrainError> {
        (self.run)(tape, input)
    }
}

//! The output of an evaluator: a trained network that measures images which another one generates.

use phalanx_tensor::Value;

/// The output of an evaluator for N images.
#[derive(Debug, Clone)]
pub struct EvaluatorOutput {
    /// Features that images are compared by, [N, F].
    pub features: Value,
    /// Classifications: the name of the array with the true classes, and logits [N, classes].
    pub answers: Vec<(String, Value)>,
    /// Features of captions, comparable with `features`, if the network reads captions: [N, F]. Both have unit length.
    pub captions: Option<Value>,
}

impl EvaluatorOutput {
    /// Creates an output of features alone.
    pub fn of_features(features: Value) -> Self {
        Self { features, answers: Vec::new(), captions: None }
    }

    /// Adds the logits of the classes in the batch's array `name`.
    #[must_use]
    pub fn answer(mut self, name: impl Into<String>, logits: Value) -> Self {
        self.answers.push((name.into(), logits));
        self
    }
}

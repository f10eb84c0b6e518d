//! What a trained network says of pictures, so that it can judge those that another one draws.

use phalanx_tensor::Value;

/// What a network sees in N pictures.
#[derive(Debug, Clone)]
pub struct Judgement {
    /// Features by which pictures are compared, [N, F].
    pub features: Value,
    /// Answers to questions: the name of the batch's array that has the true ones, and logits [N, answers].
    pub answers: Vec<(String, Value)>,
    /// Features of the pictures' captions, comparable with `features`, if the network reads captions: [N, F], where features
    /// of both have unit length.
    pub captions: Option<Value>,
}

impl Judgement {
    /// Only features.
    pub fn of_features(features: Value) -> Self {
        Self { features, answers: Vec::new(), captions: None }
    }

    /// With the logits of an answer that the batch's array `name` has.
    #[must_use]
    pub fn answer(mut self, name: impl Into<String>, logits: Value) -> Self {
        self.answers.push((name.into(), logits));
        self
    }
}

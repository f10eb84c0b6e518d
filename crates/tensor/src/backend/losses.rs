//! Losses: a scalar from a batch, and its derivative.

use super::Array;
use crate::Result;

/// A loss of each element against a target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ElementLoss {
    /// |x − t|; at 0 the derivative is 0.
    L1,
    /// (x − t)²/(2·beta) within `beta`, and |x − t| − beta/2 beyond.
    SmoothL1 {
        /// Where the square ends.
        beta: f64,
    },
    /// (x − t)².
    Mse,
    /// The cross-entropy of t with σ(x), as max(x, 0) − x·t + log(1 + e^−|x|).
    BceWithLogits,
}

impl ElementLoss {
    /// What messages call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::L1 => "l1",
            Self::SmoothL1 { .. } => "smooth_l1",
            Self::Mse => "mse",
            Self::BceWithLogits => "bce_with_logits",
        }
    }
}

/// How a back end computes losses. Each is a scalar, the sum of the samples' times `factor`, and f32 for inputs of 16 bits, as
/// gradients are. `grad` is the gradient of that scalar, a scalar too.
pub trait Losses {
    /// −log softmax of logits [N, K] at labels (u32 `[N]`) smoothed by `smoothing`, and the softmax for backward.
    ///
    /// # Errors
    /// If the element type is not supported; and, where the back end can tell without waiting, if a label is not below K.
    fn cross_entropy(
        &self,
        logits: &Array,
        labels: &Array,
        smoothing: f64,
        factor: f64,
    ) -> Result<(Array, Array)>;

    /// The gradient of the logits.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn cross_entropy_backward(
        &self,
        softmax: &Array,
        labels: &Array,
        smoothing: f64,
        factor: f64,
        grad: &Array,
    ) -> Result<Array>;

    /// A loss of elements against targets.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn element_loss(&self, loss: ElementLoss, x: &Array, target: &Array, factor: f64) -> Result<Array>;

    /// The gradient of x.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn element_loss_backward(
        &self,
        loss: ElementLoss,
        x: &Array,
        target: &Array,
        factor: f64,
        grad: &Array,
    ) -> Result<Array>;

    /// ½ Σ (mu² + e^logvar − 1 − logvar).
    ///
    /// # Errors
    /// If the element types are not supported.
    fn kl_standard_normal(&self, mu: &Array, logvar: &Array, factor: f64) -> Result<Array>;

    /// The gradients of mu and logvar.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn kl_standard_normal_backward(
        &self,
        mu: &Array,
        logvar: &Array,
        factor: f64,
        grad: &Array,
    ) -> Result<[Array; 2]>;
}

//! Losses, each a scalar of a batch, and their derivatives.

pub use phalanx_kernels::CrossEntropyOptions;

use super::Array;
use crate::Result;

/// A loss of each element against a target.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ElementLoss {
    /// |x − t|; at 0 the derivative is 0.
    L1,
    /// (x − t)²/(2·beta) within `beta`, and |x − t| − beta/2 beyond.
    SmoothL1 {
        /// The largest distance with a quadratic loss.
        beta: f64,
    },
    /// (x − t)².
    Mse,
    /// The cross-entropy of t with σ(x), as max(x, 0) − x·t + log(1 + e^−|x|).
    BceWithLogits,
}

impl ElementLoss {
    /// Returns the name for messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::L1 => "l1",
            Self::SmoothL1 { .. } => "smooth_l1",
            Self::Mse => "mse",
            Self::BceWithLogits => "bce_with_logits",
        }
    }
}

/// The targets of a cross-entropy.
#[derive(Debug, Clone, Copy)]
pub struct CrossEntropy<'a> {
    /// The classes, u32 `[R]`.
    pub labels: &'a Array,
    /// The weight of each row, f32 `[R]`; 1 without. A row of weight 0 has no loss and no gradient, and its label is not checked.
    pub weights: Option<&'a Array>,
    /// The loss of a row.
    pub options: CrossEntropyOptions,
    /// The factor of all losses.
    pub factor: f64,
}

/// The targets of a cross-entropy whose logits have their columns on several ranks.
#[derive(Debug, Clone, Copy)]
pub struct CutCrossEntropy<'a> {
    /// The targets; classes count all columns.
    pub rows: CrossEntropy<'a>,
    /// The class of the first column that is here.
    pub first: usize,
    /// The number of all columns.
    pub columns: usize,
}

/// The inputs of an element loss.
#[derive(Debug, Clone, Copy)]
pub struct ElementLossInputs<'a> {
    /// The loss.
    pub loss: ElementLoss,
    /// The elements.
    pub x: &'a Array,
    /// The targets, of the same shape.
    pub target: &'a Array,
    /// The weight of an element.
    pub factor: f64,
}

/// The inputs of the KL divergence from a standard normal distribution.
#[derive(Debug, Clone, Copy)]
pub struct KlInputs<'a> {
    /// The means.
    pub mu: &'a Array,
    /// The logarithms of the variances, of the same shape.
    pub logvar: &'a Array,
    /// The weight of an element.
    pub factor: f64,
}

/// Losses on a back end. Each is a scalar, the weighted sum over samples or elements, and f32 for inputs of 16 bits, as
/// gradients are. `grad` is the gradient of that scalar, a scalar too.
pub trait Losses {
    /// Computes the cross-entropy of logits [R, K] with labels, and replaces the logits, f32 or f64, by its gradient.
    ///
    /// # Errors
    /// If the element type is not supported; and, where the back end can tell without waiting, if the label of a row
    /// with weight is not below K.
    fn cross_entropy(&self, logits: &Array, of: CrossEntropy<'_>) -> Result<Array>;

    /// Finds of each row of logits [R, K], f32 or f64, the numbers that its loss follows from, f64 [R, `ROW_PARTS`]
    /// ([`phalanx_kernels::cross_entropy_parts`]).
    ///
    /// # Errors
    /// If the element type is not supported.
    fn cross_entropy_parts(&self, logits: &Array, of: CutCrossEntropy<'_>) -> Result<Array>;

    /// Replaces logits [R, K] by the gradient of the loss of all columns, of whose exponentials `log_sums` are the logarithms of the sums.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn cross_entropy_slopes(&self, logits: &Array, of: CutCrossEntropy<'_>, log_sums: &[f64]) -> Result<()>;

    /// Computes a loss of elements against targets.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn element_loss(&self, of: ElementLossInputs<'_>) -> Result<Array>;

    /// Returns the gradient of x.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn element_loss_backward(&self, of: ElementLossInputs<'_>, grad: &Array) -> Result<Array>;

    /// Computes ½ Σ (mu² + e^logvar − 1 − logvar).
    ///
    /// # Errors
    /// If the element types are not supported.
    fn kl_standard_normal(&self, of: KlInputs<'_>) -> Result<Array>;

    /// Returns the gradients of mu and logvar.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn kl_standard_normal_backward(&self, of: KlInputs<'_>, grad: &Array) -> Result<[Array; 2]>;
}

//! Matrix products, and softmax of their rows.

use candle_core::{DType, Shape};

use super::{Array, Destination};
use crate::{Precision, Result};

/// A factor of a matrix product, plain or transposed.
#[derive(Debug, Clone, Copy)]
pub struct Factor<'a> {
    /// The elements, a matrix for each product.
    pub array: &'a Array,
    /// True to read each matrix transposed.
    pub transposed: bool,
}

impl<'a> Factor<'a> {
    /// Returns a factor that is not transposed.
    pub fn plain(array: &'a Array) -> Self {
        Self { array, transposed: false }
    }

    /// Returns a transposed factor.
    pub fn transposed(array: &'a Array) -> Self {
        Self { array, transposed: true }
    }

    /// Returns the transpose of this factor.
    #[must_use]
    pub fn turned(self) -> Self {
        Self { transposed: !self.transposed, ..self }
    }
}

/// The order of a linear layer's weight in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightLayout {
    /// [O, I], as `torch.nn.Linear`.
    #[default]
    OutputsFirst,
    /// [I, O], as the layers of the published GPT-2.
    InputsFirst,
}

impl WeightLayout {
    /// Returns the dimensions of a weight.
    pub fn dims(self, inputs: usize, outputs: usize) -> [usize; 2] {
        match self {
            Self::OutputsFirst => [outputs, inputs],
            Self::InputsFirst => [inputs, outputs],
        }
    }

    /// Returns a weight as the right factor of x·W.
    pub fn factor(self, weight: &Array) -> Factor<'_> {
        Factor { array: weight, transposed: self == Self::OutputsFirst }
    }

    /// Returns the factors of the gradient of a weight, of `[rows, inputs, outputs]`.
    pub fn weight_grad<'a>(
        self,
        sizes: [usize; 3],
        dy: &'a Array,
        x: &'a Array,
        precision: Precision,
    ) -> LinearWeightGrad<'a> {
        let [rows, inputs, outputs] = sizes;
        match self {
            Self::OutputsFirst => LinearWeightGrad { sizes, dy, x, precision },
            // The transpose of dyᵀ·x is xᵀ·dy.
            Self::InputsFirst => LinearWeightGrad { sizes: [rows, outputs, inputs], dy: x, x: dy, precision },
        }
    }
}

/// A batch of matrix products.
#[derive(Debug, Clone, Copy)]
pub struct MatrixProduct<'a> {
    /// `[batch, m, n, k]`: `batch` products of m×k and k×n matrices.
    pub sizes: [usize; 4],
    /// The left factor.
    pub a: Factor<'a>,
    /// The right factor.
    pub b: Factor<'a>,
    /// The shape of the result.
    pub shape: &'a Shape,
    /// The precision of the products.
    pub precision: Precision,
    /// The element type of the result.
    pub dtype: DType,
}

/// The inputs of a linear layer.
#[derive(Debug, Clone, Copy)]
pub struct LinearProduct<'a> {
    /// `[rows, inputs, outputs]`.
    pub sizes: [usize; 3],
    /// The input.
    pub x: &'a Array,
    /// The weight: `[inputs, outputs]`, or transposed, as `[outputs, inputs]`.
    pub weight: Factor<'a>,
    /// The bias `[outputs]`.
    pub bias: Option<&'a Array>,
    /// The shape of the result.
    pub shape: &'a Shape,
    /// The precision of the products.
    pub precision: Precision,
    /// The element type of the result.
    pub dtype: DType,
}

/// The factors of dyᵀ·x, the gradient of a linear layer's weight. Exchanged they give its transpose.
#[derive(Debug, Clone, Copy)]
pub struct LinearWeightGrad<'a> {
    /// `[rows, inputs, outputs]`.
    pub sizes: [usize; 3],
    /// The output's gradient.
    pub dy: &'a Array,
    /// The input.
    pub x: &'a Array,
    /// The precision of the products.
    pub precision: Precision,
}

/// Matrix products on a back end. Operands are rounded to the type that `precision` multiplies. Sums are f32 for operands of
/// 16 bits.
pub trait Products {
    /// Rounds a factor of several products to the type that `precision` multiplies.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn rounded(&self, x: &Array, precision: Precision) -> Result<Array>;

    /// Computes a batch of matrix products.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn matmul(&self, of: MatrixProduct<'_>) -> Result<Array>;

    /// Computes x·W + b.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn linear(&self, of: LinearProduct<'_>) -> Result<Array>;

    /// Writes dyᵀ·x, the gradient of a linear layer's weight.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn linear_backward_weight(&self, of: LinearWeightGrad<'_>, to: &Destination) -> Result<()>;

    /// Returns the column sums of dy, the gradient of a linear layer's bias: `[outputs]`, f32 for elements of 16 bits.
    ///
    /// # Errors
    /// If the element types are not supported.
    fn linear_backward_bias(&self, sizes: [usize; 3], dy: &Array) -> Result<Array>;

    /// Computes softmax of every row (the last dimension), stored as `dtype`.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn softmax(&self, x: &Array, dtype: DType) -> Result<Array>;

    /// Returns the gradient of softmax's input from its output `y` and the output's gradient; f32 for elements of 16 bits.
    ///
    /// # Errors
    /// If the element type is not supported.
    fn softmax_backward(&self, y: &Array, dy: &Array) -> Result<Array>;
}

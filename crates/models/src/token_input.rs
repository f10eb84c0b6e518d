//! The input of language models.

use candle_core::{Device, Tensor};
use phalanx_tensor::{Result, TensorError, Value};

/// Tokens with their positions, both u32 [N, T].
///
/// Positions are an input, not a count of columns: in packed rows they begin anew with each document, and a model that
/// continues a text has them from its cache.
#[derive(Debug, Clone)]
pub struct TokenInput {
    /// The tokens.
    pub tokens: Value,
    /// The position of each token in its text.
    pub positions: Value,
}

impl TokenInput {
    /// Returns tokens [N, T] whose columns are their positions.
    ///
    /// # Errors
    /// If there are other than two dimensions.
    pub fn new(tokens: &Tensor) -> Result<Self> {
        let (rows, length) = tokens.dims2()?;
        let positions = Tensor::arange(0, length as u32, &Device::Cpu)?;
        let positions = positions.broadcast_as((rows, length))?.contiguous()?;
        Ok(Self { tokens: Value::constant(tokens), positions: Value::constant(positions) })
    }

    /// Returns the number of columns.
    ///
    /// # Errors
    /// If tokens and positions are not [N, T] alike.
    pub(crate) fn length(&self) -> Result<usize> {
        match self.tokens.dims() {
            &[_, length] if self.positions.dims() == self.tokens.dims() => Ok(length),
            _ => {
                let (tokens, positions) = (self.tokens.shape(), self.positions.shape());
                let problem =
                    format!("tokens {tokens:?} with positions {positions:?}; both should be [N, T]");
                Err(TensorError::Shape { op: "token input", problem })
            }
        }
    }
}

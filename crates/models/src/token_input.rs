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
    /// The column at which the text of each token begins, u32 [N, T], in rows of several texts that do not see each other.
    pub starts: Option<Value>,
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
        Ok(Self { tokens: Value::constant(tokens), positions: Value::constant(positions), starts: None })
    }

    /// Returns the columns of texts from `first` on, row by row, where a model continues texts that have `padding` columns in
    /// front, one number for each row.
    ///
    /// # Errors
    /// If the tokens make no rows of equal length.
    pub fn padded_left(tokens: &[u32], padding: &[usize], first: usize) -> Result<Self> {
        let rows = padding.len();
        if rows == 0 || tokens.is_empty() || !tokens.len().is_multiple_of(rows) {
            let problem = format!("{} tokens for {rows} rows", tokens.len());
            return Err(TensorError::Shape { op: "token input", problem });
        }
        let length = tokens.len() / rows;
        let places = |of: &dyn Fn(usize, usize) -> usize| -> Result<Value> {
            let places =
                padding.iter().flat_map(|pad| (first..first + length).map(|column| of(*pad, column) as u32));
            let places: Vec<u32> = places.collect();
            Ok(Value::constant(Tensor::from_vec(places, (rows, length), &Device::Cpu)?))
        };
        let starts = match padding.iter().any(|pad| *pad > 0) {
            true => Some(places(&|pad, _| pad)?),
            false => None,
        };
        Ok(Self {
            tokens: Value::constant(Tensor::from_slice(tokens, (rows, length), &Device::Cpu)?),
            positions: places(&|pad, column| column.saturating_sub(pad))?,
            starts,
        })
    }

    /// Returns the number of columns with the `seen` ones before them, checked by `op` for a model of a context.
    ///
    /// # Errors
    /// If the arrays are not [N, T] alike, or there are more columns than the context.
    pub(crate) fn checked_length(&self, op: &'static str, context: usize, seen: usize) -> Result<usize> {
        let error = |problem: String| Err(TensorError::Shape { op, problem });
        let others = [Some(&self.positions), self.starts.as_ref()];
        match self.tokens.dims() {
            &[_, length] if others.into_iter().flatten().all(|other| other.dims() == self.tokens.dims()) => {
                let all = seen + length;
                if all > context {
                    return error(format!("{all} tokens; the context is {context}"));
                }
                Ok(all)
            }
            _ => {
                let (tokens, positions) = (self.tokens.shape(), self.positions.shape());
                let starts = self.starts.as_ref().map(Value::shape);
                error(format!(
                    "tokens {tokens:?} with positions {positions:?} and starts {starts:?}; all should be [N, T]"
                ))
            }
        }
    }
}

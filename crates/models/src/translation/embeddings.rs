//! The tables of tokens, and positions.

use candle_core::{Device, Tensor};
use phalanx_tensor::nn::LayerNorm;
use phalanx_tensor::{Block, Param, Result, Tape, TensorError, Value, ops};

use super::config::TranslationLayout;

/// Scaled embeddings of tokens plus the sines and cosines of their positions.
#[derive(Debug)]
pub(super) struct Embeddings {
    pub(super) name: String,
    pub(super) table: Param,
    pub(super) layout: TranslationLayout,
    pub(super) width: usize,
    /// The token whose lookups have no gradient, as in PyTorch's tables with a padding token.
    pub(super) fixed: Option<u32>,
    pub(super) dropout: f64,
}

impl Embeddings {
    /// Computes the states of tokens [N, T], of which the first column is at position `first`.
    pub(super) fn at(&self, tape: &Tape, tokens: &Value, first: usize) -> Result<Value> {
        let &[rows, length] = tokens.dims() else {
            let problem = format!("tokens {:?}; they should be [N, T]", tokens.shape());
            return Err(TensorError::Shape { op: "translation", problem });
        };
        let table = tape.param(&self.table)?;
        let tokens = tokens.array()?;
        let states = match self.fixed {
            Some(fixed) => ops::embedding_with_fixed(tape, &table, &tokens, fixed)?,
            None => ops::embedding(tape, &table, &tokens)?,
        };
        let states = ops::scale(tape, &states, (self.width as f64).sqrt())?;
        let positions =
            Tensor::from_vec(self.positions(first..first + length), (length, self.width), &Device::Cpu)?;
        let positions = tape.session().device.put(&positions.to_dtype(states.dtype()?)?)?;
        let positions = ops::broadcast_as(tape, &Value::constant(positions), (rows, length, self.width))?;
        ops::dropout(tape, &ops::add(tape, &states, &positions)?, self.dropout)
    }

    /// Sines and cosines of positions, row by row (Vaswani et al. 2017).
    fn positions(&self, range: std::ops::Range<usize>) -> Vec<f64> {
        let (half, width) = (self.width.div_ceil(2), self.width as f64);
        let place = |element: usize| match self.layout {
            TranslationLayout::Marian => (element % half, element < half),
            TranslationLayout::Torch => (element / 2, element.is_multiple_of(2)),
        };
        let elements: Vec<(f64, bool)> = (0..self.width)
            .map(place)
            .map(|(pair, is_sine)| (10_000_f64.powf(-2.0 * pair as f64 / width), is_sine))
            .collect();
        let row = |position: usize| {
            let angle = move |frequency: f64| position as f64 * frequency;
            elements.iter().map(move |(frequency, is_sine)| match is_sine {
                true => angle(*frequency).sin(),
                false => angle(*frequency).cos(),
            })
        };
        range.flat_map(row).collect()
    }
}

impl Block for Embeddings {
    fn name(&self) -> &str {
        &self.name
    }

    /// Takes tokens, u32 [N, T].
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![self.at(tape, &inputs[0], 0)?])
    }
}

/// The norm of the last states.
#[derive(Debug)]
pub(super) struct FinalNorm {
    pub(super) name: String,
    pub(super) norm: LayerNorm,
}

impl Block for FinalNorm {
    fn name(&self) -> &str {
        &self.name
    }

    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>> {
        Ok(vec![self.norm.forward(tape, &inputs[0])?])
    }
}

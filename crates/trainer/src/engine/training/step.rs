//! What a phase is given, and what it gives back.

use candle_core::DType;
use phalanx_tensor::loss::Over;
use phalanx_tensor::{Tape, Value, ops};

use crate::engine::data::Batch;
use crate::engine::error::TrainError;

/// One rank's share of one micro-batch, in one phase of one step or in an evaluation.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Step<'a> {
    /// What ops record on.
    pub tape: &'a Tape,
    /// The samples.
    pub batch: &'a Batch,
    /// What losses are divided by: in training the size of the whole step's batch over all ranks, so that the ranks' losses
    /// and gradients add up to those of its mean; in evaluation 1, so that losses are sums over the samples.
    pub over: Over,
    /// The steps that were done before.
    pub number: u64,
}

impl<'a> Step<'a> {
    pub(in crate::engine) fn new(tape: &'a Tape, batch: &'a Batch, over: Over, number: u64) -> Self {
        Self { tape, batch, over, number }
    }

    /// The number that a mean over the batch divides by, as [`Step::over`] says.
    pub fn count(&self) -> f64 {
        match self.over {
            Over::Batch => self.batch.len().max(1) as f64,
            Over::Count(count) => count.max(1) as f64,
        }
    }

    /// Standard normal noise `[samples, dims…]`, f32. It is drawn by the sample's position in the step's whole batch, so that
    /// any number of ranks draw what one would.
    ///
    /// # Errors
    /// If it cannot be allocated.
    pub fn normal(&self, dims: &[usize]) -> Result<Value, TrainError> {
        let shape: Vec<usize> = [self.batch.len()].iter().chain(dims).copied().collect();
        Ok(ops::gaussian_noise(self.tape, shape, DType::F32)?)
    }
}

/// A phase's loss, and what else was measured on the way.
#[derive(Debug)]
pub struct Loss {
    pub(in crate::engine) value: Value,
    pub(in crate::engine) measures: Vec<f64>,
}

impl Loss {
    /// A scalar on the tape, divided as [`Step::over`] says, with one number for each of [`super::Training::measures`],
    /// divided likewise, so that ranks add up.
    pub fn new(value: Value, measures: impl Into<Vec<f64>>) -> Self {
        Self { value, measures: measures.into() }
    }
}

impl From<Value> for Loss {
    fn from(value: Value) -> Self {
        Self::new(value, Vec::new())
    }
}

//! What the loop needs to know of a model: how to take a loss on a batch, how to test it, what to draw with it.

use phalanx_tensor::loss::Over;
use phalanx_tensor::{ParamStore, Tape, Value};

use crate::engine::TrainError;
use crate::engine::data::Batch;

/// A loss and what else was measured on the way.
#[derive(Debug)]
pub struct Outcome {
    /// The loss, as a scalar on the tape.
    pub loss: Value,
    /// One number for each of [`Task::measures`], divided as the loss was, so that ranks add up.
    pub measures: Vec<f64>,
}

/// A model together with what it is trained to do.
pub trait Task {
    /// The model, in words.
    fn describe(&self) -> String;

    /// Its parameters and buffers.
    fn store(&self) -> &ParamStore;

    /// Names of what is measured in training besides the loss.
    fn measures(&self) -> &'static [&'static str];

    /// The loss of a batch at step `step`, counted from 0.
    ///
    /// # Errors
    /// Those of the model's ops.
    fn loss(&self, tape: &Tape, batch: &Batch, over: Over, step: u64) -> Result<Outcome, TrainError>;

    /// Names of what [`Task::evaluate`] returns; the first is the loss.
    fn evaluated(&self) -> &'static [&'static str];

    /// Measures of the test split, as sums over the batch's images.
    ///
    /// # Errors
    /// Those of the model's ops.
    fn evaluate(&self, tape: &Tape, batch: &Batch) -> Result<Vec<f64>, TrainError>;

    /// Whether [`Task::sample`] draws anything.
    fn draws(&self) -> bool {
        false
    }

    /// Pictures for prompts: `columns` for each, one after the other, `[3, size, size]` planar in [-1, 1].
    /// `None` if this task draws nothing.
    ///
    /// # Errors
    /// Those of the model's ops.
    fn sample(
        &self,
        tape: &Tape,
        prompts: &[String],
        columns: usize,
    ) -> Result<Option<Vec<Vec<f32>>>, TrainError> {
        let _ = (tape, prompts, columns);
        Ok(None)
    }
}

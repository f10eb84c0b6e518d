//! The input and the result of a phase.

use std::ops::Range;

use candle_core::{DType, Shape};
use phalanx_tensor::loss::{LossDivisor, weighted};
use phalanx_tensor::{Key, Session, StageRole, Tape, TensorError, Value, ops};

use super::measure::Measure;
use super::notices::Notices;
use crate::engine::error::TrainError;
use phalanx_batches::Batch;

/// One rank's part of a micro-batch, in a phase of a step or in an evaluation.
///
/// Losses are divided by [`StepInput::sum`], the sum of the samples' weights over the *whole* batch of the step, on all ranks and in all
/// micro-batches. The losses and gradients of ranks then add up to those of the mean. [`StepInput::mean`] and [`StepInput::over`] do that.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct StepInput<'a> {
    /// The tape that operations record on.
    pub tape: &'a Tape,
    /// The samples.
    pub batch: &'a Batch,
    /// The divisor of losses; 1 in an evaluation, which returns sums over the samples.
    pub sum: f64,
    /// The number of steps before this one.
    pub number: u64,
    /// The random stream that the phases of a step share.
    key: Key,
    /// The notices of the run; `None` in an evaluation.
    notices: Option<&'a Notices>,
}

impl<'a> StepInput<'a> {
    pub(in crate::engine) fn new(tape: &'a Tape, batch: &'a Batch, sum: f64, number: u64, key: Key) -> Self {
        Self { tape, batch, sum, number, key, notices: None }
    }

    /// Returns the input of a step whose notices are reported.
    pub(in crate::engine) fn with_notices(self, notices: &'a Notices) -> Self {
        Self { notices: Some(notices), ..self }
    }

    /// Tells the user something about the training that `tracing` has told in the log, such as that captions are cut off: rank 0 shows it
    /// on the console, and in the metrics of the step. Tell it once, not in each step. In an evaluation nothing is shown.
    pub fn warn(&self, text: impl Into<String>) {
        if let Some(notices) = self.notices {
            notices.add(text.into());
        }
    }

    /// Returns the array of this name as a constant at the place where this rank computes.
    ///
    /// # Errors
    /// If the batch has no array of this name; the error lists all names.
    pub fn value(&self, name: &str) -> Result<Value, TrainError> {
        Ok(Value::constant(self.batch.array(name, self.tape)?))
    }

    /// Returns the elements of an array of u32, such as classes or tokens, one sample after the other.
    ///
    /// # Errors
    /// If the batch has no array of this name, or its elements are of another type.
    pub fn classes(&self, name: &str) -> Result<Vec<u32>, TrainError> {
        Ok(self.batch.classes(name)?)
    }

    /// Returns the texts of this name, one for each sample.
    ///
    /// # Errors
    /// If the batch has no texts of this name; the error lists all names.
    pub fn texts(&self, name: &str) -> Result<&'a [String], TrainError> {
        Ok(self.batch.texts(name)?)
    }

    /// Returns the divisor of a loss over all samples, if they have equal weights.
    ///
    /// # Errors
    /// If samples have different weights; use [`StepInput::mean`] then.
    pub fn over(&self) -> Result<LossDivisor, TrainError> {
        Ok(self.batch.even(self.sum)?)
    }

    /// Computes the weighted mean of the samples' losses over the whole batch. `loss` gets rows of `output` of equal weight, their range,
    /// and the divisor.
    ///
    /// # Errors
    /// Errors of `loss`, and if `output` does not have one row for each sample.
    pub fn mean(
        &self,
        output: &Value,
        mut loss: impl FnMut(&Value, Range<usize>, LossDivisor) -> Result<Value, TensorError>,
    ) -> Result<Value, TrainError> {
        Ok(weighted(self.tape, output, self.batch.weights(), self.sum, |rows, range, over| {
            loss(rows, range, over)
        })?)
    }

    /// Returns a weight for each position of the samples, such as a token, one sample after the other, for
    /// [`RowTargets`](phalanx_tensor::loss::RowTargets) over [`LossDivisor::Sum`] of [`StepInput::sum`]. Of the N·T positions those count
    /// that the array `mask`, f32 [N, T], marks with 1. Each sample's weight is spread evenly over its positions: if it equals their
    /// number, each has weight 1.
    ///
    /// # Errors
    /// If there is no such mask or it has another shape.
    pub fn weights_of_places(&self, mask: &str) -> Result<Vec<f32>, TrainError> {
        Ok(self.batch.weights_of_places(mask)?)
    }

    /// Runs a computation that reads numbers, on a tape of its own without backward: the first batch is measured before anything is
    /// trained. Its random numbers are those of a pass that begins here. Where blocks lie on the stages of a pipeline, these compute it
    /// together and all get its numbers, so it must come first in the first pass.
    ///
    /// # Errors
    /// Errors of the computation.
    pub fn measured<R>(
        &self,
        compute: impl FnOnce(&StepInput<'_>) -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        let session = self.tape.session();
        let stage = session.stage.as_ref().map(StageRole::apart).transpose()?.flatten();
        let tape = Tape::forward_only(Session { stage, ..session.clone() });
        compute(&StepInput { tape: &tape, ..*self })
    }

    /// Returns standard normal noise `[samples, dims…]`, f32. It depends on a sample's position in the whole batch, not on the number of
    /// ranks; in an evaluation, on its position in the batch of this rank.
    ///
    /// # Errors
    /// If it cannot be allocated.
    pub fn normal(&self, dims: &[usize]) -> Result<Value, TrainError> {
        let shape: Vec<usize> = [self.batch.len()].iter().chain(dims).copied().collect();
        Ok(ops::gaussian_noise(self.tape, shape, DType::F32)?)
    }

    /// Returns standard normal noise `[samples, dims…]` by position, as [`StepInput::normal`], in the dtype of activations. All phases of a step
    /// get the same noise for a name: a generator can repeat the samples that a discriminator was trained on.
    ///
    /// # Errors
    /// If it cannot be allocated.
    pub fn shared_normal(&self, name: &str, dims: &[usize]) -> Result<Value, TrainError> {
        let shape: Vec<usize> = [self.batch.len()].iter().chain(dims).copied().collect();
        let start = self.tape.session().sample_offset * dims.iter().product::<usize>();
        let (key, dtype) = (self.key.stream(name), self.tape.session().precision.dtype());
        Ok(Value::constant(self.tape.backend().gaussian_noise(key, start, &Shape::from(shape), dtype)?))
    }

    /// Measures the diversity of the samples `made` relative to `real`, both [N, …]: 1 if they differ equally, near 0 after mode collapse.
    /// It is the ratio of the standard deviations between samples, as root mean squares over the elements, over the whole micro-batch on
    /// all ranks. Returns this rank's part, as measures of a phase need it.
    ///
    /// # Errors
    /// If elements are not floating-point; and those of the transport.
    pub fn diversity(&self, made: &Value, real: &Value) -> Result<Measure, TrainError> {
        let tape = self.tape;
        let samples = made.dims().first().copied().unwrap_or(0);
        let number = Value::constant(tape.session().device.full(samples as f64, 1, DType::F32)?);
        let ([made, made_squares], [real, real_squares]) = (self.sums(made)?, self.sums(real)?);
        let elements = made.dims()[0];
        let sums = ops::cat(tape, &[&number, &made, &made_squares, &real, &real_squares], 0)?;
        if let Some(group) = &tape.session().batch_group {
            let failed = |source| TensorError::Hook { op: "diversity", source };
            group.all_reduce(&sums.array()?).map_err(failed)?;
        }
        // All ranks find the same number, and their measures are added up.
        let share = self.batch.weight() / self.sum;
        Measure::read(&sums, move |sums| {
            let sums = sums.to_vec1::<f32>()?;
            let parts: Vec<&[f32]> = sums[1..].chunks_exact(elements.max(1)).collect();
            let of = |at: usize| deviation(f64::from(sums[0]), parts[at], parts[at + 1]);
            Ok(share * of(0) / of(2).max(1e-6))
        })
    }

    /// Returns the sums over the samples of each element of a value [N, …], and of its square, f32.
    fn sums(&self, value: &Value) -> Result<[Value; 2], TrainError> {
        let tape = self.tape;
        let array = value.array()?;
        let wide = Value::constant(array.backend(tape.context()).cast(&array, DType::F32)?);
        let samples = wide.dims().first().copied().unwrap_or(0);
        let elements = wide.shape().elem_count() / samples.max(1);
        let rows = ops::reshape(tape, &wide, (samples, elements))?;
        let squares = ops::mul(tape, &rows, &rows)?;
        Ok([ops::sum_over(tape, &rows, 0)?, ops::sum_over(tape, &squares, 0)?])
    }
}

/// Returns the standard deviation of this number of samples, from the sums of their elements and of the squares, as a root mean square
/// over the elements.
fn deviation(number: f64, sums: &[f32], squares: &[f32]) -> f64 {
    let number = number.max(1.0);
    let variance =
        |(sum, square): (&f32, &f32)| f64::from(*square) / number - (f64::from(*sum) / number).powi(2);
    let sum: f64 = sums.iter().zip(squares).map(variance).sum();
    (sum.max(0.0) / sums.len().max(1) as f64).sqrt()
}

/// The loss and the measures of a phase.
#[derive(Debug)]
pub struct Loss {
    pub(in crate::engine) value: Value,
    pub(in crate::engine) measures: Vec<Measure>,
}

impl Loss {
    /// Creates a loss from a scalar on the tape, divided by [`StepInput::sum`], and one number for each of [`super::Training::measures`],
    /// divided likewise, so that those of all ranks add up.
    pub fn new<I: IntoIterator<Item: Into<Measure>>>(value: Value, measures: I) -> Self {
        Self { value, measures: measures.into_iter().map(Into::into).collect() }
    }
}

impl From<Value> for Loss {
    fn from(value: Value) -> Self {
        Self::new(value, [0.0; 0])
    }
}

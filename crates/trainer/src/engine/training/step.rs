//! What a phase is given, and what it gives back.

use std::ops::Range;

use candle_core::{DType, Shape};
use phalanx_tensor::loss::{Over, weighted};
use phalanx_tensor::{Key, Tape, TensorError, Value, ops};

use super::measure::Measure;
use crate::engine::data::Batch;
use crate::engine::error::TrainError;

/// One rank's share of one micro-batch, in one phase of one step or in an evaluation.
///
/// Losses are divided by [`Step::sum`], the sum of the samples' weights over the *whole* batch of the step, on all ranks and in
/// all micro-batches: so the ranks' losses and gradients add up to those of its mean. [`Step::mean`] and [`Step::over`] do that.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Step<'a> {
    /// What ops record on.
    pub tape: &'a Tape,
    /// The samples.
    pub batch: &'a Batch,
    /// What losses are divided by; 1 in an evaluation, which wants sums over the samples.
    pub sum: f64,
    /// The steps that were done before.
    pub number: u64,
    /// What all phases of the step draw alike.
    key: Key,
}

impl<'a> Step<'a> {
    pub(in crate::engine) fn new(tape: &'a Tape, batch: &'a Batch, sum: f64, number: u64, key: Key) -> Self {
        Self { tape, batch, sum, number, key }
    }

    /// The array of this name, as a constant where this rank computes.
    ///
    /// # Errors
    /// If the batch has none of this name; the error lists the names that it has.
    pub fn value(&self, name: &str) -> Result<Value, TrainError> {
        Ok(Value::constant(self.batch.array(name, self.tape)?))
    }

    /// The numbers of an array of u32, such as classes or tokens, one sample after the other.
    ///
    /// # Errors
    /// If the batch has no array of this name, or its elements are of another type.
    pub fn classes(&self, name: &str) -> Result<Vec<u32>, TrainError> {
        self.batch.classes(name)
    }

    /// The texts of this name, one for each sample.
    ///
    /// # Errors
    /// If the batch has none of this name; the error lists the names that it has.
    pub fn texts(&self, name: &str) -> Result<&'a [String], TrainError> {
        self.batch.texts(name)
    }

    /// What a loss of all samples together is divided by, where all count alike.
    ///
    /// # Errors
    /// If samples have different weights: then [`Step::mean`] is what takes them into account.
    pub fn over(&self) -> Result<Over, TrainError> {
        self.batch.even(self.sum)
    }

    /// The weighted mean of the samples' losses over the whole batch: `loss` gets rows of `output` that have one weight, the
    /// range that they come from, and what to divide by.
    ///
    /// # Errors
    /// Those of `loss`, and if `output` has not a row for each sample.
    pub fn mean(
        &self,
        output: &Value,
        mut loss: impl FnMut(&Value, Range<usize>, Over) -> Result<Value, TensorError>,
    ) -> Result<Value, TrainError> {
        Ok(weighted(self.tape, output, self.batch.weights(), self.sum, |rows, range, over| {
            loss(rows, range, over)
        })?)
    }

    /// The weighted mean over the whole batch of losses of places, such as those of tokens: `output` is [N, T, …], and of its
    /// N·T rows those count that the array `mask`, f32 [N, T], marks with 1. `loss` gets rows, the range that they come from
    /// among all, and what to divide by. Each sample's weight is spread evenly over its places: a sample that weighs as much as
    /// it has places gives each a weight of 1.
    ///
    /// # Errors
    /// Those of `loss`, and if there is no such mask or its shape is another.
    pub fn mean_of_places(
        &self,
        output: &Value,
        mask: &str,
        mut loss: impl FnMut(&Value, Range<usize>, Over) -> Result<Value, TensorError>,
    ) -> Result<Value, TrainError> {
        let weights = self.batch.weights_of_places(mask)?;
        let rest = output.dims().get(2..).unwrap_or_default();
        let shape: Vec<usize> = [weights.len()].iter().chain(rest).copied().collect();
        let rows = ops::reshape(self.tape, output, shape)?;
        Ok(weighted(self.tape, &rows, &weights, self.sum, |rows, range, over| loss(rows, range, over))?)
    }

    /// Standard normal noise `[samples, dims…]`, f32. It is drawn by the sample's position in the step's whole batch, so that
    /// any number of ranks draw what one would; in an evaluation by its position in the batch of this rank.
    ///
    /// # Errors
    /// If it cannot be allocated.
    pub fn normal(&self, dims: &[usize]) -> Result<Value, TrainError> {
        let shape: Vec<usize> = [self.batch.len()].iter().chain(dims).copied().collect();
        Ok(ops::gaussian_noise(self.tape, shape, DType::F32)?)
    }

    /// Standard normal noise `[samples, dims…]` by position as [`Step::normal`] draws it, in the type that activations are kept
    /// in, which all phases of a step that ask for this name get alike: so a generator makes the samples once more by which a discriminator has just been taught.
    ///
    /// # Errors
    /// If it cannot be allocated.
    pub fn shared_normal(&self, name: &str, dims: &[usize]) -> Result<Value, TrainError> {
        let shape: Vec<usize> = [self.batch.len()].iter().chain(dims).copied().collect();
        let start = self.tape.session().sample_offset * dims.iter().product::<usize>();
        let (key, dtype) = (self.key.stream(name), self.tape.session().precision.dtype());
        Ok(Value::constant(self.tape.backend().gaussian_noise(key, start, &Shape::from(shape), dtype)?))
    }

    /// How different the samples of `made` are beside those of `real`, both [N, …]: 1 if they differ as much, near 0 if a
    /// generator makes one picture of everything. It is a measure of a phase as it stands: over the whole micro-batch on all
    /// ranks, and this rank's share of it. What differs is the standard deviation between samples, as the root of its mean square
    /// over the elements.
    ///
    /// # Errors
    /// If elements are no floating-point numbers; and the transport's.
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
        // All ranks find the same number, and what they measure is added up.
        let share = self.batch.weight() / self.sum;
        Measure::read(&sums, move |sums| {
            let sums = sums.to_vec1::<f32>()?;
            let parts: Vec<&[f32]> = sums[1..].chunks_exact(elements.max(1)).collect();
            let of = |at: usize| deviation(f64::from(sums[0]), parts[at], parts[at + 1]);
            Ok(share * of(0) / of(2).max(1e-6))
        })
    }

    /// The sums over the samples of each element of a value [N, …], and those of their squares: f32.
    fn sums(&self, value: &Value) -> Result<[Value; 2], TrainError> {
        let tape = self.tape;
        let array = value.array()?;
        let wide = Value::constant(tape.backend().cast(&array, DType::F32)?);
        let samples = wide.dims().first().copied().unwrap_or(0);
        let elements = wide.shape().elem_count() / samples.max(1);
        let rows = ops::reshape(tape, &wide, (samples, elements))?;
        let squares = ops::mul(tape, &rows, &rows)?;
        Ok([ops::sum_over(tape, &rows, 0)?, ops::sum_over(tape, &squares, 0)?])
    }
}

/// The standard deviation of so many samples, given the sums of their elements and those of the squares, as the root of its mean
/// square over the elements.
fn deviation(number: f64, sums: &[f32], squares: &[f32]) -> f64 {
    let number = number.max(1.0);
    let variance =
        |(sum, square): (&f32, &f32)| f64::from(*square) / number - (f64::from(*sum) / number).powi(2);
    let sum: f64 = sums.iter().zip(squares).map(variance).sum();
    (sum.max(0.0) / sums.len().max(1) as f64).sqrt()
}

/// A phase's loss, and what else was measured on the way.
#[derive(Debug)]
pub struct Loss {
    pub(in crate::engine) value: Value,
    pub(in crate::engine) measures: Vec<Measure>,
}

impl Loss {
    /// A scalar on the tape, divided by [`Step::sum`], with one number for each of [`super::Training::measures`], divided
    /// likewise, so that ranks add up: known ones, or [`Measure`]s that a device may still be computing.
    pub fn new<I: IntoIterator<Item: Into<Measure>>>(value: Value, measures: I) -> Self {
        Self { value, measures: measures.into_iter().map(Into::into).collect() }
    }
}

impl From<Value> for Loss {
    fn from(value: Value) -> Self {
        Self::new(value, [0.0; 0])
    }
}

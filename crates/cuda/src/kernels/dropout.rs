//! Dropout, with the masks of the CPU's kernels; it is drawn again in backward. In a graph, keys of the captured step read its
//! number from the device ([`CapturedStep`](crate::graph::CapturedStep)).

use super::grid::{check_float, launch, over, pack};
use super::random::StreamKey;
use super::sources::RANDOM;
use crate::{Gpu, GpuError, Result, Slice};

/// The dropout of an op, by sample of the global batch.
#[derive(Debug, Clone, Copy)]
pub struct Dropout {
    /// The key of the random numbers.
    pub key: StreamKey,
    /// The probability that an element becomes 0, below 1.
    pub p: f64,
    /// The index in the global batch of the first sample.
    pub first_sample: usize,
    /// The rows of each sample that are there, if they are some of more.
    pub rows: Option<SampleRows>,
}

/// Some rows of each sample, such as the heads of attention that a rank has.
#[derive(Debug, Clone, Copy)]
pub struct SampleRows {
    /// The first one.
    pub first: usize,
    /// The number of rows of a whole sample.
    pub all: usize,
}

impl Dropout {
    /// `Dropout` of the kernels.
    pub(super) fn numbers(&self) -> [u64; 8] {
        let [seed, step, rank, stream] = self.key.words();
        // A threshold of 0 is no dropout.
        let threshold = ((self.p * 4_294_967_296.0).ceil().max(0.0) as u64).max(1);
        // 0 rows are those that are there.
        let [first, all] = self.rows.map_or([0; 2], |rows| [rows.first as u64, rows.all as u64]);
        [seed, step, rank, stream, threshold, self.first_sample as u64, first, all]
    }

    /// Returns the factor of kept elements.
    pub(super) fn factor(&self) -> f64 {
        1.0 / (1.0 - self.p)
    }
}

/// Computes x/(1 − p) where elements are kept, and 0 elsewhere, for `samples` samples of equally many elements.
///
/// # Errors
/// If the elements are not floats, or not those of whole samples.
pub fn dropout(gpu: &Gpu, x: &Slice, samples: usize, of: Dropout) -> Result<Slice> {
    const FUNCTION: &str = "dropout";
    check_float(FUNCTION, x.dtype())?;
    if !x.len().is_multiple_of(samples.max(1)) {
        let problem = format!("{} elements are not those of {samples} samples", x.len());
        return Err(GpuError::argument(FUNCTION, problem));
    }
    let y = gpu.unwritten(x.dtype(), x.len())?;
    let step = gpu.captured_step(of.key.step);
    launch(gpu, &RANDOM, &format!("dropout_{}", x.dtype()), over(x.len(), pack(&[x.dtype()])))
        .slice(x)
        .slice(&y)
        .optional(step.as_ref())
        .number(of.numbers())
        .number((x.len() / samples.max(1)) as i64)
        .number(of.factor())
        .number(x.len() as i64)
        .run()?;
    Ok(y)
}

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
    /// The part of each sample that is there, if it is not all.
    pub part: Option<SamplePart>,
}

/// The part of a sample that is there: in each run of `all` things, `own` from `first` on. The things of attention are heads, of which a
/// sample has one run, and otherwise elements.
#[derive(Debug, Clone, Copy)]
pub struct SamplePart {
    /// The first that is there.
    pub first: usize,
    /// The number of those that are there.
    pub own: usize,
    /// The number of things of a run.
    pub all: usize,
}

impl Dropout {
    /// `Dropout` of the kernels.
    pub(super) fn numbers(&self) -> [u64; 8] {
        let [seed, step, rank, stream] = self.key.words();
        // A threshold of 0 is no dropout.
        let threshold = ((self.p * 4_294_967_296.0).ceil().max(0.0) as u64).max(1);
        // 0 rows are those that are there.
        let [first, all] = self.part.map_or([0; 2], |part| [part.first as u64, part.all as u64]);
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
    let len = x.len() / samples.max(1);
    let part = of.part.unwrap_or(SamplePart { first: 0, own: len.max(1), all: len });
    if part.own == 0 || !len.is_multiple_of(part.own) {
        let problem = format!("samples of {len} elements do not have runs of {}", part.own);
        return Err(GpuError::argument(FUNCTION, problem));
    }
    let y = gpu.unwritten(x.dtype(), x.len())?;
    let step = gpu.captured_step(of.key.step);
    launch(gpu, &RANDOM, &format!("dropout_{}", x.dtype()), over(x.len(), pack(&[x.dtype()])))
        .slice(x)
        .slice(&y)
        .optional(step.as_ref())
        .number(Dropout { part: None, ..of }.numbers())
        .number([len, part.first, part.own, part.all].map(|size| size as i64))
        .number(of.factor())
        .number(x.len() as i64)
        .run()?;
    Ok(y)
}

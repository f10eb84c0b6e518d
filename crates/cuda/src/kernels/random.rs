//! Counter-based random numbers: element i of a stream depends on its key and i alone. In a graph, keys of the captured step read
//! its number from the device ([`CapturedStep`](crate::graph::CapturedStep)).

use super::grid::{THREADS, check_float, launch};
use super::sources::RANDOM;
use crate::{ElementType, Gpu, Result, Slice};

/// The key of a stream of ChaCha8: seed, step and rank are the cipher's key, the stream is its nonce.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StreamKey {
    /// The run's seed.
    pub seed: u64,
    /// The step.
    pub step: u64,
    /// The rank, or 0 for numbers shared by ranks.
    pub rank: u64,
    /// The purpose of the numbers.
    pub stream: u64,
}

impl StreamKey {
    /// `Key` of the kernels.
    pub(super) fn words(self) -> [u64; 4] {
        [self.seed, self.step, self.rank, self.stream]
    }
}

/// Returns a grid with a thread for each 16 elements, and those at both ends.
fn blocks(count: usize) -> [usize; 3] {
    [(count / 16 + 2).div_ceil(THREADS), 1, 1]
}

/// Returns elements `start..start + count` of the uniform stream, in f64.
///
/// # Errors
/// If memory runs out.
pub fn uniform(gpu: &Gpu, key: StreamKey, start: usize, count: usize) -> Result<Slice> {
    drawn(gpu, "uniform", key, start, count, ElementType::F64)
}

/// Returns elements `start..start + count` of the normal stream.
///
/// # Errors
/// If `dtype` is not a float.
pub fn normal(gpu: &Gpu, key: StreamKey, start: usize, count: usize, dtype: ElementType) -> Result<Slice> {
    check_float("normal", dtype)?;
    drawn(gpu, "normal", key, start, count, dtype)
}

fn drawn(
    gpu: &Gpu,
    name: &str,
    key: StreamKey,
    start: usize,
    count: usize,
    dtype: ElementType,
) -> Result<Slice> {
    let y = gpu.unwritten(dtype, count)?;
    let step = gpu.captured_step(key.step);
    launch(gpu, &RANDOM, &format!("{name}_{dtype}"), blocks(count))
        .number(key.words())
        .optional(step.as_ref())
        .number(start as u64)
        .slice(&y)
        .number(count as i64)
        .run()?;
    Ok(y)
}

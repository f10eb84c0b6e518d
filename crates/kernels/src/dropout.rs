//! Dropout (Srivastava et al. 2014), drawn again in backward so that no mask is kept.

use crate::context::Context;
use crate::error::{KernelError, Result, check_len};
use crate::float::Float;

/// The dropout of an op, by sample of the global batch.
///
/// An element is kept by the index of its sample and its index within the sample. So masks depend neither on how samples
/// are divided among ranks nor on padding behind a sample's elements.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    /// The key of the random numbers.
    pub key: u64,
    /// The probability that an element becomes 0, below 1.
    pub p: f64,
    /// The index in the global batch of the first sample.
    pub first_sample: usize,
    /// The part of each sample that is there, if it is not all.
    pub part: Option<SamplePart>,
}

/// The part of a sample that is there: in each run of `all` things, `own` from `first` on. The things of attention are heads, of which a
/// sample has one run, and otherwise elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SamplePart {
    /// The first that is there.
    pub first: usize,
    /// The number of those that are there.
    pub own: usize,
    /// The number of things of a run.
    pub all: usize,
}

impl SamplePart {
    /// Returns the index in the sample of the thing with index `at` among those that are there.
    fn index(self, at: usize) -> usize {
        at / self.own * self.all + self.first + at % self.own
    }
}

/// The increment of splitmix64 (Steele et al. 2014).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The finaliser of splitmix64.
#[inline(always)]
fn mix(z: u64) -> u64 {
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Dropout {
    /// Returns the generator of row `row` of sample `sample`, of which `rows` are there.
    pub(crate) fn row(&self, sample: usize, rows: usize, row: usize) -> RowDropout {
        let SamplePart { first, all, .. } =
            self.part.unwrap_or(SamplePart { first: 0, own: rows, all: rows });
        self.state((self.first_sample + sample) * all + first + row)
    }

    /// Returns the generator of the elements of sample `sample`.
    fn sample(&self, sample: usize) -> RowDropout {
        self.state(self.first_sample + sample)
    }

    fn state(&self, index: usize) -> RowDropout {
        let state = mix(self.key.wrapping_add((index as u64 + 1).wrapping_mul(GOLDEN)));
        RowDropout { state, threshold: (self.p * 4_294_967_296.0).ceil().max(0.0) as u64, p: self.p }
    }
}

/// The dropout of a row.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowDropout {
    state: u64,
    /// The smallest number of 32 bits of a kept element.
    threshold: u64,
    p: f64,
}

impl RowDropout {
    /// Returns the generator of row `index` within this row.
    pub(crate) fn row(self, index: usize) -> Self {
        Self { state: mix(self.state.wrapping_add(index as u64)), ..self }
    }

    /// Divides elements `first..` of the row by 1 − p, or sets them to 0.
    #[inline(always)]
    pub(crate) fn apply<T: Float>(self, values: &mut [T], first: usize) {
        let scale = T::from_f64(1.0 / (1.0 - self.p));
        let mut state = self.state.wrapping_add((first as u64).wrapping_mul(GOLDEN));
        for value in values {
            state = state.wrapping_add(GOLDEN);
            let kept = (mix(state) >> 32) >= self.threshold;
            *value = if kept { *value * scale } else { T::ZERO };
        }
    }
}

/// Computes y = x/(1 − p) where elements are kept, and 0 elsewhere, for `samples` samples of equally many elements.
///
/// # Errors
/// If the lengths differ, or are not those of whole samples.
pub fn dropout<T: Float>(context: &Context, of: Dropout, samples: usize, x: &[T], y: &mut [T]) -> Result<()> {
    const KERNEL: &str = "dropout";
    check_len(KERNEL, "y", x.len(), y.len())?;
    if !x.len().is_multiple_of(samples.max(1)) {
        let problem = format!("{} elements are not those of {samples} samples", x.len());
        return Err(KernelError::Shape { kernel: KERNEL, problem });
    }
    let len = x.len() / samples.max(1);
    let part = of.part.unwrap_or(SamplePart { first: 0, own: len.max(1), all: len });
    if part.own == 0 || !len.is_multiple_of(part.own) {
        let problem = format!("samples of {len} elements do not have runs of {}", part.own);
        return Err(KernelError::Shape { kernel: KERNEL, problem });
    }
    let piece = context.piece(x.len(), 1);
    context.run_chunks(y, piece, |task, y| {
        let first = task * piece;
        y.copy_from_slice(&x[first..][..y.len()]);
        context.simd(
            #[inline(always)]
            || {
                let mut at = 0;
                while at < y.len() {
                    let (sample, element) = ((first + at) / len, (first + at) % len);
                    let end = (at + part.own - element % part.own).min(y.len());
                    of.sample(sample).apply(&mut y[at..end], part.index(element));
                    at = end;
                }
            },
        );
    });
    Ok(())
}

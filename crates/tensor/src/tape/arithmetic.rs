//! Counts the arithmetic of a training.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Tape;

/// Counts the floating-point operations of matrix products, convolutions and attention, two for each multiplication with its
/// addition. Other ops have little arithmetic and are not counted. Clones count together.
///
/// A block that is recomputed in backward counts once, and of masked attention the pairs that the causal mask and its window leave: the
/// count is that of the model, not of the way in which it is computed, as for the model FLOPs of Chowdhery et al. 2022.
#[derive(Debug, Clone, Default)]
pub struct ArithmeticCount(Arc<AtomicU64>);

impl ArithmeticCount {
    /// Returns the operations since the last call.
    pub fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }

    /// The operations since [`ArithmeticCount::take`].
    pub(super) fn so_far(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, multiply_adds: usize) {
        self.0.fetch_add(2 * multiply_adds as u64, Ordering::Relaxed);
    }
}

impl Tape {
    /// Counts the multiplications of an op's forward, except when a block is computed once more.
    pub(crate) fn count_forward(&self, multiply_adds: usize) {
        if !self.recomputing() {
            self.session().arithmetic.add(multiply_adds);
        }
    }

    /// Counts multiplications of an op's backward.
    pub(crate) fn count_backward(&self, multiply_adds: usize) {
        self.session().arithmetic.add(multiply_adds);
    }
}

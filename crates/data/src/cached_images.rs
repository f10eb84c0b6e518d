//! The images that a consumer has cached, so that their pixels need not be read again.

use std::sync::atomic::{AtomicBool, Ordering};

/// The images of a dataset that the consumer of its batches has cached, for example in device memory. The consumer
/// [inserts](CachedImages::insert) them; the threads that make batches ask.
///
/// A batch that was made earlier may include pixels that are cached by now. It never lacks pixels, since nothing is
/// evicted.
#[derive(Debug)]
pub struct CachedImages(Vec<AtomicBool>);

impl CachedImages {
    /// Makes an empty set for a dataset of `len` samples.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self(std::iter::repeat_with(AtomicBool::default).take(len).collect())
    }

    /// Returns true if a sample's image is cached; false for samples out of range.
    #[must_use]
    pub fn contains(&self, index: usize) -> bool {
        // No other data is passed between the threads, so the flag stands alone.
        self.0.get(index).is_some_and(|held| held.load(Ordering::Relaxed))
    }

    /// Marks a sample's image as cached. Samples out of range are ignored.
    pub fn insert(&self, index: usize) {
        if let Some(held) = self.0.get(index) {
            held.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inserted_images_are_contained() {
        let held = CachedImages::new(2);
        held.insert(1);
        held.insert(2);
        assert_eq!([0, 1, 2].map(|index| held.contains(index)), [false, true, false]);
    }
}

//! Which images of a dataset somebody keeps already, so that their pixels need not be read again.

use std::sync::atomic::{AtomicBool, Ordering};

/// The images of a dataset that whoever takes its batches has kept, such as in a device's memory. The one who keeps them says so
/// ([`CachedImages::add`]); the threads that make batches ask.
///
/// A batch that was made before may bring pixels that are kept meanwhile; it never lacks any, since nothing is let go.
#[derive(Debug)]
pub struct CachedImages(Vec<AtomicBool>);

impl CachedImages {
    /// Of a dataset of so many samples none.
    #[must_use]
    pub fn new(len: usize) -> Self {
        Self(std::iter::repeat_with(AtomicBool::default).take(len).collect())
    }

    /// Whether a sample's image is kept; false for samples that the dataset does not have.
    #[must_use]
    pub fn contains(&self, index: usize) -> bool {
        // Nothing else is handed over between the threads, so the flag stands for itself.
        self.0.get(index).is_some_and(|held| held.load(Ordering::Relaxed))
    }

    /// Says that a sample's image is kept, if the dataset has the sample.
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
    fn what_was_added_is_there() {
        let held = CachedImages::new(2);
        held.insert(1);
        held.insert(2);
        assert_eq!([0, 1, 2].map(|index| held.contains(index)), [false, true, false]);
    }
}

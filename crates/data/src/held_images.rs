//! Which images of a dataset somebody keeps already, so that their pixels need not be read again.

use std::sync::atomic::{AtomicBool, Ordering};

/// The images of a dataset that whoever takes its batches has kept, such as in a device's memory. The one who keeps them says so
/// ([`HeldImages::add`]); the threads that make batches ask.
///
/// A batch that was made before may bring pixels that are kept meanwhile; it never lacks any, since nothing is let go.
#[derive(Debug)]
pub struct HeldImages(Vec<AtomicBool>);

impl HeldImages {
    /// Of a dataset of so many samples none.
    #[must_use]
    pub fn none_of(len: usize) -> Self {
        Self(std::iter::repeat_with(AtomicBool::default).take(len).collect())
    }

    /// Whether a sample's image is kept; false for samples that the dataset does not have.
    #[must_use]
    pub fn has(&self, index: usize) -> bool {
        // Nothing else is handed over between the threads, so the flag stands for itself.
        self.0.get(index).is_some_and(|held| held.load(Ordering::Relaxed))
    }

    /// Says that a sample's image is kept, if the dataset has the sample.
    pub fn add(&self, index: usize) {
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
        let held = HeldImages::none_of(2);
        held.add(1);
        held.add(2);
        assert_eq!([0, 1, 2].map(|index| held.has(index)), [false, true, false]);
    }
}

//! What a rank computes on at a time.

use candle_core::Tensor;

/// A rank's share of a step, or of the test split.
#[derive(Debug, Clone)]
pub struct Batch {
    /// Images: `[N, 3, size, size]`, f32 in [-1, 1].
    pub images: Tensor,
    /// Classes, one for each image.
    pub labels: Vec<u32>,
    /// Captions, one for each image.
    pub captions: Vec<String>,
}

impl Batch {
    /// How many images there are.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }
}

//! Random numbers that are equal in every run and on every rank.

/// A linear congruential generator.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    /// Returns a number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    /// Returns an index below `limit`.
    pub(crate) fn index(&mut self, limit: usize) -> usize {
        self.below(limit as u64) as usize
    }
}

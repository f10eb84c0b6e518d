//! Random numbers that a seed determines.

use phalanx_tensor::Key;

/// A sequence of random numbers.
pub(crate) struct RandomDraws {
    key: Key,
    next: u64,
}

impl RandomDraws {
    pub(crate) fn new(seed: u64, name: &str, number: u64) -> Self {
        Self { key: Key::new(seed).stream(name).stream(&number.to_string()), next: 0 }
    }

    /// Returns a number in [0, 1).
    pub(crate) fn part(&mut self) -> f64 {
        let mut drawn = [0.0];
        self.key.step(self.next).uniform(0, &mut drawn);
        self.next += 1;
        drawn[0]
    }

    /// Returns a number in [0, `end`).
    pub(crate) fn below(&mut self, end: usize) -> usize {
        ((self.part() * end as f64) as usize).min(end - 1)
    }

    pub(crate) fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }
}

//! A histogram of small numbers.

/// Counts of the numbers from 0.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Histogram(Vec<u64>);

impl Histogram {
    /// The number of bins. Larger numbers are counted in the last bin.
    const LONGEST: usize = 1 << 12;

    /// Returns a histogram with these counts, from the count of 0.
    pub fn of(counts: Vec<u64>) -> Self {
        Self(counts)
    }

    /// Counts a number.
    pub fn add(&mut self, value: u64) {
        let at = usize::try_from(value).unwrap_or(usize::MAX).min(Self::LONGEST - 1);
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        self.0[at] += 1;
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        self.0.iter_mut().zip(&other.0).for_each(|(own, more)| *own += more);
    }

    /// Returns the count of each number, from 0 to the largest.
    pub fn counts(&self) -> &[u64] {
        &self.0
    }

    /// Returns the number of samples.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Returns the largest number; `None` if the histogram is empty.
    pub fn max(&self) -> Option<u64> {
        self.0.iter().rposition(|count| *count > 0).map(|at| at as u64)
    }

    /// Returns the mean; 0 if the histogram is empty.
    pub fn mean(&self) -> f64 {
        let sum: f64 = self.0.iter().enumerate().map(|(value, count)| value as f64 * *count as f64).sum();
        if self.total() == 0 { 0.0 } else { sum / self.total() as f64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_counted_and_counts_added() {
        let mut seen = Histogram::default();
        assert_eq!((seen.max(), seen.mean(), seen.total()), (None, 0.0, 0));
        [0, 2, 2].into_iter().for_each(|value| seen.add(value));
        seen.merge(&Histogram::of(vec![0, 0, 0, 1]));
        assert_eq!(seen.counts(), [1, 0, 2, 1]);
        assert_eq!((seen.max(), seen.mean(), seen.total()), (Some(3), 1.75, 4));
        seen.add(u64::MAX);
        assert_eq!(seen.max(), Some(Histogram::LONGEST as u64 - 1));
    }
}

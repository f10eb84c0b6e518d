//! The format of a rank's own state in checkpoints: named values.

use std::collections::BTreeMap;

use crate::{Result, ShardingError};

/// Encodes integers as f32 values of 16 bits each, so that none is rounded.
pub(crate) fn whole(numbers: &[u64]) -> Vec<f32> {
    let parts = numbers.iter().flat_map(|number| (0..4).map(move |part| (number >> (16 * part)) as u16));
    parts.map(f32::from).collect()
}

/// The saved state of a strategy, consumed by name.
pub(crate) struct SavedState {
    strategy: &'static str,
    named: BTreeMap<String, Vec<f32>>,
}

impl SavedState {
    pub(crate) fn new(strategy: &'static str, state: Vec<(String, Vec<f32>)>) -> Self {
        Self { strategy, named: state.into_iter().collect() }
    }

    /// True if there are values of a name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.named.contains_key(name)
    }

    /// Takes all values whose names begin with `beginning`. The returned names lack that prefix.
    pub(crate) fn all_of(&mut self, beginning: &str) -> Vec<(String, Vec<f32>)> {
        let (of, rest): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.named).into_iter().partition(|(name, _)| name.starts_with(beginning));
        self.named = rest;
        of.into_iter().map(|(name, numbers)| (name[beginning.len()..].to_owned(), numbers)).collect()
    }

    /// Takes the `len` values of a name.
    pub(crate) fn take(&mut self, name: &str, len: usize) -> Result<Vec<f32>> {
        let found = self.named.remove(name);
        let found = found.ok_or_else(|| self.wrong(format!("`{name}` is missing")))?;
        if found.len() != len {
            return Err(self.wrong(format!("`{name}` has {} numbers, and must have {len}", found.len())));
        }
        Ok(found)
    }

    /// Takes the integers of a name.
    pub(crate) fn whole(&mut self, name: &str) -> Result<Vec<u64>> {
        let parts = self.named.remove(name).ok_or_else(|| self.wrong(format!("`{name}` is missing")))?;
        let (numbers, rest) = parts.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(self.wrong(format!("`{name}` is cut off")));
        }
        let number = |parts: &[f32; 4]| (0..4).map(|at| u64::from(parts[at] as u16) << (16 * at)).sum();
        Ok(numbers.iter().map(number).collect())
    }

    fn wrong(&self, problem: String) -> ShardingError {
        ShardingError::state(self.strategy, problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_come_back_exactly() {
        let numbers = [0, 1, 65_535, 65_536, u64::MAX, 0x0123_4567_89ab_cdef];
        let state = vec![("clock".to_owned(), whole(&numbers)), ("w".to_owned(), vec![1.0, 2.0])];
        let mut saved = SavedState::new("sgp", state);
        assert_eq!(saved.whole("clock").expect("saved"), numbers);
        let error = saved.take("w", 3).expect_err("two").to_string();
        assert_eq!(error, "state of strategy `sgp`: `w` has 2 numbers, and must have 3");
        assert!(saved.take("v", 1).is_err());
    }
}

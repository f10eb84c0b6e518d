//! A small cache of recently used values.

use crate::error::Result;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// A cache of at most `capacity` values by number, the most recently used first.
#[derive(Debug)]
pub(super) struct LruCache<T> {
    capacity: usize,
    values: Mutex<VecDeque<(usize, Arc<T>)>>,
}

impl<T> LruCache<T> {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, values: Mutex::new(VecDeque::new()) }
    }

    /// Returns the value of a number, and makes it if it is missing. Two threads may make the same value at once; one
    /// is kept. Neither waits for the other's disk access.
    pub(super) fn get(&self, number: usize, make: impl FnOnce() -> Result<T>) -> Result<Arc<T>> {
        let find = |values: &mut VecDeque<(usize, Arc<T>)>| {
            let at = values.iter().position(|(own, _)| *own == number)?;
            let found = values.remove(at)?;
            values.push_front(found);
            values.front().map(|(_, value)| Arc::clone(value))
        };
        if let Some(found) = find(&mut self.values.lock().unwrap_or_else(PoisonError::into_inner)) {
            return Ok(found);
        }
        let made = Arc::new(make()?);
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = find(&mut values) {
            return Ok(found);
        }
        values.push_front((number, Arc::clone(&made)));
        values.truncate(self.capacity);
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn recently_used_values_are_kept() {
        let (cache, made) = (LruCache::new(2), Cell::new(0));
        let get = |number| {
            let make = || {
                made.set(made.get() + 1);
                Ok(number * 10)
            };
            *cache.get(number, make).unwrap()
        };
        assert_eq!([1, 2, 1, 3, 1, 2].map(get), [10, 20, 10, 30, 10, 20]);
        // The second and the third request of 1 hit the cache; 2 was evicted for 3.
        assert_eq!(made.get(), 4);
    }
}

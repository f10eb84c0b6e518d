//! The few things that were used last.

use crate::error::Result;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// At most so many values by number, the one that was used last in front.
#[derive(Debug)]
pub(super) struct Kept<T> {
    most: usize,
    values: Mutex<VecDeque<(usize, Arc<T>)>>,
}

impl<T> Kept<T> {
    pub(super) fn new(most: usize) -> Self {
        Self { most, values: Mutex::new(VecDeque::new()) }
    }

    /// The value of a number, made where it is not at hand. Two threads may make one at the same time, of which one is kept:
    /// neither waits for the other's disk.
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
        values.truncate(self.most);
        Ok(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    #[test]
    fn what_was_used_last_is_kept() {
        let (kept, made) = (Kept::new(2), Cell::new(0));
        let get = |number| {
            let make = || {
                made.set(made.get() + 1);
                Ok(number * 10)
            };
            *kept.get(number, make).unwrap()
        };
        assert_eq!([1, 2, 1, 3, 1, 2].map(get), [10, 20, 10, 30, 10, 20]);
        // The second and the third time that 1 is asked for it is there; 2 went for 3.
        assert_eq!(made.get(), 4);
    }
}

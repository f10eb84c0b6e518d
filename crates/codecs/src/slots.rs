//! The state of codecs between steps, by bucket and name.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use phalanx_kernels::Run;

use crate::CodecState;
use crate::slice::{FlatSlice, StateBuffer};
use crate::{CodecError, Result};

/// Vectors by slot and name.
#[derive(Debug)]
pub(crate) struct Slots {
    codec: &'static str,
    /// The names that there are.
    fields: &'static [&'static str],
    kept: Mutex<BTreeMap<usize, BucketState>>,
}

/// The state of one bucket.
#[derive(Debug, Clone, Default)]
pub(crate) struct BucketState(BTreeMap<&'static str, StateBuffer>);

/// The field that counts the sums of a bucket.
pub(crate) const STEP: &str = "step";

/// Bytes that [`BucketState::count`] keeps.
pub(crate) const STEP_BYTES: u64 = 8;

/// A half of a count that f32 holds exactly.
const HALF: u64 = 1 << 24;

impl Slots {
    /// Of a codec that keeps vectors of these names.
    pub(crate) fn new(codec: &'static str, fields: &'static [&'static str]) -> Self {
        Self { codec, fields, kept: Mutex::default() }
    }

    /// Runs `f` with the state of a bucket.
    pub(crate) fn with<R>(&self, slot: usize, f: impl FnOnce(&mut BucketState) -> R) -> R {
        f(self.kept.lock().unwrap_or_else(PoisonError::into_inner).entry(slot).or_default())
    }

    /// Adds the vector `field` of a bucket, if there is one, to as many gradients.
    pub(crate) fn add(&self, slot: usize, field: &'static str, gradients: &mut FlatSlice<'_>) -> Result<()> {
        self.with(slot, |kept| {
            if !kept.has(field) {
                return Ok(());
            }
            let held = self.take(slot, kept, field, gradients)?;
            gradients.add_runs(&held, &[Run { from: 0, to: 0, len: held.len() }])?;
            kept.give(field, held);
            Ok(())
        })
    }

    /// Adds the vector `field` of a bucket to gradients, then clears the bucket's state except its step count.
    pub(crate) fn flush(
        &self,
        slot: usize,
        field: &'static str,
        gradients: &mut FlatSlice<'_>,
    ) -> Result<()> {
        self.add(slot, field, gradients)?;
        self.with(slot, |kept| kept.0.retain(|name, _| *name == STEP));
        Ok(())
    }

    /// Takes the vector `field` of a bucket, in the memory of `numbers`; zeros if there is none yet. Give it back by
    /// [`BucketState::give`].
    pub(crate) fn take(
        &self,
        slot: usize,
        kept: &mut BucketState,
        field: &'static str,
        numbers: &FlatSlice<'_>,
    ) -> Result<StateBuffer> {
        self.take_some(slot, kept, (field, numbers.len()), numbers)
    }

    /// Takes the vector of a name and length, in the memory of `numbers`; zeros if there is none yet. Give it back by
    /// [`BucketState::give`].
    pub(crate) fn take_some(
        &self,
        slot: usize,
        kept: &mut BucketState,
        (field, len): (&'static str, usize),
        numbers: &FlatSlice<'_>,
    ) -> Result<StateBuffer> {
        let held = match kept.0.remove(field) {
            Some(held) => numbers.bring(held)?,
            None => numbers.zeros(len)?,
        };
        self.check(slot, held.len(), len)?;
        Ok(held)
    }

    /// Takes the vector `field` of `len` numbers of a bucket on the host; zeros if there is none yet. Give it back by
    /// [`BucketState::give`].
    pub(crate) fn take_host(
        &self,
        slot: usize,
        kept: &mut BucketState,
        field: &'static str,
        len: usize,
    ) -> Result<Vec<f32>> {
        let held = kept.0.remove(field).map_or_else(|| Ok(vec![0.0; len]), StateBuffer::into_host)?;
        self.check(slot, held.len(), len)?;
        Ok(held)
    }

    fn check(&self, slot: usize, held: usize, len: usize) -> Result<()> {
        match held == len {
            true => Ok(()),
            false => {
                let problem = format!("keeps {held} numbers for bucket {slot}, which needs {len}");
                Err(CodecError::codec(self.codec, problem))
            }
        }
    }

    /// Returns the state as `SLOT.FIELD`. Waits for values on a device.
    pub(crate) fn state(&self) -> Result<CodecState> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let states = kept.iter().map(|(slot, kept)| kept.state(*slot));
        Ok(states.collect::<Result<Vec<_>>>()?.concat())
    }

    /// Returns the bytes of the state.
    pub(crate) fn bytes(&self) -> u64 {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.values().flat_map(|kept| kept.0.values()).map(|held| 4 * held.len() as u64).sum()
    }

    /// Returns the state as [`Slots::state`] does, with the buckets of `newer` replaced.
    pub(crate) fn state_with<'a>(
        &self,
        newer: impl Iterator<Item = (usize, &'a BucketState)>,
    ) -> Result<CodecState> {
        let newer: BTreeMap<usize, &BucketState> = newer.collect();
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let slots: BTreeSet<usize> = kept.keys().chain(newer.keys()).copied().collect();
        let of = |slot: usize| newer.get(&slot).copied().or(kept.get(&slot)).map(|kept| kept.state(slot));
        Ok(slots.into_iter().filter_map(of).collect::<Result<Vec<_>>>()?.concat())
    }

    /// Replaces parts of the vector `field` of buckets by a state from [`Slots::state`]. `parts` returns the parts of a
    /// vector of a given length. Missing values are 0.
    pub(crate) fn load_parts(
        &self,
        state: CodecState,
        field: &'static str,
        parts: impl Fn(usize) -> Vec<Range<usize>>,
    ) -> Result<()> {
        let newer = Self::new(self.codec, self.fields);
        newer.load(state)?;
        let newer = newer.kept.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (slot, mut newer) in newer {
            let Some(newer) = newer.0.remove(field) else { continue };
            let newer = newer.into_host()?;
            let merge = |kept: &mut BucketState| -> Result<()> {
                let mut held = self.take_host(slot, kept, field, newer.len())?;
                for part in parts(newer.len()) {
                    held[part.clone()].copy_from_slice(&newer[part]);
                }
                kept.give(field, held);
                Ok(())
            };
            self.with(slot, merge)?;
        }
        Ok(())
    }

    /// Restores a state from [`Slots::state`].
    pub(crate) fn load(&self, state: CodecState) -> Result<()> {
        let mut loaded: BTreeMap<usize, BucketState> = BTreeMap::new();
        for (name, held) in state {
            let parts = name.split_once('.').and_then(|(slot, field)| {
                let field = self.fields.iter().find(|known| **known == field)?;
                Some((slot.parse().ok()?, *field))
            });
            let Some((slot, field)) = parts else {
                let problem = format!("keeps {} of buckets, and was given `{name}`", self.fields.join(", "));
                return Err(CodecError::codec(self.codec, problem));
            };
            loaded.entry(slot).or_default().give(field, held);
        }
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(())
    }
}

impl BucketState {
    /// Returns the state as `SLOT.FIELD`.
    fn state(&self, slot: usize) -> Result<CodecState> {
        self.0.iter().map(|(field, held)| Ok((format!("{slot}.{field}"), held.read()?))).collect()
    }

    /// Keeps a vector.
    pub(crate) fn give(&mut self, field: &'static str, held: impl Into<StateBuffer>) {
        self.0.insert(field, held.into());
    }

    /// A copy of one field alone.
    pub(crate) fn only(&self, field: &'static str) -> Self {
        Self(self.0.get(field).map(|held| (field, held.clone())).into_iter().collect())
    }

    /// True if there is a vector of this name.
    pub(crate) fn has(&self, field: &str) -> bool {
        self.0.contains_key(field)
    }

    /// Counts the calls for this bucket, and returns the count before this call.
    pub(crate) fn count(&mut self) -> u64 {
        let count = match self.0.get(STEP) {
            // A number in a stranger's file may be any.
            Some(StateBuffer::Host(held)) if held.len() == 2 => {
                (held[0] as u64 % HALF) + (held[1] as u64 % HALF) * HALF
            }
            _ => 0,
        };
        let next = count + 1;
        self.give(STEP, vec![(next % HALF) as f32, (next / HALF) as f32]);
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_vectors_come_back() {
        let slots = Slots::new("test", &["residual", STEP]);
        slots.with(3, |kept| {
            kept.give(STEP, vec![(HALF - 1) as f32, 2.0]);
            assert_eq!(kept.count(), 3 * HALF - 1);
            assert_eq!(kept.count(), 3 * HALF);
            kept.give("residual", vec![1.0, 2.0]);
        });
        let again = Slots::new("test", &["residual", STEP]);
        again.load(slots.state().expect("on the host")).expect("its own");
        assert_eq!(again.state().expect("on the host"), slots.state().expect("on the host"));
        assert_eq!(again.with(3, BucketState::count), 3 * HALF + 1);
        let mut gradients = [1.0, 1.0];
        again.flush(3, "residual", &mut gradients.as_mut_slice().into()).expect("as many");
        assert_eq!((gradients, again.state().expect("on the host").len()), ([2.0, 3.0], 1));
        let error = again.load(vec![("3.q".into(), Vec::new())]).expect_err("not its own").to_string();
        assert_eq!(error, "codec `test` keeps residual, step of buckets, and was given `3.q`");
        let error =
            slots.with(3, |kept| slots.take_host(3, kept, "residual", 5)).expect_err("another").to_string();
        assert_eq!(error, "codec `test` keeps 2 numbers for bucket 3, which needs 5");
    }
}

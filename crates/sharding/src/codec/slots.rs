//! What codecs keep for buckets from step to step, by names.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::CodecState;
use crate::{Result, ShardingError};

/// Vectors by slot and name.
#[derive(Debug)]
pub(super) struct Slots {
    codec: &'static str,
    /// The names that there are.
    fields: &'static [&'static str],
    kept: Mutex<BTreeMap<usize, Kept>>,
}

/// What is kept for one bucket.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept(BTreeMap<&'static str, Vec<f32>>);

/// The field that counts the sums of a bucket.
pub(super) const STEP: &str = "step";

/// Bytes that [`Kept::count`] keeps.
pub(super) const STEP_BYTES: u64 = 8;

/// A half of a count that f32 holds exactly.
const HALF: u64 = 1 << 24;

impl Slots {
    /// Of a codec that keeps vectors of these names.
    pub(super) fn new(codec: &'static str, fields: &'static [&'static str]) -> Self {
        Self { codec, fields, kept: Mutex::default() }
    }

    /// What is kept for a bucket, while `f` runs.
    pub(super) fn with<R>(&self, slot: usize, f: impl FnOnce(&mut Kept) -> R) -> R {
        f(self.kept.lock().unwrap_or_else(PoisonError::into_inner).entry(slot).or_default())
    }

    /// Adds the vector `field` of a bucket, if there is one, to as many gradients.
    pub(super) fn add(&self, slot: usize, field: &'static str, gradients: &mut [f32]) -> Result<()> {
        self.with(slot, |kept| {
            let Some(held) = kept.0.get(field) else { return Ok(()) };
            self.check(slot, held.len(), gradients.len())?;
            gradients.iter_mut().zip(held).for_each(|(gradient, held)| *gradient += held);
            Ok(())
        })
    }

    /// Adds the vector `field` of a bucket to gradients, and keeps nothing for it any more but its count.
    pub(super) fn flush(&self, slot: usize, field: &'static str, gradients: &mut [f32]) -> Result<()> {
        self.with(slot, |kept| {
            if let Some(held) = kept.0.get(field) {
                self.check(slot, held.len(), gradients.len())?;
                gradients.iter_mut().zip(held).for_each(|(gradient, held)| *gradient += held);
            }
            kept.0.retain(|name, _| *name == STEP);
            Ok(())
        })
    }

    /// Takes the vector `field` of a bucket out, zeros if there is none yet; give it back by [`Kept::give`].
    pub(super) fn take(
        &self,
        slot: usize,
        kept: &mut Kept,
        field: &'static str,
        len: usize,
    ) -> Result<Vec<f32>> {
        let held = kept.0.remove(field).unwrap_or_else(|| vec![0.0; len]);
        self.check(slot, held.len(), len)?;
        Ok(held)
    }

    fn check(&self, slot: usize, held: usize, len: usize) -> Result<()> {
        match held == len {
            true => Ok(()),
            false => {
                let problem = format!("keeps {held} numbers for bucket {slot}, which needs {len}");
                Err(ShardingError::codec(self.codec, problem))
            }
        }
    }

    /// All of it, as `SLOT.FIELD`.
    pub(super) fn state(&self) -> CodecState {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |(slot, kept): (&usize, &Kept)| {
            let slot = *slot;
            kept.0
                .iter()
                .map(move |(field, held)| (format!("{slot}.{field}"), held.clone()))
                .collect::<Vec<_>>()
        };
        kept.iter().flat_map(of).collect()
    }

    /// Takes over what [`Slots::state`] has given.
    pub(super) fn load(&self, state: CodecState) -> Result<()> {
        let mut loaded: BTreeMap<usize, Kept> = BTreeMap::new();
        for (name, held) in state {
            let parts = name.split_once('.').and_then(|(slot, field)| {
                let field = self.fields.iter().find(|known| **known == field)?;
                Some((slot.parse().ok()?, *field))
            });
            let Some((slot, field)) = parts else {
                let problem = format!("keeps {} of buckets, and was given `{name}`", self.fields.join(", "));
                return Err(ShardingError::codec(self.codec, problem));
            };
            loaded.entry(slot).or_default().0.insert(field, held);
        }
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = loaded;
        Ok(())
    }
}

impl Kept {
    /// Keeps a vector.
    pub(super) fn give(&mut self, field: &'static str, held: Vec<f32>) {
        self.0.insert(field, held);
    }

    /// What there is of one field alone.
    pub(super) fn only(&self, field: &'static str) -> Self {
        Self(self.0.get(field).map(|held| (field, held.clone())).into_iter().collect())
    }

    /// Whether there is such a vector.
    pub(super) fn has(&self, field: &str) -> bool {
        self.0.contains_key(field)
    }

    /// How often this was called before for this bucket.
    pub(super) fn count(&mut self) -> u64 {
        let held = self.0.entry(STEP).or_insert_with(|| vec![0.0; 2]);
        let count = match held.as_slice() {
            [low, high] => *low as u64 + *high as u64 * HALF,
            _ => 0,
        };
        let next = count + 1;
        *held = vec![(next % HALF) as f32, (next / HALF) as f32];
        count
    }
}

/// One number of several, for streams of random numbers that have nothing to do with each other.
pub(super) fn mixed(words: &[u64]) -> u64 {
    words.iter().fold(0x5851_f42d_4c95_7f2d, |state, word| {
        let z = (state ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// Whether all numbers are finite.
pub(super) fn finite(values: &[f32]) -> bool {
    phalanx_kernels::largest_magnitude(&phalanx_kernels::Context::new(1), values).is_finite()
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
        again.load(slots.state()).expect("its own");
        assert_eq!(again.state(), slots.state());
        assert_eq!(again.with(3, Kept::count), 3 * HALF + 1);
        let mut gradients = [1.0, 1.0];
        again.flush(3, "residual", &mut gradients).expect("as many");
        assert_eq!((gradients, again.state().len()), ([2.0, 3.0], 1));
        let error = again.load(vec![("3.q".into(), Vec::new())]).expect_err("not its own").to_string();
        assert_eq!(error, "codec `test` keeps residual, step of buckets, and was given `3.q`");
        let error =
            slots.with(3, |kept| slots.take(3, kept, "residual", 5)).expect_err("another").to_string();
        assert_eq!(error, "codec `test` keeps 2 numbers for bucket 3, which needs 5");
    }
}

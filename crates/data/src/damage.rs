//! Samples in the place of damaged ones.
//!
//! A rank that left a damaged sample out would have fewer samples than the others expect, and would have to tell them.
//! Instead another sample of the dataset takes its place. It is drawn from the index of the damaged one alone. So every
//! rank, every epoch and every resumption uses the same one, and no batch or epoch changes its length. The sample keeps
//! the weight of the damaged one, since all ranks add the weights by index.
//!
//! Only damage of the contents counts: it is a property of the data, the same for all ranks. A failing disk or network is
//! not, and remains an error.

use crate::error::{DataError, Result};
use crate::rng::{Purpose, below, rng_for};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// The number of samples that are drawn for a damaged one before it is an error.
const MAX_DRAWS: u64 = 64;

/// The damaged samples that were found, and those in their place.
#[derive(Debug, Default)]
pub struct DamagedSamples {
    found: Mutex<BTreeMap<usize, Damage>>,
}

/// A damaged sample.
#[derive(Debug, Clone)]
struct Damage {
    path: PathBuf,
    /// The sample that is used instead; `None` until one was read.
    substitute: Option<usize>,
}

/// The access to the samples of a dataset.
pub(crate) struct SampleReader<'a, T> {
    pub(crate) dataset: &'a str,
    pub(crate) len: usize,
    pub(crate) read: &'a dyn Fn(usize) -> Result<T>,
    pub(crate) path: &'a dyn Fn(usize) -> Result<PathBuf>,
}

impl DamagedSamples {
    /// Returns the paths of the damaged samples that were found, in the order of their indices: lines for a list of
    /// [`Exclusions`](crate::Exclusions).
    #[must_use]
    pub fn paths(&self) -> Vec<PathBuf> {
        self.lock().values().map(|damage| damage.path.clone()).collect()
    }

    /// Reads a sample, or the one in its place.
    pub(crate) fn read<T>(&self, index: usize, samples: &SampleReader<'_, T>) -> Result<T> {
        let known = self.lock().get(&index).and_then(|damage| damage.substitute);
        if let Some(substitute) = known {
            return (samples.read)(substitute);
        }
        let first = match (samples.read)(index) {
            Err(error) if is_damage(&error) => error,
            other => return other,
        };
        self.add(index, None, samples, &first);
        for draw in 1..=MAX_DRAWS {
            let mut rng = rng_for(0, Purpose::Substitute, draw, index as u64);
            let other = below(&mut rng, samples.len);
            if self.lock().contains_key(&other) {
                continue;
            }
            match (samples.read)(other) {
                Err(error) if is_damage(&error) => self.add(other, None, samples, &error),
                Ok(sample) => {
                    self.add(index, Some(other), samples, &first);
                    return Ok(sample);
                }
                failed => return failed,
            }
        }
        let reason = format!("{first}; and none of {MAX_DRAWS} samples in its place can be read");
        Err(DataError::sample(samples.dataset, index, reason))
    }

    fn add<T>(
        &self,
        index: usize,
        substitute: Option<usize>,
        samples: &SampleReader<'_, T>,
        error: &DataError,
    ) {
        let path = (samples.path)(index).unwrap_or_else(|_| PathBuf::from(samples.dataset));
        match substitute {
            Some(other) => tracing::warn!("{error}; sample {other} is used in its place"),
            None => tracing::debug!("{error}"),
        }
        let mut found = self.lock();
        let damage = found.entry(index).or_insert(Damage { path, substitute });
        damage.substitute = substitute.or(damage.substitute);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<usize, Damage>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns true if the contents of a sample are damaged or missing.
fn is_damage(error: &DataError) -> bool {
    match error {
        DataError::CorruptImage { .. } | DataError::ImageFile { .. } | DataError::ArchiveSample { .. } => {
            true
        }
        DataError::Io { source, .. } => {
            matches!(source.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof | ErrorKind::InvalidData)
        }
        _ => false,
    }
}

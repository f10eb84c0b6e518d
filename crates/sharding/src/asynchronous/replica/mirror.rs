//! Host copies of values on a device, for ranks that exchange them on the host.

use std::sync::{Mutex, MutexGuard, PoisonError};

use phalanx_tensor::{FlatStorage, ParamBucket};

use crate::{Result, ShardingError};

/// Host copies of the values of all trainable buckets. A change of either copy must be brought to the other.
#[derive(Debug)]
pub(super) struct Mirror(Mutex<Vec<Option<FlatStorage>>>);

impl Mirror {
    /// Makes an empty mirror of `buckets` buckets.
    pub(super) fn new(buckets: usize) -> Self {
        Self(Mutex::new(vec![None; buckets]))
    }

    fn buckets(&self) -> MutexGuard<'_, Vec<Option<FlatStorage>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The copy of a bucket's values.
    pub(super) fn values(&self, at: usize) -> Result<FlatStorage> {
        let missing = || ShardingError::state("mirror", format!("bucket {at} has not come to the host"));
        self.buckets().get(at).cloned().flatten().ok_or_else(missing)
    }

    /// Brings the values of these buckets to the host by page-locked memory, all at once, and waits for them.
    pub(super) fn refresh<'p>(&self, params: impl Iterator<Item = (usize, &'p ParamBucket)>) -> Result<()> {
        let mut coming = Vec::new();
        for (at, param) in params {
            if let Some(values) = param.values() {
                coming.push((at, values.begin_download()?));
            }
        }
        for (at, values) in coming {
            self.buckets()[at] = Some(FlatStorage::new(values.wait()?)?);
        }
        Ok(())
    }

    /// Bytes of all copies.
    pub(super) fn bytes(&self) -> u64 {
        self.buckets().iter().flatten().map(|values| values.bytes() as u64).sum()
    }
}

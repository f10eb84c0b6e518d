//! The data that were opened last, which the ranks of a process share.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use phalanx_trainer::engine::TrainError;

/// Data under the settings that they were opened by.
#[derive(Debug)]
pub(super) struct Newest<K, V>(Mutex<Option<(K, Arc<V>)>>);

impl<K: PartialEq, V> Newest<K, V> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Returns the data of these settings, opened by `open` unless they are the last ones.
    pub(super) fn get(
        &self,
        key: K,
        open: impl FnOnce(&K) -> Result<V, TrainError>,
    ) -> Result<Arc<V>, TrainError> {
        let mut newest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((of, data)) = &*newest
            && *of == key
        {
            return Ok(data.clone());
        }
        let data = Arc::new(open(&key)?);
        *newest = Some((key, data.clone()));
        Ok(data)
    }
}

/// Returns the time at which a file or a folder was changed last, as a part of settings.
pub(super) fn changed(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|found| found.modified()).ok()
}

//! A file of a checkpoint, as the index lists it.

use serde::{Deserialize, Serialize};

use super::checksum::Checksum;

/// A file of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name in the checkpoint's folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// The hash of its contents.
    #[serde(flatten)]
    pub checksum: Checksum,
}

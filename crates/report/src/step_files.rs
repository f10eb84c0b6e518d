//! The files of a folder that are named by steps.

use std::path::{Path, PathBuf};

use super::thin::spaced;

/// The files of some steps.
#[derive(Debug, Clone, Default)]
pub(crate) struct StepFiles {
    /// The number of all files.
    pub(crate) all: usize,
    /// Steps with their files, in order: evenly spaced ones, with the first and the last.
    pub(crate) shown: Vec<(u64, PathBuf)>,
}

impl StepFiles {
    /// Finds the files `step-N` with this ending in a folder, of which at most `most` are shown.
    pub(crate) fn of(folder: &Path, ending: &str, most: usize) -> Self {
        let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let step = |name: &str| name.strip_prefix("step-")?.strip_suffix(ending)?.parse().ok();
        let mut found: Vec<(u64, PathBuf)> =
            entries.filter_map(|entry| Some((step(entry.file_name().to_str()?)?, entry.path()))).collect();
        found.sort();
        let shown = spaced(found.len(), most).into_iter().map(|at| found[at].clone()).collect();
        Self { all: found.len(), shown }
    }
}

//! Reads every image of a configuration once.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use phalanx_data::BatchSource;

use crate::error::DatasetError;
use crate::images::ConfiguredImages;
use crate::open::Images;
use phalanx_config::{Config, OnDamage};

/// The outcome of reading all images.
#[derive(Debug, Clone)]
pub struct DataCheck {
    /// The training and the test split.
    pub splits: Vec<SplitCheck>,
    /// Facts about the files for the user, such as the number of files that are not read.
    pub notes: Vec<String>,
}

/// The outcome of reading the images of one split.
#[derive(Debug, Clone)]
pub struct SplitCheck {
    /// `train` or `test`.
    pub name: &'static str,
    /// The number of images.
    pub images: usize,
    /// The number of classes; 0 if images have none.
    pub classes: usize,
    /// The images that cannot be used, in their order.
    pub damaged: Vec<DamagedImage>,
}

/// An image that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DamagedImage {
    /// The line that leaves it out by `data.exclude`.
    pub line: String,
    /// The error that a training would end with.
    pub problem: String,
}

/// Reads every image of both splits once, on `threads` threads, as a training does: decoded and transformed. `data.per_class` and
/// `data.limit` do not count. Calls `progress` with the number of images that are done and the number of all.
///
/// # Errors
/// If the data cannot be opened. A damaged image is no error.
pub fn check_data(
    config: &Config,
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<DataCheck, DatasetError> {
    let mut config = config.clone();
    (config.data.per_class, config.data.limit, config.data.on_damage) = (0, 0, OnDamage::Error);
    let opened = ConfiguredImages::open(&config)?;
    let all = opened.splits().map(|(_, images)| images.len()).sum();
    let done = AtomicUsize::new(0);
    let read = || progress(done.fetch_add(1, Ordering::Relaxed) + 1, all);
    let splits = opened.splits().map(|(name, images)| {
        let source = if name == "train" { Some(opened.train()) } else { opened.test() };
        let damaged = source.map_or_else(Vec::new, |source| {
            SplitReader { images, source, root: Path::new(&config.data.path) }.read(threads, &read)
        });
        SplitCheck { name, images: images.len(), classes: images.class_names().len(), damaged }
    });
    Ok(DataCheck { splits: splits.collect(), notes: opened.notes().to_vec() })
}

/// A split whose images are read.
struct SplitReader<'a> {
    images: &'a Images,
    source: Arc<dyn BatchSource>,
    root: &'a Path,
}

impl SplitReader<'_> {
    /// Reads all images and returns the damaged ones.
    fn read(&self, threads: usize, read: &(dyn Fn() + Sync)) -> Vec<DamagedImage> {
        let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let len = self.images.len();
        let read_the_next = || {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= len {
                return false;
            }
            if let Some(problem) = self.problem(index) {
                let damaged = DamagedImage { line: self.line(index), problem };
                found.lock().unwrap_or_else(PoisonError::into_inner).push((index, damaged));
            }
            read();
            true
        };
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, len.max(1)) {
                scope.spawn(|| while read_the_next() {});
            }
        });
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort();
        found.into_iter().map(|(_, damaged)| damaged).collect()
    }

    fn problem(&self, index: usize) -> Option<String> {
        // A decoder that panics must not end the check.
        let read = catch_unwind(AssertUnwindSafe(|| self.source.batch(&[index], 0, &|| true)));
        match read {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("reading {} panicked", self.line(index))),
        }
    }

    /// Returns the path of an image within the folder of the data.
    fn line(&self, index: usize) -> String {
        let path = self.images.sample_path(index).unwrap_or_else(|_| PathBuf::from(index.to_string()));
        path.strip_prefix(self.root).unwrap_or(&path).display().to_string()
    }
}

//! Writes the images of a configuration as class folders.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::DatasetError;
use crate::images::ConfiguredImages;
use crate::open::Images;
use phalanx_config::Config;

/// The images of a split that were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenSplit {
    /// `train` or `test`.
    pub name: &'static str,
    /// The number of images.
    pub images: usize,
    /// The number of classes.
    pub classes: usize,
}

/// Writes the images of both splits as PNG files, `out/SPLIT/CLASS/NUMBER.png`, on `threads` threads. Images are neither resized
/// nor augmented. Calls `progress` with the number of images that are done and the number of all.
///
/// # Errors
/// If the data cannot be opened, have no classes or are damaged, if `out` holds something already, or a file cannot be written.
pub fn write_images(
    config: &Config,
    out: &Path,
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Vec<WrittenSplit>, DatasetError> {
    let opened = ConfiguredImages::open(config)?;
    if opened.num_classes() == 0 {
        return Err(DatasetError::NothingToWrite);
    }
    let is_used = std::fs::read_dir(out).is_ok_and(|mut entries| entries.next().is_some());
    if is_used {
        return Err(DatasetError::NotEmpty { path: out.to_owned() });
    }
    let all = opened.splits().map(|(_, images)| images.len()).sum();
    let done = AtomicUsize::new(0);
    let written = || progress(done.fetch_add(1, Ordering::Relaxed) + 1, all);
    let write = |(name, images): (&'static str, &Images)| {
        SplitWriter { images, folder: out.join(name) }.write(threads, &written)?;
        Ok(WrittenSplit { name, images: images.len(), classes: images.class_names().len() })
    };
    opened.splits().map(write).collect()
}

/// A split whose images are written.
struct SplitWriter<'a> {
    images: &'a Images,
    folder: PathBuf,
}

impl SplitWriter<'_> {
    fn write(&self, threads: usize, written: &(dyn Fn() + Sync)) -> Result<(), DatasetError> {
        for class in 0..self.images.class_names().len() {
            let folder = self.folder_of(class);
            std::fs::create_dir_all(&folder)
                .map_err(|error| failed("create", folder.clone(), error.to_string()))?;
        }
        let (next, failed, first) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
        let write_the_next = || {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= self.images.len() || failed.load(Ordering::Relaxed) {
                return false;
            }
            match self.write_one(index) {
                Ok(()) => written(),
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    first.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
            true
        };
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, self.images.len().max(1)) {
                scope.spawn(|| while write_the_next() {});
            }
        });
        first.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn write_one(&self, index: usize) -> Result<(), DatasetError> {
        let sample = self.images.get(index, 0)?;
        let path = self.folder_of(sample.label as usize).join(format!("{index:05}.png"));
        let saved = sample.image.save(&path);
        saved.map_err(|error| failed("write", path, error.to_string()))
    }

    /// Returns the folder of a class. Separators of paths in its name become dashes.
    fn folder_of(&self, class: usize) -> PathBuf {
        let name = self.images.class_names().get(class).map_or("", String::as_str);
        self.folder.join(name.replace(['/', '\\'], "-"))
    }
}

fn failed(action: &'static str, path: PathBuf, problem: String) -> DatasetError {
    DatasetError::Write { action, path, problem }
}

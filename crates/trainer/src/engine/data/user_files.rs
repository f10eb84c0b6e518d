//! Batches of a user's image files, prepared as test images.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use phalanx_data::transform::Normalise;
use phalanx_data::{BatchSource, CollatedDataset, DataError, ImageCollation, ImageFiles};
use phalanx_tensor::ComputeDevice;

use crate::engine::TrainError;
use phalanx_batches::Batch;
use phalanx_config::Config;
use phalanx_datasets::ImageTransforms;

/// Image files of a user, prepared as the test images of a configuration.
pub(in crate::engine) struct UserFiles {
    files: Vec<PathBuf>,
    source: Arc<dyn BatchSource>,
    normalise: Normalise,
}

/// A file that is no usable image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnreadableImage {
    /// The file.
    pub file: PathBuf,
    /// The problem.
    pub problem: String,
}

/// The images of some consecutive files.
pub(in crate::engine) struct FileBatch {
    /// The files of the samples, in their order.
    pub(in crate::engine) files: Vec<PathBuf>,
    /// The samples; `None` if no file is usable.
    pub(in crate::engine) batch: Option<Batch>,
    /// The files that are not usable.
    pub(in crate::engine) unreadable: Vec<UnreadableImage>,
}

impl UserFiles {
    /// Creates batches of files for a device, which prepares images as in an evaluation there.
    pub(in crate::engine) fn new(
        files: Vec<PathBuf>,
        config: &Config,
        device: &ComputeDevice,
    ) -> Result<Self, TrainError> {
        let ImageTransforms { testing: for_testing, .. } = ImageTransforms::of(config)?;
        let normalise = for_testing.config().normalise;
        let images = Arc::new(ImageFiles::new(files.clone()));
        let source: Arc<dyn BatchSource> =
            Arc::new(CollatedDataset::new(images, ImageCollation::new(for_testing)));
        let here = if device.is_host() { None } else { source.as_bytes(None) };
        Ok(Self { files, source: here.unwrap_or(source), normalise })
    }

    /// The normalisation of the images.
    pub(in crate::engine) fn normalise(&self) -> Normalise {
        self.normalise
    }

    /// Returns the batches of `batch` files, in order, read on `threads` threads.
    pub(in crate::engine) fn batches(
        &self,
        batch: usize,
        threads: usize,
    ) -> impl Iterator<Item = Result<FileBatch, TrainError>> {
        let starts = (0..self.files.len()).step_by(batch.max(1));
        starts.map(move |start| self.read(start, (start + batch.max(1)).min(self.files.len()), threads))
    }

    fn read(&self, start: usize, end: usize, threads: usize) -> Result<FileBatch, TrainError> {
        let next = Mutex::new(start);
        let found = Mutex::new(Vec::with_capacity(end - start));
        let read_the_rest = || {
            loop {
                let index = {
                    let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
                    *next += 1;
                    *next - 1
                };
                if index >= end {
                    break;
                }
                // A decoder that panics must not end the command.
                let sample = catch_unwind(AssertUnwindSafe(|| self.source.batch(&[index], 0, &|| true)));
                let sample = match sample {
                    Ok(sample) => sample.map_err(|error| problem(&self.files[index], &error)),
                    Err(_) => Err("reading it panicked".to_owned()),
                };
                found.lock().unwrap_or_else(PoisonError::into_inner).push((index, sample));
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..threads.clamp(1, end - start) {
                scope.spawn(read_the_rest);
            }
        });
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort_by_key(|(index, _)| *index);
        let mut read = FileBatch { files: Vec::new(), batch: None, unreadable: Vec::new() };
        let mut samples = Vec::new();
        for (index, sample) in found {
            let file = self.files[index].clone();
            match sample {
                Ok(sample) => {
                    read.files.push(file);
                    samples.push(sample);
                }
                Err(problem) => read.unreadable.push(UnreadableImage { file, problem }),
            }
        }
        if !samples.is_empty() {
            read.batch = Some(Batch::try_from(phalanx_data::Batch::concat(samples)?)?);
        }
        Ok(read)
    }
}

/// The problem with a file, without its name.
fn problem(file: &Path, error: &DataError) -> String {
    match error {
        DataError::ImageFile { reason, .. } => reason.clone(),
        DataError::Io { source, .. } => source.to_string(),
        other => other.to_string().replace(&format!("{}: ", file.display()), ""),
    }
}

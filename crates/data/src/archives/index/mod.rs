//! Where in an archive the members of each sample are.

mod make;
mod stored;

use crate::error::{DataError, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Some bytes of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) len: u32,
}

/// What a caption is read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Caption {
    /// `.txt`.
    Text,
    /// The field `caption` of `.json`.
    Json,
}

/// Where a sample is. It has a caption or a class, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) image: Span,
    pub(super) caption: Option<(Span, Caption)>,
    pub(super) label: Option<u32>,
}

/// The samples of an archive, in its order.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct ArchiveIndex {
    pub(super) entries: Vec<Entry>,
}

impl ArchiveIndex {
    /// One more than the largest class; 0 without classes.
    fn classes(&self) -> usize {
        self.entries.iter().filter_map(|entry| entry.label).max().map_or(0, |label| label as usize + 1)
    }
}

/// What must be known of every archive from the start.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) samples: usize,
    /// One more than the largest class; 0 without classes.
    pub(super) classes: usize,
    /// Where it is not in a file.
    pub(super) index: Option<ArchiveIndex>,
}

/// The summaries of all archives, several archives at a time: most of the time goes by waiting for a disk.
pub(super) fn all(archives: &[PathBuf], folder: Option<&Path>) -> Result<Vec<Summary>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8).min(archives.len());
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(archive) = archives.get(at) else { return };
                    let summary = summary(archive, folder);
                    found.lock().unwrap_or_else(PoisonError::into_inner).push((at, summary));
                }
            });
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(at, _)| *at);
    // Of several errors the first archive's is told, whichever thread came first.
    found.into_iter().map(|(_, summary)| summary).collect()
}

fn summary(archive: &Path, folder: Option<&Path>) -> Result<Summary> {
    let Some(folder) = folder else {
        let index = make::index(archive)?;
        return Ok(Summary { samples: index.entries.len(), classes: index.classes(), index: Some(index) });
    };
    if let Some((samples, classes)) = stored::summary(archive, folder)? {
        return Ok(Summary { samples, classes, index: None });
    }
    let index = make::index(archive)?;
    stored::write(archive, folder, &index)?;
    Ok(Summary { samples: index.entries.len(), classes: index.classes(), index: None })
}

/// The index of one archive: the stored one, or a new one where that is not of the archive as it is.
pub(super) fn read_or_make(archive: &Path, folder: Option<&Path>) -> Result<ArchiveIndex> {
    match folder.map(|folder| stored::read(archive, folder)).transpose()?.flatten() {
        Some(stored) => Ok(stored),
        None => make::index(archive),
    }
}

/// The bytes of a member.
pub(super) fn read(file: &File, archive: &Path, span: Span) -> Result<Vec<u8>> {
    let mut bytes = vec![0; span.len as usize];
    read_at(file, archive, span.offset, &mut bytes).map_err(|error| DataError::io(archive, error))?;
    Ok(bytes)
}

/// The key of the sample with this image: what its name has before the first dot.
pub(super) fn key_at(file: &File, archive: &Path, image: Span) -> Result<String> {
    make::key_before(|offset, bytes| read_at(file, archive, offset, bytes), image.offset)
        .map_err(|error| DataError::io(archive, error))
}

/// Reads at a place without moving the file's own, so that threads can share one.
#[cfg(unix)]
fn read_at(file: &File, _: &Path, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

/// Reads at a place, from a handle of its own.
#[cfg(not(unix))]
fn read_at(_: &File, archive: &Path, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = File::open(archive)?;
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(bytes)
}

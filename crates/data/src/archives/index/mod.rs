//! The positions of the members of each sample in an archive.

mod make;
mod stored;

use crate::error::{DataError, Result};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A range of bytes of an archive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) offset: u64,
    pub(super) len: u32,
}

/// The member that holds a caption.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CaptionSource {
    /// `.txt`.
    Text,
    /// The field `caption` of `.json`.
    Json,
}

/// The position of a sample, which has a caption, a class, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) image: Span,
    pub(super) caption: Option<(Span, CaptionSource)>,
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

/// The properties of an archive that are needed at the start.
#[derive(Debug)]
pub(super) struct Summary {
    pub(super) samples: usize,
    /// One more than the largest class; 0 without classes.
    pub(super) classes: usize,
    /// The index, unless it is stored in a file.
    pub(super) index: Option<ArchiveIndex>,
}

/// Returns the summaries of all archives. Several are read at a time, since most of the time is spent waiting for the
/// disk.
pub(super) fn all(archives: &[PathBuf], folder: Option<&Path>) -> Result<Vec<Summary>> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8).min(archives.len());
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    // Each thread takes the next archive until none is left.
    let read_the_next = || {
        let at = next.fetch_add(1, Ordering::Relaxed);
        let summary = summary(archives.get(at)?, folder);
        found.lock().unwrap_or_else(PoisonError::into_inner).push((at, summary));
        Some(())
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| while read_the_next().is_some() {});
        }
    });
    let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    found.sort_by_key(|(at, _)| *at);
    // The error of the first archive wins, whichever thread finished first.
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

/// Returns the index of one archive: the stored one if it is up to date, or a new one.
pub(super) fn read_or_make(archive: &Path, folder: Option<&Path>) -> Result<ArchiveIndex> {
    match folder.map(|folder| stored::read(archive, folder)).transpose()?.flatten() {
        Some(stored) => Ok(stored),
        None => make::index(archive),
    }
}

/// Reads the bytes of a member.
pub(super) fn read(file: &File, archive: &Path, span: Span) -> Result<Vec<u8>> {
    let mut bytes = vec![0; span.len as usize];
    read_at(file, archive, span.offset, &mut bytes).map_err(|error| DataError::io(archive, error))?;
    Ok(bytes)
}

/// Returns the key of the sample with this image: its name up to the first dot.
pub(super) fn key_at(file: &File, archive: &Path, image: Span) -> Result<String> {
    make::key_before(|offset, bytes| read_at(file, archive, offset, bytes), image.offset)
        .map_err(|error| DataError::io(archive, error))
}

/// Reads at a position without moving the file's own, so that threads can share a file.
#[cfg(unix)]
fn read_at(file: &File, _: &Path, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, offset)
}

/// Reads at a position, from a separate file handle.
#[cfg(not(unix))]
fn read_at(_: &File, archive: &Path, offset: u64, bytes: &mut [u8]) -> std::io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};
    let mut file = crate::Links::Follow.open(archive)?;
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(bytes)
}

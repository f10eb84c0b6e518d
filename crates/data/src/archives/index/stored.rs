//! Indices in files, so that an archive is indexed once.
//!
//! A file has a header of 48 bytes and 32 bytes for each sample, all numbers in little-endian order. The header
//! identifies the archive by its length and modification time. The file is named after the archive, with a hash of its
//! whole path.

use super::{ArchiveIndex, CaptionSource, Entry, Span};
use crate::error::{DataError, Result};
use crate::hash::fnv_1a;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The magic number, with the version of the format.
const MAGIC: [u8; 8] = *b"PHXTAR02";
const HEADER: usize = 48;
const ENTRY: usize = 32;
/// The label of samples without a class.
const NO_LABEL: u32 = u32::MAX;

/// Returns the length of an archive in bytes and its modification time in nanoseconds, which identify it.
fn state_of(archive: &Path) -> Result<(u64, u64)> {
    let failed = |error| DataError::io(archive, error);
    let metadata = std::fs::metadata(archive).map_err(failed)?;
    let changed = metadata.modified().map_err(failed)?.duration_since(UNIX_EPOCH).unwrap_or_default();
    Ok((metadata.len(), u64::try_from(changed.as_nanos()).unwrap_or(u64::MAX)))
}

fn file_of(archive: &Path, folder: &Path) -> Result<PathBuf> {
    let whole = std::path::absolute(archive).map_err(|error| DataError::io(archive, error))?;
    let hash = fnv_1a(whole.as_os_str().as_encoded_bytes());
    let name = archive.file_stem().unwrap_or_default().to_string_lossy();
    Ok(folder.join(format!("{name}-{hash:016x}.index")))
}

/// Returns the numbers of samples and classes of an archive, if its stored index is up to date.
pub(super) fn summary(archive: &Path, folder: &Path) -> Result<Option<(usize, usize)>> {
    let path = file_of(archive, folder)?;
    let Ok(mut file) = crate::Links::Follow.open(&path) else { return Ok(None) };
    let mut header = [0; HEADER];
    if file.read_exact(&mut header).is_err() {
        return Ok(None);
    }
    let length = file.metadata().map_err(|error| DataError::io(&path, error))?.len();
    let header = check_header(&header, archive)?.filter(|header| header.length() == Some(length));
    Ok(header.map(|header| (header.samples, header.classes)))
}

/// The contents of a header that matches its archive.
struct Header {
    samples: usize,
    classes: usize,
    /// The length of the archive in bytes.
    archive: u64,
}

impl Header {
    /// Returns the length of the index file in bytes.
    fn length(&self) -> Option<u64> {
        (self.samples as u64).checked_mul(ENTRY as u64)?.checked_add(HEADER as u64)
    }
}

fn check_header(header: &[u8], archive: &Path) -> Result<Option<Header>> {
    let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| header[at + byte]));
    let (length, changed) = state_of(archive)?;
    let fits = header[..8] == MAGIC && number(8) == length && number(16) == changed;
    let (samples, classes) = (usize::try_from(number(24)), usize::try_from(number(32)));
    let (Ok(samples), Ok(classes), true) = (samples, classes, fits) else { return Ok(None) };
    Ok(Some(Header { samples, classes, archive: length }))
}

/// Reads the index of an archive, if it is up to date and its entries lie within the archive.
pub(super) fn read(archive: &Path, folder: &Path) -> Result<Option<ArchiveIndex>> {
    let Ok(bytes) = crate::Links::Follow.read(&file_of(archive, folder)?) else { return Ok(None) };
    if bytes.len() < HEADER {
        return Ok(None);
    }
    let (header, rest) = bytes.split_at(HEADER);
    let Some(header) = check_header(header, archive)? else { return Ok(None) };
    if header.length() != Some(bytes.len() as u64) {
        return Ok(None);
    }
    let entries: Option<Vec<Entry>> = rest.chunks_exact(ENTRY).map(entry).collect();
    let within =
        |span: Span| span.offset.checked_add(u64::from(span.len)).is_some_and(|end| end <= header.archive);
    let is_whole = |entry: &Entry| within(entry.image) && entry.caption.is_none_or(|(span, _)| within(span));
    let index = entries.map(|entries| ArchiveIndex { entries });
    Ok(index.filter(|index| index.entries.iter().all(is_whole) && index.classes() == header.classes))
}

/// Writes the index of an archive atomically, so that several ranks may write it at once.
pub(super) fn write(archive: &Path, folder: &Path, index: &ArchiveIndex) -> Result<()> {
    let (length, changed) = state_of(archive)?;
    let mut bytes = Vec::with_capacity(HEADER + ENTRY * index.entries.len());
    bytes.extend(MAGIC);
    for number in [length, changed, index.entries.len() as u64, index.classes() as u64, 0] {
        bytes.extend(number.to_le_bytes());
    }
    index.entries.iter().for_each(|entry| bytes.extend(entry_bytes(entry)));
    let path = file_of(archive, folder)?;
    write_atomically(&path, &bytes).map_err(|error| DataError::io(&path, error))
}

/// Writes a file under a temporary name and renames it, so that readers never see a partial file.
fn write_atomically(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    // A separate name for each process and thread.
    let thread = format!("{:?}", std::thread::current().id()).replace(|c: char| !c.is_ascii_digit(), "");
    let partial = path.with_extension(format!("{}-{thread}.partial", std::process::id()));
    let written = std::fs::write(&partial, bytes).and_then(|()| std::fs::rename(&partial, path));
    if written.is_err() {
        // A partial file would do no harm, but would remain.
        let _ = std::fs::remove_file(&partial);
    }
    written
}

fn entry_bytes(entry: &Entry) -> [u8; ENTRY] {
    let (caption, kind) = match entry.caption {
        None => (Span { offset: 0, len: 0 }, 0_u32),
        Some((span, CaptionSource::Text)) => (span, 1),
        Some((span, CaptionSource::Json)) => (span, 2),
    };
    let mut bytes = [0; ENTRY];
    bytes[..8].copy_from_slice(&entry.image.offset.to_le_bytes());
    bytes[8..16].copy_from_slice(&caption.offset.to_le_bytes());
    bytes[16..20].copy_from_slice(&entry.image.len.to_le_bytes());
    bytes[20..24].copy_from_slice(&caption.len.to_le_bytes());
    bytes[24..28].copy_from_slice(&entry.label.unwrap_or(NO_LABEL).to_le_bytes());
    bytes[28..].copy_from_slice(&kind.to_le_bytes());
    bytes
}

/// Parses an entry; `None` if it is malformed.
fn entry(bytes: &[u8]) -> Option<Entry> {
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]));
    let caption = Span { offset: long(8), len: short(20) };
    let caption = match short(28) {
        0 => None,
        1 => Some((caption, CaptionSource::Text)),
        2 => Some((caption, CaptionSource::Json)),
        _ => return None,
    };
    let label = Some(short(24)).filter(|label| *label != NO_LABEL);
    Some(Entry { image: Span { offset: long(0), len: short(16) }, caption, label })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_until_its_archive_changes() {
        let place = tempfile::tempdir().unwrap();
        let archive = place.path().join("a.tar");
        std::fs::write(&archive, "contents").unwrap();
        let span = |offset, len| Span { offset, len };
        let entries = vec![
            Entry { image: span(5, 3), caption: Some((span(4, 3), CaptionSource::Json)), label: None },
            Entry { image: span(0, 8), caption: None, label: Some(7) },
            Entry { image: span(0, 0), caption: Some((span(1, 1), CaptionSource::Text)), label: Some(0) },
        ];
        let index = ArchiveIndex { entries };
        assert!(summary(&archive, place.path()).unwrap().is_none());
        write(&archive, place.path(), &index).unwrap();
        assert_eq!(summary(&archive, place.path()).unwrap(), Some((3, 8)));
        assert_eq!(read(&archive, place.path()).unwrap(), Some(index));
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 2, "no partial file is left");
        std::fs::write(&archive, "other contents").unwrap();
        assert!(summary(&archive, place.path()).unwrap().is_none());
        assert!(read(&archive, place.path()).unwrap().is_none());
    }

    #[test]
    fn entries_keep_their_numbers() {
        let span = |offset, len| Span { offset, len };
        for (caption, label) in [
            (Some((span(1 << 40, 3), CaptionSource::Json)), None),
            (Some((span(u64::MAX, u32::MAX), CaptionSource::Text)), Some(u32::MAX - 1)),
            (None, Some(0)),
        ] {
            let whole = Entry { image: span(1 << 50, u32::MAX), caption, label };
            assert_eq!(entry(&entry_bytes(&whole)), Some(whole));
        }
    }

    #[test]
    fn an_index_beyond_its_archive_is_ignored() {
        let place = tempfile::tempdir().unwrap();
        let archive = place.path().join("a.tar");
        std::fs::write(&archive, "contents").unwrap();
        let entry = |offset, len| Entry { image: Span { offset, len }, caption: None, label: Some(1) };
        for (beyond, is_read) in [(entry(5, 3), true), (entry(5, 4), false), (entry(u64::MAX, 1), false)] {
            write(&archive, place.path(), &ArchiveIndex { entries: vec![entry(0, 1), beyond] }).unwrap();
            assert_eq!(read(&archive, place.path()).unwrap().is_some(), is_read, "{beyond:?}");
        }
        // Numbers of samples and classes that differ from the entries.
        let path = file_of(&archive, place.path()).unwrap();
        let sound = std::fs::read(&path).unwrap();
        for (at, number) in [(24, 3_u64), (24, u64::MAX), (24, u64::MAX / 32 + 2), (32, 3), (32, u64::MAX)] {
            let mut damaged = sound.clone();
            damaged[at..at + 8].copy_from_slice(&number.to_le_bytes());
            std::fs::write(&path, damaged).unwrap();
            assert!(read(&archive, place.path()).unwrap().is_none(), "{number} at {at}");
            let told = summary(&archive, place.path()).unwrap();
            assert!(at == 32 || told.is_none(), "{number} at {at}: {told:?}");
        }
    }
}

//! Fingerprints of datasets, by which a resumed run knows that its data are the same.
//!
//! A fingerprint has the number of samples, the classes, a hash of all names and labels, and the length and a hash of some
//! files. It never reads everything: of each file it reads a few blocks, and of many files only some. These are the files
//! whose names have the smallest hashes, so files that are added or removed hardly change the choice.

use crate::captioned_image::ImageDataset;
use crate::error::Result;
use crate::hash::{Fnv1a, fnv_1a};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// The largest number of files of a split that are looked into.
const MAX_FILES: usize = 256;

/// The size and the number of the blocks of a file that are read, evenly spread from its begin to its end.
const BLOCK: u64 = 4096;
const BLOCKS: u64 = 4;

/// The largest number of differences that are named.
const MAX_NAMED: usize = 5;

/// The fingerprint of one split.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// The number of samples.
    pub samples: usize,
    /// The classes, in the order of their labels.
    pub classes: Vec<String>,
    /// A hash of the names and labels of all samples that are files of their own.
    names: u64,
    /// Files of the split, by the hashes of their names.
    files: Vec<FileFingerprint>,
}

/// The fingerprint of one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileFingerprint {
    /// The path within the folder of the data.
    path: String,
    /// The length in bytes.
    bytes: u64,
    /// The hash of some blocks.
    hash: u64,
}

impl Fingerprint {
    /// Takes the fingerprint of a split. Paths are recorded within `root`, so that the folder can move.
    ///
    /// # Errors
    /// If a table of the dataset cannot be read. A sample that cannot be read counts as empty.
    pub fn of(images: &ImageDataset, root: &Path) -> Result<Self> {
        let within = |path: &Path| path.strip_prefix(root).unwrap_or(path).to_string_lossy().into_owned();
        let (mut names, mut chosen) = (Fnv1a::new(), BTreeSet::new());
        let mut choose = |name: &str, path: &Path| {
            chosen.insert((fnv_1a(name.as_bytes()), path.to_path_buf()));
            if chosen.len() > MAX_FILES {
                chosen.pop_last();
            }
        };
        images.files().iter().for_each(|path| choose(&within(path), path));
        // The parent of a sample of an archive is a file.
        let has_own_files = !images.is_empty() && images.sample_path(0)?.parent().is_some_and(Path::is_dir);
        for index in (0..images.len()).filter(|_| has_own_files) {
            let path = images.sample_path(index)?;
            let name = within(&path);
            names.add(name.as_bytes());
            names.add(&images.label(index)?.to_le_bytes());
            choose(&name, &path);
        }
        let files = chosen.iter().map(|(_, path)| FileFingerprint::of(path, within(path))).collect();
        let (samples, classes) = (images.len(), images.class_names().to_vec());
        Ok(Self { samples, classes, names: names.finish(), files })
    }

    /// Returns the first label that has another class than in an earlier fingerprint, with both classes. Classes that
    /// were added behind the others change no label.
    #[must_use]
    pub fn moved_class<'a>(&'a self, before: &'a Self) -> Option<MovedClass<'a>> {
        let classes = before.classes.iter().zip(&self.classes).enumerate();
        let mut moved = classes.filter(|(_, (before, now))| before != now);
        moved.next().map(|(label, (before, now))| MovedClass { label, before, now })
    }

    /// Describes the differences from an earlier fingerprint of the same split; empty if there are none.
    #[must_use]
    pub fn differences(&self, before: &Self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.samples != before.samples {
            lines.push(format!("{} samples (was {})", self.samples, before.samples));
        }
        if let Some(MovedClass { label, before, now }) = self.moved_class(before) {
            lines.push(format!("label {label} is `{now}` (was `{before}`)"));
        } else if self.classes.len() != before.classes.len() {
            lines.push(format!("{} classes (was {})", self.classes.len(), before.classes.len()));
        }
        let files = self.changed_files(before);
        if files.is_empty() && lines.is_empty() && self.names != before.names {
            lines.push("other names of files, or other labels".to_owned());
        }
        let unnamed = files.len().saturating_sub(MAX_NAMED);
        lines.extend(files.into_iter().take(MAX_NAMED));
        lines.extend((unnamed > 0).then(|| format!("{unnamed} further files that were looked into")));
        lines
    }

    fn changed_files(&self, before: &Self) -> Vec<String> {
        let find = |all: &'_ Self, path: &str| all.files.iter().find(|file| file.path == path).cloned();
        let mut lines = Vec::new();
        for file in &before.files {
            let shown = &file.path;
            match find(self, &file.path) {
                None if self.covers(&file.path) => lines.push(format!("{shown} is gone")),
                Some(now) if now.bytes != file.bytes => {
                    lines.push(format!("{shown} has {} bytes (was {})", now.bytes, file.bytes));
                }
                Some(now) if now.hash != file.hash => lines.push(format!("{shown} has other contents")),
                _ => {}
            }
        }
        let is_new =
            |file: &&FileFingerprint| find(before, &file.path).is_none() && before.covers(&file.path);
        lines.extend(self.files.iter().filter(is_new).map(|file| format!("{} is new", file.path)));
        lines
    }

    /// Returns true if this fingerprint would have a file of this path if the split had it.
    fn covers(&self, path: &str) -> bool {
        let last = self.files.last().map_or(0, |file| fnv_1a(file.path.as_bytes()));
        self.files.len() < MAX_FILES || fnv_1a(path.as_bytes()) <= last
    }
}

/// A label whose class is another one than before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedClass<'a> {
    /// The label.
    pub label: usize,
    /// The class that it had.
    pub before: &'a str,
    /// The class that it has.
    pub now: &'a str,
}

impl FileFingerprint {
    fn of(file: &Path, path: String) -> Self {
        let (bytes, hash) = hash_of_contents(file).unwrap_or_default();
        Self { path, bytes, hash }
    }
}

/// Returns the length of a file, and the hash of some blocks of it.
fn hash_of_contents(file: &Path) -> std::io::Result<(u64, u64)> {
    let mut file = crate::Links::Follow.open(file)?;
    let length = file.metadata()?.len();
    let mut hash = Fnv1a::new();
    let mut block = Vec::new();
    if length <= BLOCKS * BLOCK {
        file.take(BLOCKS * BLOCK).read_to_end(&mut block)?;
        hash.add(&block);
        return Ok((length, hash.finish()));
    }
    let last = u128::from(length - BLOCK);
    for number in 0..u128::from(BLOCKS) {
        let begin = last * number / u128::from(BLOCKS - 1);
        block.clear();
        file.seek(SeekFrom::Start(begin as u64))?;
        Read::by_ref(&mut file).take(BLOCK).read_to_end(&mut block)?;
        hash.add(&block);
    }
    Ok((length, hash.finish()))
}

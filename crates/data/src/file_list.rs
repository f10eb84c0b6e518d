//! Image files by index, compact in memory: all names in one allocation, each folder once.

use crate::error::{DataError, Result};
use crate::strings::Strings;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::FileType;
use std::path::{Path, PathBuf};

/// The file extensions of images, in lower case; other files are ignored.
pub(crate) const ENDINGS: [&str; 5] = ["png", "jpg", "jpeg", "bmp", "webp"];

/// Files and their classes.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileList {
    folders: Vec<PathBuf>,
    names: Strings,
    /// The names that are not UTF-8, by index; their entries in `names` are empty.
    odd_names: BTreeMap<usize, OsString>,
    /// The folder and the class of each file.
    places: Vec<(u32, u32)>,
}

impl FileList {
    /// Starts a folder: the files that follow belong to it.
    pub(crate) fn begin_folder(&mut self, folder: PathBuf) {
        self.folders.push(folder);
    }

    /// Adds a file of the last folder; `name` may contain folders.
    pub(crate) fn push(&mut self, name: &OsStr, label: u32) {
        let text = name.to_str();
        if text.is_none() {
            self.odd_names.insert(self.len(), name.to_owned());
        }
        self.names.push(text.unwrap_or_default());
        self.places.push((self.folders.len().saturating_sub(1) as u32, label));
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the path of a file.
    pub(crate) fn path(&self, index: usize) -> PathBuf {
        let folder = &self.folders[self.places[index].0 as usize];
        match self.odd_names.get(&index) {
            Some(odd) => folder.join(odd),
            None => folder.join(self.names.get(index)),
        }
    }

    /// Returns the class of a file.
    pub(crate) fn label(&self, index: usize) -> u32 {
        self.places[index].1
    }
}

/// Lists the subfolders of a folder, sorted, without hidden ones.
///
/// # Errors
/// If the folder cannot be listed, or a name is not UTF-8.
pub(crate) fn class_folders(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for (name, kind) in list(root)? {
        let path = root.join(&name);
        if !(kind.is_dir() || kind.is_symlink() && path.is_dir()) {
            continue;
        }
        match name.into_string() {
            Ok(name) if name.starts_with('.') => {}
            Ok(name) => names.push(name),
            Err(_) => {
                let reason = "the folder's name is not UTF-8".to_string();
                return Err(DataError::ClassNames { path, reason });
            }
        }
    }
    Ok(names)
}

/// Lists the image files of a folder, sorted. Hidden files, such as those of macOS, are ignored.
///
/// # Errors
/// If the folder cannot be listed.
pub(crate) fn images_in(folder: &Path) -> Result<Vec<OsString>> {
    let is_image = |name: &OsStr| {
        let ending = Path::new(name).extension().and_then(|ending| ending.to_str()).map(str::to_lowercase);
        let hidden = name.to_string_lossy().starts_with('.');
        !hidden && ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str()))
    };
    let files = list(folder)?.into_iter().filter(|(name, kind)| !kind.is_dir() && is_image(name));
    Ok(files.map(|(name, _)| name).collect())
}

/// Lists names and types of a folder's entries, sorted, since the operating system lists in any order. The types come
/// with the names, so a folder of a million files needs no further calls.
fn list(folder: &Path) -> Result<Vec<(OsString, FileType)>> {
    let failed = |error| DataError::io(folder, error);
    let entries = std::fs::read_dir(folder).map_err(failed)?;
    let found = entries.map(|entry| entry.and_then(|entry| Ok((entry.file_name(), entry.file_type()?))));
    let mut found = found.collect::<std::io::Result<Vec<_>>>().map_err(failed)?;
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(found)
}

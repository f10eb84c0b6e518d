//! Image files by index, compact in memory: all names in one allocation, each folder once.

use crate::strings::Strings;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

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

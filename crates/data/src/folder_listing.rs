//! Listings of folders of images, with counts of the files that are not read.

use crate::error::{DataError, Result};
use crate::file_list::ENDINGS;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::FileType;
use std::path::{Path, PathBuf};

/// The folder that archives made on macOS have in addition to their contents.
const MACOS: &str = "__MACOSX";

/// Files that are not read, with one example of each kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnreadFiles {
    /// The number of files of each extension that is not an image's.
    by_ending: BTreeMap<String, usize>,
    other: Option<PathBuf>,
    /// The number of images in folders below the listed ones.
    nested: usize,
    nested_image: Option<PathBuf>,
}

impl UnreadFiles {
    pub(crate) fn is_empty(&self) -> bool {
        self.nested == 0 && self.by_ending.is_empty()
    }

    pub(crate) fn add(&mut self, more: Self) {
        for (ending, count) in more.by_ending {
            *self.by_ending.entry(ending).or_default() += count;
        }
        self.other = self.other.take().or(more.other);
        self.nested += more.nested;
        self.nested_image = self.nested_image.take().or(more.nested_image);
    }

    fn add_file(&mut self, path: PathBuf) {
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        let ending = ending.map_or_else(|| "no extension".to_owned(), |ending| format!(".{ending}"));
        *self.by_ending.entry(ending).or_default() += 1;
        self.other.get_or_insert(path);
    }

    /// Counts the images in a folder below a listed one, and below that. Hidden folders are ignored.
    fn add_nested(&mut self, folder: PathBuf) -> Result<()> {
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            for (name, kind) in list(&folder)?.into_iter().filter(|(name, _)| !is_hidden(name)) {
                let path = folder.join(&name);
                if kind.is_dir() {
                    folders.push(path);
                } else if is_image(&name) {
                    self.nested += 1;
                    self.nested_image.get_or_insert(path);
                }
            }
        }
        Ok(())
    }

    /// Describes the files, such as `3 files are not read (2 .gif, 1 .txt), such as a/1.gif`; nothing without files.
    pub(crate) fn describe(&self) -> Vec<String> {
        let number: usize = self.by_ending.values().sum();
        let of_each: Vec<String> =
            self.by_ending.iter().map(|(ending, count)| format!("{count} {ending}")).collect();
        let others = self.other.as_ref().map(|example| {
            let files = if number == 1 { "file is" } else { "files are" };
            format!("{number} {files} not read ({}), such as {}", of_each.join(", "), example.display())
        });
        let nested = self.nested_image.as_ref().map(|example| {
            let (number, images) = (self.nested, if self.nested == 1 { "image" } else { "images" });
            format!("{number} {images} in deeper folders not read, such as {}", example.display())
        });
        others.into_iter().chain(nested).collect()
    }
}

/// The images of a folder, sorted, and its other contents.
#[derive(Debug, Default)]
pub(crate) struct FolderListing {
    pub(crate) images: Vec<OsString>,
    pub(crate) unread: UnreadFiles,
}

impl FolderListing {
    /// Lists a folder and counts the images in the folders below it.
    ///
    /// # Errors
    /// If a folder cannot be listed.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let mut listing = Self::default();
        for (name, kind) in list(folder)?.into_iter().filter(|(name, _)| !is_hidden(name)) {
            let path = folder.join(&name);
            if kind.is_dir() {
                listing.unread.add_nested(path)?;
            } else if is_image(&name) {
                listing.images.push(name);
            } else {
                listing.unread.add_file(path);
            }
        }
        Ok(listing)
    }
}

/// Lists the subfolders of a folder, sorted, without hidden ones and `__MACOSX`.
///
/// # Errors
/// If the folder cannot be listed, or a name is not UTF-8.
pub(crate) fn class_folders(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for (name, kind) in list(root)?.into_iter().filter(|(name, _)| !is_hidden(name)) {
        let path = root.join(&name);
        if !(kind.is_dir() || kind.is_symlink() && path.is_dir()) {
            continue;
        }
        let Ok(name) = name.into_string() else {
            let reason = "the folder's name is not UTF-8".to_string();
            return Err(DataError::ClassNames { path, reason });
        };
        names.push(name);
    }
    Ok(names)
}

/// Counts the files of `root` that are in no class folder. None of them is read.
pub(crate) fn files_outside_classes(root: &Path) -> Result<UnreadFiles> {
    let mut unread = UnreadFiles::default();
    for (name, kind) in list(root)?.into_iter().filter(|(name, _)| !is_hidden(name)) {
        if !kind.is_dir() && !root.join(&name).is_dir() {
            unread.add_file(root.join(name));
        }
    }
    Ok(unread)
}

/// Lists the images of a folder and of the folders below it, sorted by their paths within each folder: files and folders in
/// one order. Hidden entries are left out, and links to folders are not followed.
///
/// # Errors
/// If a folder cannot be listed.
pub(crate) fn images_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut images = Vec::new();
    // The next entry is the last: a folder's entries are pushed in reverse.
    let mut open = vec![(folder.to_path_buf(), true)];
    while let Some((path, is_folder)) = open.pop() {
        if !is_folder {
            images.push(path);
            continue;
        }
        let entries = list(&path)?.into_iter().filter(|(name, _)| !is_hidden(name));
        let entries = entries.filter(|(name, kind)| kind.is_dir() || is_image(name));
        let paths: Vec<_> = entries.map(|(name, kind)| (path.join(name), kind.is_dir())).collect();
        open.extend(paths.into_iter().rev());
    }
    Ok(images)
}

/// Returns true for hidden files, such as those of macOS.
fn is_hidden(name: &OsStr) -> bool {
    name == MACOS || name.to_string_lossy().starts_with('.')
}

fn is_image(name: &OsStr) -> bool {
    let ending = Path::new(name).extension().and_then(|ending| ending.to_str()).map(str::to_lowercase);
    ending.is_some_and(|ending| ENDINGS.contains(&ending.as_str()))
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

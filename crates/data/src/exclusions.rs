//! Lists of files that a dataset leaves out.
//!
//! A file on the list is left out from the start, on all ranks alike. Leaving a damaged file out at run time would change
//! the samples that the ranks share; see [`damage`](crate::damage) for the alternative.

use crate::error::{DataError, Result};
use crate::lines::LinesFile;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A line of a list.
#[derive(Debug)]
struct ListLine {
    /// The number of the line, from 1.
    line: usize,
    /// True once a file was found that the line names.
    is_used: AtomicBool,
}

/// A list of files to leave out. Clones share the record of the lines that match a file.
#[derive(Debug, Clone, Default)]
pub struct Exclusions {
    file: PathBuf,
    names: Arc<BTreeMap<String, ListLine>>,
}

impl Exclusions {
    /// Reads a list. Each line is the end of a path in whole components, separated by `/` on every system. A name
    /// without a folder matches the files of that name in all folders. `./` before a path is ignored.
    ///
    /// # Errors
    /// If the file cannot be read, or is not UTF-8.
    pub fn read(file: impl AsRef<Path>) -> Result<Self> {
        let list = LinesFile::read(file.as_ref())?;
        let names = list.lines().map(|(line, text)| {
            let text = text.trim_start_matches("./").trim_start_matches('/');
            (text.to_owned(), ListLine { line, is_used: AtomicBool::new(false) })
        });
        Ok(Self { file: file.as_ref().to_path_buf(), names: Arc::new(names.collect()) })
    }

    /// Returns true if nothing is excluded.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Returns true if a file is excluded.
    #[must_use]
    pub fn contains(&self, path: &Path) -> bool {
        if self.is_empty() {
            return false;
        }
        let (mut end, mut is_excluded) = (String::new(), false);
        for part in path.iter().rev() {
            let part = part.to_string_lossy();
            end = if end.is_empty() { part.into_owned() } else { format!("{part}/{end}") };
            if let Some(line) = self.names.get(&end) {
                line.is_used.store(true, Ordering::Relaxed);
                is_excluded = true;
            }
        }
        is_excluded
    }

    /// Returns true if a line may name a part of an archive of this file name, or any file by a name without folders.
    pub(crate) fn concern(&self, archive: &Path) -> bool {
        let name = archive.file_name().unwrap_or_default().to_string_lossy();
        self.names.keys().any(|line| !line.contains('/') || line.split('/').any(|part| *part == *name))
    }

    /// Checks that every line has matched a file, once all files were compared.
    ///
    /// # Errors
    /// If a line has matched none; the error names the first such line.
    pub fn check_used(&self) -> Result<()> {
        let is_unused = |line: &ListLine| !line.is_used.load(Ordering::Relaxed);
        let unused = || self.names.iter().filter(|(_, line)| is_unused(line));
        let Some((name, ListLine { line, .. })) = unused().min_by_key(|(_, line)| line.line) else {
            return Ok(());
        };
        let others = match unused().count() - 1 {
            0 => String::new(),
            1 => ", and neither does 1 other line".to_owned(),
            number => format!(", and neither do {number} other lines"),
        };
        let reason = format!("`{name}` matches no file of the data{others}; correct or remove it");
        Err(DataError::Line { file: self.file.clone(), line: *line, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_parts_from_the_end_are_compared() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("bad.txt");
        std::fs::write(&file, "train/dog/1.jpg\r\n\r\n7.jpg\r\n").unwrap();
        let list = Exclusions::read(&file).unwrap();
        for (path, excluded) in [
            ("/data/train/dog/1.jpg", true),
            ("train/dog/1.jpg", true),
            ("/data/train/cat/1.jpg", false),
            ("1.jpg", false),
            ("any/where/7.jpg", true),
            ("any/where/17.jpg", false),
        ] {
            assert_eq!(list.contains(Path::new(path)), excluded, "{path}");
        }
        assert!(Exclusions::default().is_empty() && !list.is_empty());
        list.check_used().unwrap();
        std::fs::write(&file, "7.jpg\n./dog/8.jpg\n9.jpg\n").unwrap();
        let list = Exclusions::read(&file).unwrap();
        assert!(list.contains(Path::new("a/7.jpg")));
        let unused = list.clone().check_used().unwrap_err().to_string();
        assert!(unused.contains("bad.txt, line 2: `dog/8.jpg` matches no file"), "{unused}");
        assert!(unused.contains("neither does 1 other line"), "{unused}");
        assert!(list.contains(Path::new("dog/8.jpg")) && list.contains(Path::new("9.jpg")));
        list.check_used().unwrap();
        assert!(Exclusions::read(place.path().join("none.txt")).is_err());
    }
}

//! Lists of files that a dataset leaves out.
//!
//! A damaged file stops a training with an error, since skipping it at run time would change the samples that the ranks
//! share. A file on the list is left out from the start, on all ranks alike.

use crate::error::Result;
use crate::lines::LinesFile;
use std::collections::BTreeSet;
use std::path::Path;

/// A list of files to leave out.
#[derive(Debug, Clone, Default)]
pub struct Exclusions {
    names: BTreeSet<String>,
}

impl Exclusions {
    /// Reads a list. Each line is the end of a path in whole components, separated by `/` on every system. A name
    /// without a folder matches the files of that name in all folders.
    ///
    /// # Errors
    /// If the file cannot be read, or is not UTF-8.
    pub fn read(file: impl AsRef<Path>) -> Result<Self> {
        let list = LinesFile::read(file.as_ref())?;
        let names = list.lines().map(|(_, line)| line.trim_start_matches('/').to_owned()).collect();
        Ok(Self { names })
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
        let mut end = String::new();
        for part in path.iter().rev() {
            let part = part.to_string_lossy();
            end = if end.is_empty() { part.into_owned() } else { format!("{part}/{end}") };
            if self.names.contains(&end) {
                return true;
            }
        }
        false
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
        assert!(Exclusions::read(place.path().join("none.txt")).is_err());
    }
}

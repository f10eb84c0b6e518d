//! Files of JSON lines, read as far as they are written, and on from there.

use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::tail::{Tail, TailRead};

/// The object of a line.
pub(crate) type Object = Map<String, Value>;

/// Follows a file of JSON objects, one a line.
#[derive(Debug, Clone)]
pub(crate) struct ObjectTail {
    tail: Tail,
    /// Whole lines that were read.
    lines: usize,
    /// The number of them that are no JSON objects.
    broken: usize,
}

impl ObjectTail {
    /// The beginning of a file, which need not exist yet.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { tail: Tail::whole(path), lines: 0, broken: 0 }
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        self.tail.path()
    }

    /// Whole lines so far.
    pub(crate) fn lines(&self) -> usize {
        self.lines
    }

    /// Lines so far that are no JSON objects.
    pub(crate) fn broken(&self) -> usize {
        self.broken
    }

    /// Returns true if the file ends in the middle of a line.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.tail.is_cut_off()
    }

    /// Reads the whole lines that are new, each with its number from 0 on.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub(crate) fn read(&mut self, mut each: impl FnMut(usize, &Object)) -> io::Result<TailRead> {
        let Self { tail, lines, broken } = self;
        tail.read(|line| {
            match serde_json::from_slice::<Object>(line) {
                Ok(object) => each(*lines, &object),
                Err(_) => *broken += 1,
            }
            *lines += 1;
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_numbered_and_broken_ones_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("metrics.jsonl");
        std::fs::write(&path, "{\"step\":1}\nnonsense\n{\"step\":2}\n{\"st").expect("writes");
        let (mut tail, mut read) = (ObjectTail::new(path), Vec::new());
        let found = tail.read(|number, line| read.push((number, line["step"].as_u64()))).expect("reads");
        assert_eq!(found, TailRead::Lines(3));
        assert_eq!(read, [(0, Some(1)), (2, Some(2))]);
        assert_eq!((tail.lines(), tail.broken(), tail.is_cut_off()), (3, 1, true));
    }
}

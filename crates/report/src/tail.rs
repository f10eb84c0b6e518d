//! Files of JSON lines, read as far as they are written, and on from there.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

/// The object of a line.
pub(crate) type Object = Map<String, Value>;

/// A file of JSON objects, one a line, and how far it was read.
#[derive(Debug, Clone)]
pub(crate) struct Tail {
    path: PathBuf,
    offset: u64,
    /// Which file it was: a run that is resumed writes another one into its place.
    identity: Option<u64>,
    /// Complete lines that were read.
    lines: usize,
    /// The number of lines that are no JSON objects.
    broken: usize,
    /// Bytes behind the last complete line.
    rest: u64,
}

/// The result of reading on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// The number of new lines; 0 if nothing was written or there is no file yet.
    Lines(usize),
    /// Another file, of which nothing was read: readers of the old lines must begin anew.
    Another,
}

impl Tail {
    /// The beginning of a file, which need not exist yet.
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, offset: 0, identity: None, lines: 0, broken: 0, rest: 0 }
    }

    /// The file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Complete lines so far.
    pub(crate) fn lines(&self) -> usize {
        self.lines
    }

    /// Lines so far that are no JSON objects.
    pub(crate) fn broken(&self) -> usize {
        self.broken
    }

    /// Returns true if the file ends in the middle of a line.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.rest > 0
    }

    /// Reads the complete lines that are there by now, each with its number from 0 on.
    ///
    /// # Errors
    /// If the file is there and cannot be read.
    pub(crate) fn read(&mut self, mut each: impl FnMut(usize, &Object)) -> io::Result<Found> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(if self.identity.is_none() { Found::Lines(0) } else { Found::Another });
            }
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        let identity = Some(identity(&metadata));
        if metadata.len() < self.offset || (self.identity.is_some() && self.identity != identity) {
            return Ok(Found::Another);
        }
        self.identity = identity;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let (mut line, mut count) = (Vec::new(), 0);
        loop {
            line.clear();
            let length = reader.read_until(b'\n', &mut line)? as u64;
            if line.last() != Some(&b'\n') {
                self.rest = length;
                return Ok(Found::Lines(count));
            }
            self.offset += length;
            match serde_json::from_slice::<Object>(&line) {
                Ok(object) => each(self.lines, &object),
                Err(_) => self.broken += 1,
            }
            self.lines += 1;
            count += 1;
        }
    }
}

#[cfg(unix)]
fn identity(metadata: &std::fs::Metadata) -> u64 {
    std::os::unix::fs::MetadataExt::ino(metadata)
}

#[cfg(not(unix))]
fn identity(_: &std::fs::Metadata) -> u64 {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_when_they_are_complete() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("metrics.jsonl");
        let mut tail = Tail::new(path.clone());
        let read = |tail: &mut Tail| {
            let mut steps = Vec::new();
            let found =
                tail.read(|_, line| steps.push(line["step"].as_u64().expect("a step"))).expect("reads");
            (found, steps)
        };
        assert_eq!(read(&mut tail), (Found::Lines(0), vec![]), "there is no file yet");
        std::fs::write(&path, "{\"step\":1}\nnonsense\n{\"step\":2}\n{\"st").expect("writes");
        assert_eq!(read(&mut tail), (Found::Lines(3), vec![1, 2]));
        assert!(tail.broken() == 1 && tail.is_cut_off());
        let mut file = File::options().append(true).open(&path).expect("opens");
        io::Write::write_all(&mut file, b"ep\":3}\n").expect("writes");
        assert_eq!(read(&mut tail), (Found::Lines(1), vec![3]));
        assert_eq!(read(&mut tail), (Found::Lines(0), vec![]));
        assert!(!tail.is_cut_off());
        // A run that is resumed takes the later lines out, and writes a file anew.
        phalanx_run::write_aside(&path, b"{\"step\":1}\n").expect("writes");
        assert_eq!(read(&mut tail), (Found::Another, vec![]));
    }
}

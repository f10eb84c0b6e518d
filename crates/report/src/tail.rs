//! A text file that another process appends to.

use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use phalanx_run::Links;

/// Follows a file from its beginning, or from near its end.
#[derive(Debug, Clone)]
pub(crate) struct Tail {
    path: PathBuf,
    /// The distance in bytes from the end at which reading begins.
    from_end: u64,
    /// The file that is read: a resumed run writes another one into its place.
    identity: Option<FileIdentity>,
    offset: u64,
    /// True if reading began in the middle of a line, whose end is skipped.
    skips: bool,
    /// Bytes behind the last whole line.
    rest: u64,
}

/// The result of reading new lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TailRead {
    /// The number of new lines; 0 if nothing was written or the file does not exist yet.
    Lines(usize),
    /// The file was replaced. Nothing was read; the caller must start again with a new [`Tail`].
    Replaced,
}

/// Distinguishes a file from others of the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FileIdentity {
    device: u64,
    number: u64,
}

impl Tail {
    /// Follows all of a file, which need not exist yet.
    pub(crate) fn whole(path: PathBuf) -> Self {
        Self::last(path, u64::MAX)
    }

    /// Follows a file from the first line of its last `bytes` bytes.
    pub(crate) fn last(path: PathBuf, bytes: u64) -> Self {
        Self { path, from_end: bytes, identity: None, offset: 0, skips: false, rest: 0 }
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns true if the file ends in the middle of a line.
    pub(crate) fn is_cut_off(&self) -> bool {
        self.rest > 0
    }

    /// Reads the new whole lines, without their ends.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub(crate) fn read(&mut self, mut each: impl FnMut(&[u8])) -> io::Result<TailRead> {
        let mut file = match Links::Refuse.open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(if self.identity.is_none() { TailRead::Lines(0) } else { TailRead::Replaced });
            }
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        let identity = FileIdentity::of(&metadata);
        match self.identity {
            None => {
                // The first line is cut off, unless the one before it ends just there.
                let start = metadata.len().saturating_sub(self.from_end);
                (self.skips, self.offset) = (start > 0, start.saturating_sub(1));
                self.identity = Some(identity);
            }
            Some(known) if known != identity || metadata.len() < self.offset => {
                return Ok(TailRead::Replaced);
            }
            Some(_) => {}
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let (mut line, mut count) = (Vec::new(), 0);
        loop {
            line.clear();
            let length = reader.read_until(b'\n', &mut line)? as u64;
            if line.pop_if(|last| *last == b'\n').is_none() {
                self.rest = length;
                return Ok(TailRead::Lines(count));
            }
            self.offset += length;
            if !std::mem::take(&mut self.skips) {
                each(&line);
                count += 1;
            }
        }
    }
}

impl FileIdentity {
    #[cfg(unix)]
    fn of(metadata: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        Self { device: metadata.dev(), number: metadata.ino() }
    }

    #[cfg(not(unix))]
    fn of(_: &std::fs::Metadata) -> Self {
        Self { device: 0, number: 0 }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn append(path: &Path, text: &str) {
        let mut file = std::fs::File::options().create(true).append(true).open(path).expect("opens");
        file.write_all(text.as_bytes()).expect("writes");
    }

    fn read(tail: &mut Tail) -> (TailRead, Vec<String>) {
        let mut lines = Vec::new();
        let each = |line: &[u8]| lines.push(String::from_utf8(line.to_vec()).expect("text"));
        (tail.read(each).expect("reads"), lines)
    }

    #[test]
    fn whole_lines_come_once_and_another_file_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lines");
        let mut tail = Tail::whole(path.clone());
        assert_eq!(read(&mut tail), (TailRead::Lines(0), vec![]), "there is no file yet");
        append(&path, "one\ntw");
        assert_eq!(read(&mut tail), (TailRead::Lines(1), vec!["one".to_owned()]));
        assert!(tail.is_cut_off());
        append(&path, "o\nthree\n");
        assert_eq!(read(&mut tail), (TailRead::Lines(2), vec!["two".to_owned(), "three".to_owned()]));
        assert_eq!(read(&mut tail), (TailRead::Lines(0), vec![]));
        assert!(!tail.is_cut_off());
        // Written aside and renamed, as a resumed run does; longer than what was there.
        phalanx_run::write_aside(&path, b"one\nother lines\nof a longer file\n").expect("writes");
        assert_eq!(read(&mut tail), (TailRead::Replaced, vec![]));
        // The same file, shortened.
        let mut tail = Tail::whole(path.clone());
        assert_eq!(read(&mut tail).0, TailRead::Lines(3));
        std::fs::write(&path, "cut\n").expect("writes");
        assert_eq!(read(&mut tail), (TailRead::Replaced, vec![]));
    }

    #[test]
    fn a_long_file_is_followed_from_its_last_whole_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lines");
        append(&path, "first\nsecond\nthird\n");
        for (bytes, first) in [(6, "third"), (7, "third"), (12, "third"), (13, "second"), (99, "first")] {
            assert_eq!(read(&mut Tail::last(path.clone(), bytes)).1[0], first, "{bytes}");
        }
        let mut tail = Tail::last(path.clone(), 3);
        assert_eq!(read(&mut tail).1, [""; 0]);
        append(&path, "fourth\n");
        assert_eq!(read(&mut tail).1, ["fourth"]);
    }
}

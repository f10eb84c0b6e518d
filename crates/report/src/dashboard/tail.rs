//! The new lines of a file, also after it was replaced.

use std::path::{Path, PathBuf};

use crate::tail::{Tail, TailRead};

/// The new lines since the last poll.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NewLines {
    /// True if the file was replaced or truncated: `lines` are then all its lines.
    pub(super) restarted: bool,
    /// Complete lines.
    pub(super) lines: Vec<String>,
}

/// Follows a file from its beginning or near its end, and begins anew with each file that replaces it.
#[derive(Debug)]
pub(super) struct TextTail {
    path: PathBuf,
    from_end: u64,
    tail: Tail,
}

impl TextTail {
    /// Follows all of a file, which need not exist yet.
    pub(super) fn whole(path: &Path) -> Self {
        Self::last(path, u64::MAX)
    }

    /// Follows a file from the first line of its last `bytes` bytes.
    pub(super) fn last(path: &Path, bytes: u64) -> Self {
        Self { path: path.to_owned(), from_end: bytes, tail: Tail::last(path.to_owned(), bytes) }
    }

    /// Returns the new lines since the last poll. A file that cannot be read has none.
    pub(super) fn poll(&mut self) -> NewLines {
        let mut news = NewLines::default();
        let mut take = |line: &[u8]| news.lines.push(String::from_utf8_lossy(line).into_owned());
        // A file that is being replaced or cannot be read is polled again.
        if matches!(self.tail.read(&mut take), Ok(TailRead::Replaced)) && self.path.exists() {
            self.tail = Tail::last(self.path.clone(), self.from_end);
            let _ = self.tail.read(&mut take);
            news.restarted = true;
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_replaces_another_is_read_from_its_beginning() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("lines");
        let mut tail = TextTail::whole(&path);
        let news = |lines: &[&str], restarted| NewLines {
            restarted,
            lines: lines.iter().map(|line| (*line).to_owned()).collect(),
        };
        assert_eq!(tail.poll(), news(&[], false));
        std::fs::write(&path, "one\ntwo\n").expect("writes");
        assert_eq!(tail.poll(), news(&["one", "two"], false));
        phalanx_run::write_aside(&path, b"one\nother lines\nof a longer file\n").expect("writes");
        assert_eq!(tail.poll(), news(&["one", "other lines", "of a longer file"], true));
        std::fs::write(&path, "cut\n").expect("writes");
        assert_eq!(tail.poll(), news(&["cut"], true));
    }
}

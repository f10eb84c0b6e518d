//! A text file that another process appends to.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

/// The new lines since the last look.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct News {
    /// True if the file was replaced or shortened: these are all its lines.
    pub(super) restarted: bool,
    /// Whole lines.
    pub(super) lines: Vec<String>,
}

/// Follows a file from its beginning, or near its end.
#[derive(Debug)]
pub(super) struct Tail {
    path: PathBuf,
    /// The distance in bytes from the end at which the first look begins.
    back: u64,
    identity: Option<Identity>,
    at: u64,
    /// The beginning of an incomplete line.
    begun: Vec<u8>,
    /// True if the first line began before the place where reading began.
    skips: bool,
}

/// The identity of a file among others of the same name.
type Identity = (u64, u64);

fn identity(file: &File) -> Option<Identity> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        file.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        Some((0, 0))
    }
}

impl Tail {
    /// Follows all of a file, which need not be there yet.
    pub(super) fn whole(path: &Path) -> Self {
        Self::last(path, u64::MAX)
    }

    /// Follows a file from the first line of its last `back` bytes.
    pub(super) fn last(path: &Path, back: u64) -> Self {
        Self { path: path.to_owned(), back, identity: None, at: 0, begun: Vec::new(), skips: false }
    }

    /// Returns the new lines since the last look. A file that cannot be read has none.
    pub(super) fn look(&mut self) -> News {
        let Ok(mut file) = File::open(&self.path) else { return News::default() };
        let Ok(length) = file.metadata().map(|metadata| metadata.len()) else { return News::default() };
        let mut news = News::default();
        if self.identity != identity(&file) || length < self.at {
            news.restarted = self.identity.is_some();
            self.identity = identity(&file);
            self.at = length.saturating_sub(self.back);
            self.begun.clear();
            // The first line is cut off, unless the one before it ends just there.
            self.skips = self.at > 0;
            self.at = self.at.saturating_sub(1);
        }
        let mut bytes = Vec::new();
        let read = file.seek(SeekFrom::Start(self.at)).and_then(|_| file.read_to_end(&mut bytes));
        if read.is_err() {
            return news;
        }
        self.at += bytes.len() as u64;
        self.begun.extend(bytes);
        if self.skips {
            let end = self.begun.iter().position(|byte| *byte == b'\n');
            self.begun.drain(..end.map_or(self.begun.len(), |end| end + 1));
            self.skips = end.is_none();
        }
        if let Some(end) = self.begun.iter().rposition(|byte| *byte == b'\n') {
            let whole: Vec<u8> = self.begun.drain(..=end).collect();
            news.lines = String::from_utf8_lossy(&whole).lines().map(str::to_owned).collect();
        }
        news
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;

    fn append(path: &Path, text: &str) {
        let mut file = fs::OpenOptions::new().create(true).append(true).open(path).expect("opens");
        file.write_all(text.as_bytes()).expect("writes");
    }

    #[test]
    fn whole_lines_come_once_and_another_file_is_noticed() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("lines");
        let mut tail = Tail::whole(&path);
        let lines = |lines: &[&str], restarted| News {
            restarted,
            lines: lines.iter().map(|line| (*line).to_owned()).collect(),
        };
        assert_eq!(tail.look(), lines(&[], false));
        append(&path, "one\ntw");
        assert_eq!(tail.look(), lines(&["one"], false));
        append(&path, "o\nthree\n");
        assert_eq!(tail.look(), lines(&["two", "three"], false));
        assert_eq!(tail.look(), lines(&[], false));
        // Written aside and renamed, as a resumed run does; longer than what was there.
        fs::write(place.path().join("other"), "one\nother lines\nof a longer file\n").expect("writes");
        fs::rename(place.path().join("other"), &path).expect("renames");
        assert_eq!(tail.look(), lines(&["one", "other lines", "of a longer file"], true));
        fs::write(&path, "cut\n").expect("writes");
        assert_eq!(tail.look(), lines(&["cut"], true));
    }

    #[test]
    fn a_long_file_is_followed_from_its_last_whole_lines() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("lines");
        append(&path, "first\nsecond\nthird\n");
        for (back, first) in [(6, "third"), (7, "third"), (12, "third"), (13, "second"), (99, "first")] {
            assert_eq!(Tail::last(&path, back).look().lines[0], first, "{back}");
        }
        assert_eq!(Tail::last(&path, 3).look().lines, [""; 0]);
    }
}

//! Opens files for reading without waiting: an open of a FIFO would block until another process writes to it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::path::Path;

/// The treatment of a symbolic link in place of a file. Folders above the file may be links in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Links {
    /// It is followed: for files that users name.
    Follow,
    /// It is an error: for files of a run's folder, which others may be able to write to.
    Refuse,
}

impl Links {
    /// Opens a file for reading.
    ///
    /// # Errors
    /// If it cannot be opened, or is no regular file: a FIFO, a socket, a device, a folder, or a link that is refused.
    pub fn open(self, path: &Path) -> io::Result<File> {
        self.open_with(OpenOptions::new().read(true), path)
    }

    /// Opens a file with options. A file that they create is a regular one.
    ///
    /// # Errors
    /// Errors of [`Links::open`].
    pub fn open_with(self, options: &mut OpenOptions, path: &Path) -> io::Result<File> {
        #[cfg(unix)]
        {
            use rustix::fs::OFlags;
            use std::os::unix::fs::OpenOptionsExt as _;
            let links = if self == Self::Follow { OFlags::empty() } else { OFlags::NOFOLLOW };
            let flags = OFlags::NONBLOCK | OFlags::NOCTTY | links;
            options.custom_flags(i32::try_from(flags.bits()).unwrap_or_default());
        }
        let file = match options.open(path) {
            Ok(file) => file,
            Err(error) => return Err(describe(path, error)),
        };
        let kind = file.metadata()?.file_type();
        if kind.is_file() { Ok(file) } else { Err(no_file(kind)) }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Errors of [`Links::open`], and if it cannot be read.
    pub fn read(self, path: &Path) -> io::Result<Vec<u8>> {
        let mut file = self.open(path)?;
        let mut bytes = Vec::with_capacity(file.metadata().map_or(0, |found| size(found.len())));
        file.read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Reads a file of text.
    ///
    /// # Errors
    /// Errors of [`Links::read`], and if it is not UTF-8.
    pub fn read_text(self, path: &Path) -> io::Result<String> {
        String::from_utf8(self.read(path)?)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("is not UTF-8: {error}")))
    }
}

/// The room to reserve for a file's bytes: a hint, since sparse files claim more than they hold.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX).min(1 << 26)
}

/// Names what is in place of a file that cannot be opened, if that is the reason.
fn describe(path: &Path, error: io::Error) -> io::Error {
    match std::fs::symlink_metadata(path).map(|found| found.file_type()) {
        Ok(kind) if kind.is_symlink() && error.kind() != io::ErrorKind::NotFound => io::Error::new(
            io::ErrorKind::InvalidInput,
            "is a symbolic link, which is not followed here; folders may be links",
        ),
        Ok(kind) if !kind.is_file() && !kind.is_symlink() && !kind.is_dir() => no_file(kind),
        _ => error,
    }
}

fn no_file(kind: std::fs::FileType) -> io::Error {
    let what = if kind.is_dir() {
        "is a folder, not a file"
    } else {
        "is no regular file (a FIFO, a socket or a device)"
    };
    io::Error::new(io::ErrorKind::InvalidInput, what)
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_are_opened_and_none_waits() {
        let place = tempfile::tempdir().expect("a folder");
        let path = |name: &str| place.path().join(name);
        std::fs::write(path("file"), "text").expect("writes");
        let made = std::process::Command::new("mkfifo").arg(path("fifo")).status().expect("mkfifo runs");
        assert!(made.success());
        std::os::unix::fs::symlink("file", path("link")).expect("links");
        std::os::unix::fs::symlink("fifo", path("link to fifo")).expect("links");
        std::fs::create_dir(path("folder")).expect("creates");
        std::os::unix::fs::symlink("folder", path("linked folder")).expect("links");
        std::fs::write(path("folder/inside"), "inside").expect("writes");
        let problem = |links: Links, name: &str| links.read(&path(name)).expect_err("no file").to_string();
        for links in [Links::Follow, Links::Refuse] {
            assert_eq!(links.read_text(&path("file")).expect("a file"), "text");
            assert_eq!(links.read_text(&path("linked folder/inside")).expect("a file"), "inside");
            assert!(problem(links, "fifo").contains("FIFO") && problem(links, "folder").contains("folder"));
            // No process reads from it, and the open does not wait for one.
            let written = links.open_with(OpenOptions::new().append(true), &path("fifo"));
            assert!(written.expect_err("no file").to_string().contains("FIFO"));
        }
        assert_eq!(Links::Follow.read_text(&path("link")).expect("a file"), "text");
        assert!(problem(Links::Follow, "link to fifo").contains("FIFO"));
        assert!(problem(Links::Refuse, "link").contains("symbolic link"));
        let mut append = OpenOptions::new();
        let refused = Links::Refuse.open_with(append.create(true).append(true), &path("link"));
        assert!(refused.expect_err("a link").to_string().contains("symbolic link"));
        assert_eq!(std::fs::read(path("file")).expect("reads"), b"text");
        assert_eq!(Links::Follow.read(&path("gone")).expect_err("gone").kind(), io::ErrorKind::NotFound);
    }
}

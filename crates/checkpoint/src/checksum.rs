//! The checksums of a checkpoint's files: BLAKE3.

use std::io::{self, Read as _, Write};
use std::path::Path;

use phalanx_run::Links;
use serde::{Deserialize, Serialize};

/// The BLAKE3 hash of a file's contents.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checksum {
    /// The 256 bits in hexadecimal.
    pub blake3: String,
}

impl Checksum {
    fn of(hasher: &blake3::Hasher) -> Self {
        Self { blake3: hasher.finalize().to_hex().to_string() }
    }

    /// Returns true if a file's contents have this hash. Reads them in blocks of 1 MiB.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn is_of(&self, path: &Path) -> io::Result<bool> {
        let mut file = Links::Refuse.open(path)?;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(Self::of(&hasher) == *self),
                read => drop(hasher.update(&buffer[..read])),
            }
        }
    }
}

/// A writer that counts and hashes the bytes that it passes on.
pub(super) struct HashingWriter<W> {
    inner: W,
    bytes: u64,
    hasher: blake3::Hasher,
}

impl<W> HashingWriter<W> {
    pub(super) fn new(inner: W) -> Self {
        Self { inner, bytes: 0, hasher: blake3::Hasher::new() }
    }

    /// Returns the inner writer, the number of bytes written, and their hash.
    pub(super) fn finish(self) -> (W, u64, Checksum) {
        let checksum = Checksum::of(&self.hasher);
        (self.inner, self.bytes, checksum)
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_those_of_their_definitions() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, "foobar").expect("writes");
        let mut hashing = HashingWriter::new(Vec::new());
        hashing.write_all(b"foo").and_then(|()| hashing.write_all(b"bar")).expect("writes");
        let (inner, bytes, blake3) = hashing.finish();
        assert_eq!((inner.as_slice(), bytes), (&b"foobar"[..], 6));
        assert!(blake3.is_of(&path).expect("reads"));
        std::fs::write(&path, "foobaz").expect("writes");
        assert!(!blake3.is_of(&path).expect("reads"));
        std::fs::write(&path, "").expect("writes");
        // From the reference program of BLAKE3.
        let empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert!(Checksum { blake3: empty.into() }.is_of(&path).expect("reads"));
    }
}

//! Checksums of a checkpoint's files: BLAKE3, and the 64-bit FNV-1a of files that were written before.

use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The hash of what is in a file, in hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Checksum {
    /// BLAKE3's 256 bits: what is written.
    Blake3 {
        /// The hash.
        blake3: String,
    },
    /// The 64-bit FNV-1a of formats 1 and 2, a byte at a time.
    Fnv1a64 {
        /// The hash.
        fnv1a64: String,
    },
}

impl Checksum {
    /// Whether a file's contents have this hash. They are read in pieces of a mebibyte.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(super) fn is_of(&self, path: &Path) -> io::Result<bool> {
        let mut file = File::open(path)?;
        let mut hasher = match self {
            Self::Blake3 { .. } => Hasher::new(),
            Self::Fnv1a64 { .. } => Hasher::Fnv1a64(FNV_START),
        };
        let mut buffer = vec![0; 1 << 20];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(hasher.checksum() == *self),
                read => hasher.take(&buffer[..read]),
            }
        }
    }
}

/// What FNV-1a begins with.
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// A hash in the making.
enum Hasher {
    Blake3(Box<blake3::Hasher>),
    Fnv1a64(u64),
}

impl Hasher {
    fn new() -> Self {
        Self::Blake3(Box::default())
    }

    fn take(&mut self, bytes: &[u8]) {
        match self {
            Self::Blake3(hasher) => {
                hasher.update(bytes);
            }
            Self::Fnv1a64(hash) => {
                let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
                *hash = bytes.iter().fold(*hash, step);
            }
        }
    }

    fn checksum(&self) -> Checksum {
        match self {
            Self::Blake3(hasher) => Checksum::Blake3 { blake3: hasher.finalize().to_hex().to_string() },
            Self::Fnv1a64(hash) => Checksum::Fnv1a64 { fnv1a64: format!("{hash:016x}") },
        }
    }
}

/// Counts and hashes what passes through it.
pub(super) struct Hashing<W> {
    inner: W,
    bytes: u64,
    hasher: Hasher,
}

impl<W> Hashing<W> {
    pub(super) fn new(inner: W) -> Self {
        Self { inner, bytes: 0, hasher: Hasher::new() }
    }

    /// What was written to, how many bytes have passed, and their hash.
    pub(super) fn finish(self) -> (W, u64, Checksum) {
        let checksum = self.hasher.checksum();
        (self.inner, self.bytes, checksum)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.take(&bytes[..written]);
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
        // From the FNV page of Noll, and of BLAKE3's reference program.
        let fnv = Checksum::Fnv1a64 { fnv1a64: "85944171f73967e8".into() };
        assert!(fnv.is_of(&path).expect("reads"));
        let mut hashing = Hashing::new(Vec::new());
        hashing.write_all(b"foo").and_then(|()| hashing.write_all(b"bar")).expect("writes");
        let (inner, bytes, blake3) = hashing.finish();
        assert_eq!((inner.as_slice(), bytes), (&b"foobar"[..], 6));
        assert!(blake3.is_of(&path).expect("reads"));
        std::fs::write(&path, "foobaz").expect("writes");
        assert!(!blake3.is_of(&path).expect("reads") && !fnv.is_of(&path).expect("reads"));
        std::fs::write(&path, "").expect("writes");
        let empty = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";
        assert!(Checksum::Blake3 { blake3: empty.into() }.is_of(&path).expect("reads"));
    }
}

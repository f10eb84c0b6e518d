//! The facts about a rank.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use phalanx_run::Machine;
use phalanx_trace::clock::Offset;

/// The maximum number of files of a folder that are compared.
const MOST_FILES: usize = 200_000;

/// The number of leading bytes of a single file that are compared.
const BEGINNING: u64 = 1 << 20;

/// The facts about a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// The rank.
    pub rank: usize,
    /// The number of its host, in the order of ranks.
    pub host_number: usize,
    /// The name of its host.
    pub host: String,
    /// The machine, and the version of the program.
    pub machine: Machine,
    /// The first digits of the BLAKE3 hash of the program file; empty if it cannot be read.
    pub program: String,
    /// The requested data.
    pub data: Option<DataFacts>,
    /// The offset of its wall clock from rank 0's, if measured.
    pub clock: Option<Offset>,
}

/// The data at a path on this rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataFacts {
    /// The path.
    pub path: PathBuf,
    /// The number of files, bytes, and a digest of names, sizes and (for a single file) the first MiB; or an error.
    pub content: Result<(u64, u64, String), String>,
}

impl Facts {
    /// Returns the facts about this process.
    pub(super) fn of(rank: usize, (host_number, host): (usize, &str), data: Option<&Path>) -> Self {
        let program = std::env::current_exe().and_then(std::fs::File::open).and_then(|mut file| {
            let mut hasher = blake3::Hasher::new();
            std::io::copy(&mut file, &mut hasher)?;
            Ok(digits(&hasher))
        });
        Self {
            rank,
            host_number,
            host: host.to_owned(),
            machine: Machine::detect(),
            program: program.unwrap_or_default(),
            data: data.map(DataFacts::of),
            clock: None,
        }
    }
}

impl DataFacts {
    /// Reads the facts about `path`.
    fn of(path: &Path) -> Self {
        let content = content(path).map_err(|error| error.to_string());
        Self { path: std::path::absolute(path).unwrap_or_else(|_| path.to_owned()), content }
    }
}

fn digits(hasher: &blake3::Hasher) -> String {
    hasher.finalize().to_hex()[..12].to_owned()
}

fn content(path: &Path) -> std::io::Result<(u64, u64, String)> {
    let mut hasher = blake3::Hasher::new();
    let about = std::fs::metadata(path)?;
    if about.is_file() {
        std::io::copy(&mut std::fs::File::open(path)?.take(BEGINNING), &mut hasher)?;
        hasher.update(&about.len().to_le_bytes());
        return Ok((1, about.len(), digits(&hasher)));
    }
    // Sorted names make the digest independent of the file system.
    let (mut files, mut folders) = (Vec::new(), vec![path.to_owned()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let place = entry?.path();
            let about = std::fs::metadata(&place)?;
            if about.is_dir() {
                folders.push(place);
            } else {
                let name = place.strip_prefix(path).unwrap_or(&place).display().to_string();
                files.push((name, about.len()));
            }
        }
        if files.len() > MOST_FILES {
            let problem = format!("more than {MOST_FILES} files; name a subfolder");
            return Err(std::io::Error::other(problem));
        }
    }
    files.sort_unstable();
    for (name, size) in &files {
        hasher.update(name.as_bytes());
        hasher.update(&[0]);
        hasher.update(&size.to_le_bytes());
    }
    Ok((files.len() as u64, files.iter().map(|(_, size)| size).sum(), digits(&hasher)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_told_by_names_and_sizes() {
        let of = |files: &[(&str, &str)]| {
            let place = tempfile::tempdir().expect("a folder");
            for (name, text) in files {
                let path = place.path().join(name);
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
                std::fs::write(path, text).expect("written");
            }
            DataFacts::of(place.path()).content.expect("it is there")
        };
        let one = of(&[("a", "12"), ("sub/b", "345")]);
        assert_eq!((one.0, one.1), (2, 5));
        assert_eq!(one, of(&[("sub/b", "345"), ("a", "12")]));
        for other in [&[("a", "12"), ("sub/b", "3456")][..], &[("a", "12"), ("sub/c", "345")], &[("a", "12")]]
        {
            assert_ne!(one.2, of(other).2, "{other:?}");
        }
        let none = DataFacts::of(Path::new("/no/such/folder")).content.expect_err("nothing is there");
        assert!(none.contains("No such file"), "{none}");
    }
}

//! The inputs of a reader in the tree.

use std::fs::{self, File};
use std::io::{self, BufReader, Read as _};
use std::path::Path;

use flate2::read::GzDecoder;
use tar::Archive;

/// Returns the inputs of a reader: the files of `fuzz/corpus/NAME`, which failed once, and the archive
/// `fuzz/corpus/NAME.tar.gz` of inputs from guided runs.
///
/// # Panics
/// If the archive is damaged.
pub fn kept(reader: &str) -> Vec<Vec<u8>> {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../corpus");
    let mut files: Vec<_> =
        fs::read_dir(corpus.join(reader)).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    let mut inputs: Vec<Vec<u8>> = files.iter().filter_map(|file| fs::read(file).ok()).collect();
    let found = archived(&corpus.join(format!("{reader}.tar.gz")));
    inputs.extend(found.unwrap_or_else(|error| panic!("the archive of {reader}: {error}")));
    inputs
}

/// Returns the inputs of an archive in order; empty without an archive.
fn archived(archive: &Path) -> io::Result<Vec<Vec<u8>>> {
    let file = match File::open(archive) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => BufReader::new(file?),
    };
    let mut inputs = Vec::new();
    for entry in Archive::new(GzDecoder::new(file)).entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_file() {
            let mut input = Vec::new();
            entry.read_to_end(&mut input)?;
            inputs.push(input);
        }
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inputs_of_the_tree_are_read() {
        let frames = kept("frames");
        assert!(frames.len() > 10 && frames.iter().all(|input| input.len() < 96 << 10));
        assert!(kept("no such reader").is_empty());
        let place = tempfile::tempdir().expect("a folder");
        let archive = place.path().join("a.tar.gz");
        fs::write(&archive, b"\x1f\x8b\x08").expect("it is written");
        assert!(archived(&archive).is_err());
    }
}

//! What guided runs found, kept in the tree: for each reader an archive, `corpus/READER.tar.gz`, of short inputs that together reach
//! nearly all that is known to be reached. Every test reads them, and every run of the fuzzer begins with them.

use std::fs::{self, File};
use std::io::{self, BufReader, Read as _};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use tar::{Archive, Builder, Header};

/// How many bytes of inputs an archive has at most: the tree should stay small.
pub const MOST: usize = 96 << 10;

/// Where the archive of a reader is.
pub fn place(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(format!("{target}.tar.gz"))
}

/// The inputs of an archive, in its order; none if there is no archive.
///
/// # Errors
/// If it cannot be read.
pub fn read(archive: &Path) -> io::Result<Vec<Vec<u8>>> {
    let file = match File::open(archive) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        file => BufReader::new(file?),
    };
    let mut inputs = Vec::new();
    for entry in Archive::new(GzDecoder::new(file)).entries()? {
        let mut input = Vec::new();
        entry?.read_to_end(&mut input)?;
        inputs.push(input);
    }
    Ok(inputs)
}

/// Writes an archive of the shortest of some inputs, as many as fit; how many these are. Its bytes follow from the inputs alone.
///
/// # Errors
/// If it cannot be written.
pub fn write(archive: &Path, mut inputs: Vec<Vec<u8>>) -> io::Result<usize> {
    inputs.sort_by(|a, b| (a.len(), a).cmp(&(b.len(), b)));
    inputs.dedup();
    let mut bytes = 0;
    let fits = inputs.iter().take_while(|input| {
        bytes += input.len();
        bytes <= MOST
    });
    let fits = fits.count();
    let mut tar = Builder::new(GzEncoder::new(Vec::new(), Compression::best()));
    for (number, input) in inputs[..fits].iter().enumerate() {
        let mut header = Header::new_ustar();
        header.set_size(input.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, format!("{number:04}"), input.as_slice())?;
    }
    let written = tar.into_inner()?.finish()?;
    // As a whole or not at all: the next run begins with it.
    let aside = archive.with_extension("part");
    fs::write(&aside, written)?;
    fs::rename(&aside, archive)?;
    Ok(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_inputs_are_kept_and_come_back() {
        let place = tempfile::tempdir().expect("a folder");
        let archive = place.path().join("a.tar.gz");
        assert!(read(&archive).expect("nothing is there").is_empty());
        let inputs = vec![b"long".to_vec(), vec![7; MOST], b"".to_vec(), vec![7; MOST - 4], b"long".to_vec()];
        assert_eq!(write(&archive, inputs.clone()).expect("it is written"), 3);
        let first = fs::read(&archive).expect("it is there");
        let kept = read(&archive).expect("it is read");
        assert_eq!(kept, [b"".to_vec(), b"long".to_vec(), vec![7; MOST - 4]]);
        // What is kept does not hang on the order in which it was found, nor on the time.
        assert_eq!(write(&archive, inputs.into_iter().rev().collect()).expect("it is written"), 3);
        assert_eq!(fs::read(&archive).expect("it is there"), first);
        fs::write(&archive, &first[..first.len() / 2]).expect("it is cut");
        assert!(read(&archive).is_err());
    }
}

//! Inputs that hold several files: each is a line `== NAME` and the contents.

use std::path::Path;

use crate::json;
use crate::random::Random;

/// The mark before a name.
const MARK: &[u8] = b"\n== ";

/// Returns the files of an input, with their names.
pub fn split(input: &[u8]) -> Vec<(String, &[u8])> {
    let mut files = Vec::new();
    let find = |bytes: &[u8]| bytes.windows(MARK.len()).position(|window| window == MARK);
    let Some(first) = find(input) else { return files };
    let mut rest = &input[first + MARK.len()..];
    loop {
        let (part, next) = match find(rest) {
            Some(at) => (&rest[..at], Some(&rest[at + MARK.len()..])),
            None => (rest, None),
        };
        let end = part.iter().position(|byte| *byte == b'\n').unwrap_or(part.len());
        let name = String::from_utf8_lossy(&part[..end]).into_owned();
        files.push((name, part.get(end + 1..).unwrap_or_default()));
        match next {
            Some(next) => rest = next,
            None => return files,
        }
    }
}

/// Returns the input that holds these files.
pub fn join<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
    let mut input = Vec::new();
    for (name, contents) in files {
        input.extend_from_slice(MARK);
        input.extend_from_slice(name.as_bytes());
        input.push(b'\n');
        input.extend_from_slice(contents);
    }
    input
}

/// Writes the files of an input below a folder. Skips names that are not plain relative paths.
pub fn write(input: &[u8], folder: &Path) {
    for (name, contents) in split(input) {
        let is_plain =
            name.split('/').all(|part| !part.is_empty() && part != ".." && part != "." && part.len() < 100);
        if is_plain && !name.contains('\0') {
            let path = folder.join(name);
            let _ = path.parent().map(std::fs::create_dir_all);
            let _ = std::fs::write(path, contents);
        }
    }
}

/// Changes one of the files: by its form if it is JSON, else its bytes. Returns false if the input holds no file.
pub fn change(input: &mut Vec<u8>, random: &mut Random) -> bool {
    let files = split(input);
    if files.is_empty() {
        return false;
    }
    let mut files: Vec<(String, Vec<u8>)> =
        files.into_iter().map(|(name, contents)| (name, contents.to_vec())).collect();
    let at = random.below(files.len());
    let changed = json::change(&mut files[at].1, random);
    if !changed {
        let other = random.pick(&files).1.clone();
        crate::damage::bytes(&mut files[at].1, &other, random);
    }
    *input = join(files.iter().map(|(name, contents)| (name.as_str(), contents.as_slice())));
    true
}

/// Creates a temporary folder.
///
/// # Panics
/// If the system cannot create it.
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir().unwrap_or_else(|error| panic!("a temporary folder: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_joined_and_split() {
        let input = join([("a", b"1\n".as_slice()), ("b/c", b""), ("d", b"x\n\ny")]);
        let split: Vec<_> = split(&input);
        assert_eq!(split[0], ("a".to_owned(), b"1\n".as_slice()));
        assert_eq!((split[1].0.as_str(), split[1].1.len(), split[2].1), ("b/c", 0, b"x\n\ny".as_slice()));
    }
}

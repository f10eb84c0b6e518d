//! Files of a dataset that number themselves, such as `train-00000-of-00003.parquet`.

use crate::error::{DataError, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The largest number of files. A larger one in a name has another meaning.
const MAX_FILES: usize = 1_000_000;

/// The number of a file and of all, in a name such as `train-00000-of-00003.parquet`.
struct FileNumber<'a> {
    before: &'a str,
    number: usize,
    of: usize,
    digits: usize,
    after: &'a str,
}

impl<'a> FileNumber<'a> {
    fn parse(name: &'a str) -> Option<Self> {
        let (head, tail) = name.rsplit_once("-of-")?;
        let digits = head.len() - head.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (before, number) = head.split_at(head.len() - digits);
        let after = tail.trim_start_matches(|c: char| c.is_ascii_digit());
        let of = &tail[..tail.len() - after.len()];
        let of = of.parse().ok().filter(|of| *of <= MAX_FILES)?;
        Some(Self { before, number: number.parse().ok()?, of, digits, after })
    }
}

/// The files of a folder that belong together: their names differ by their number alone.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct NumberedSet {
    folder: PathBuf,
    before: String,
    of: usize,
    after: String,
}

/// The numbers of a set's files that exist, and the number of their digits.
#[derive(Debug, Default)]
struct PresentNumbers {
    numbers: BTreeSet<usize>,
    digits: usize,
}

/// Checks that files whose names say `N-of-M` are complete. Files with other names are not checked.
///
/// # Errors
/// If a file is missing; the error names the first.
pub(crate) fn check_complete(files: &[PathBuf]) -> Result<()> {
    let mut sets = BTreeMap::<NumberedSet, PresentNumbers>::new();
    for file in files {
        let (folder, name) = (file.parent().unwrap_or(Path::new("")), file.file_name());
        let Some(parsed) = name.and_then(|name| name.to_str()).and_then(FileNumber::parse) else { continue };
        let (before, after) = (parsed.before.to_owned(), parsed.after.to_owned());
        let set = NumberedSet { folder: folder.to_owned(), before, of: parsed.of, after };
        let present = sets.entry(set).or_default();
        present.numbers.insert(parsed.number);
        present.digits = parsed.digits;
    }
    for (NumberedSet { folder, before, of, after }, PresentNumbers { numbers, digits }) in sets {
        // Some writers count from 1.
        let first = usize::from(!numbers.contains(&0) && numbers.contains(&of));
        let missing: Vec<usize> = (first..of + first).filter(|number| !numbers.contains(number)).collect();
        if let Some(number) = missing.first() {
            let file = folder.join(format!("{before}{number:0digits$}-of-{of:0digits$}{after}"));
            let files = match missing.len() {
                1 => "the file is".to_owned(),
                2 => "the file and 1 other are".to_owned(),
                number => format!("the file and {} others are", number - 1),
            };
            let reason = format!("{files} missing; its name is one of {of} numbered files");
            return Err(DataError::file(&file, reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(names: &[&str]) -> std::result::Result<(), String> {
        let files: Vec<PathBuf> = names.iter().map(|name| Path::new("data").join(name)).collect();
        check_complete(&files).map_err(|error| error.to_string())
    }

    #[test]
    fn a_missing_number_is_named() {
        let name = |number, of| format!("train-{number:05}-of-{of:05}.parquet");
        assert_eq!(check(&[&name(0, 2), &name(1, 2), "test-00000-of-00001.parquet", "more.parquet"]), Ok(()));
        assert_eq!(check(&["s-1-of-2.tar", "s-2-of-2.tar"]), Ok(()));
        assert_eq!(check(&[&name(0, 1), "train-00000-of-00001-a1b2.parquet"]), Ok(()));
        let missing = check(&[&name(0, 3), &name(2, 3)]).expect_err("the second is missing");
        assert!(missing.starts_with("data/train-00001-of-00003.parquet: the file is missing"), "{missing}");
        let missing = check(&[&name(1, 4)]).expect_err("three are missing");
        assert!(
            missing.starts_with("data/train-00000-of-00004.parquet: the file and 2 others are missing"),
            "{missing}"
        );
    }
}

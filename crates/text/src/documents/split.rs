//! The split of each document.

use std::path::Path;

use phalanx_data::Split;

use super::Documents;

/// Assigns documents to splits: by the names of their files, or of every `100 / percent` documents the last for testing.
#[derive(Debug)]
pub(crate) struct SplitRule {
    named: bool,
    every: u64,
    number: u64,
}

impl SplitRule {
    /// Makes the rule for documents, of which `test_percent` are for testing if no names say it; 0 = none.
    pub(crate) fn new(documents: &Documents, test_percent: u64) -> Self {
        let named = documents.files().iter().any(|file| split_of(file) == Some(Split::Train));
        let every = 100_u64.checked_div(test_percent).map_or(0, |every| every.max(2));
        Self { named, every, number: 0 }
    }

    /// Returns the split of the next passage of a file.
    pub(crate) fn assign(&mut self, file: &Path, ends: bool) -> Split {
        let for_test = match self.named {
            true => split_of(file) == Some(Split::Test),
            false => self.every > 0 && self.number % self.every == self.every - 1,
        };
        self.number += u64::from(ends);
        if for_test { Split::Test } else { Split::Train }
    }
}

/// The split that the name of a file says.
pub(crate) fn split_of(file: &Path) -> Option<Split> {
    let stem = file.file_stem()?.to_string_lossy().to_lowercase();
    let has = |word: &str| stem.split(|letter: char| !letter.is_alphabetic()).any(|part| part == word);
    if has("train") {
        Some(Split::Train)
    } else if ["val", "valid", "validation", "test"].into_iter().any(has) {
        Some(Split::Test)
    } else {
        None
    }
}

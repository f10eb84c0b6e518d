//! Errors about files of weights, and lists of names in them.

use std::path::Path;

use crate::TensorError;

/// The number of names that a message lists.
const LISTED: usize = 3;

/// Makes the error of a file.
pub(super) fn wrong(path: &Path, problem: impl Into<String>) -> TensorError {
    TensorError::Weights { path: path.to_owned(), problem: problem.into() }
}

/// Lists the first names, and the number of the others.
pub(super) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let all: Vec<&str> = names.collect();
    let shown: Vec<String> = all.iter().take(LISTED).map(|name| format!("`{name}`")).collect();
    let others = all.len() - shown.len();
    if others > 0 { format!("{} and {others} more", shown.join(", ")) } else { shown.join(", ") }
}

//! Patterns of archive paths: `shard-{000000..000012}.tar`, `{a,b}-{0..3}.tar`, a folder, or one file.

use crate::error::{DataError, ParseResult, Result};
use crate::numbered_files::check_complete;
use std::path::{Path, PathBuf};

/// Upper limits of a pattern: archives, the length of a path with braces, the bytes of all names, braces, and digits of
/// a number. More is a typing error.
const MAX_ARCHIVES: usize = 1_000_000;
const MAX_LENGTH: usize = 4096;
const MAX_BYTES: usize = 256 << 20;
const MAX_BRACES: usize = 16;
const MAX_DIGITS: usize = 20;

/// Expands a path to archives, in order. Braces hold a range of whole numbers, `{000..012}`, padded like its ends, or a
/// list, `{a,b,c}`. With several braces the last one changes fastest. `::` separates paths. A folder stands for the
/// files `*.tar` in it, sorted.
///
/// # Errors
/// If braces are malformed, or a folder has no archive.
pub fn expand(path: &str) -> Result<Vec<PathBuf>> {
    let mut archives = Vec::new();
    for part in path.split("::") {
        if part.is_empty() {
            return Err(problem(path, "an empty path at `::`"));
        }
        let open = part.matches('{').count();
        if open > MAX_BRACES || (open > 0 && part.len() > MAX_LENGTH) {
            return Err(problem(
                part.get(..100).unwrap_or_default(),
                "too many braces, or too long a path with braces",
            ));
        }
        for name in braces(part).map_err(|reason| problem(path, reason))? {
            let file = PathBuf::from(name);
            if file.is_dir() {
                archives.extend(in_folder(&file)?);
            } else {
                archives.push(file);
            }
            if archives.len() > MAX_ARCHIVES {
                return Err(problem(path, format!("more than {MAX_ARCHIVES} archives")));
            }
        }
    }
    Ok(archives)
}

fn problem(path: &str, reason: impl std::fmt::Display) -> DataError {
    DataError::config("shards", format!("{path:?}: {reason}"))
}

fn in_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| DataError::io(folder, error);
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        if file.extension().is_some_and(|ending| ending == "tar") {
            found.push(file);
        }
    }
    if found.is_empty() {
        return Err(DataError::Unrecognised { path: folder.to_path_buf(), looked_for: "*.tar".to_owned() });
    }
    found.sort();
    check_complete(&found)?;
    Ok(found)
}

/// Expands the braces of a pattern.
fn braces(pattern: &str) -> ParseResult<Vec<String>> {
    let Some((before, rest)) = pattern.split_once('{') else {
        return if pattern.contains('}') {
            Err("`}` without `{`".to_owned())
        } else {
            Ok(vec![pattern.to_owned()])
        };
    };
    let (inside, after) = rest.split_once('}').ok_or("`{` is not closed")?;
    let choices = match inside.split_once("..") {
        Some((from, to)) => range(from, to)?,
        None if inside.contains(',') => inside.split(',').map(str::to_owned).collect(),
        None => return Err(format!("`{{{inside}}}` is neither a range `{{0..9}}` nor a list `{{a,b}}`")),
    };
    let after = braces(after)?;
    let names = choices.len().saturating_mul(after.len());
    if names > MAX_ARCHIVES || names.saturating_mul(pattern.len()) > MAX_BYTES {
        return Err(format!(
            "more than {MAX_ARCHIVES} archives, or names of more than {MAX_BYTES} bytes in all"
        ));
    }
    Ok(choices
        .iter()
        .flat_map(|choice| after.iter().map(move |after| format!("{before}{choice}{after}")))
        .collect())
}

fn range(from: &str, to: &str) -> ParseResult<Vec<String>> {
    let number = |text: &str| {
        text.parse::<usize>().map_err(|_| format!("`{text}` in `{{{from}..{to}}}` is not a whole number"))
    };
    if from.len().max(to.len()) > MAX_DIGITS {
        return Err(format!("numbers of more than {MAX_DIGITS} digits"));
    }
    let (first, last) = (number(from)?, number(to)?);
    if first > last || last - first >= MAX_ARCHIVES {
        return Err(format!("`{{{from}..{to}}}` is descending, or has more than {MAX_ARCHIVES} numbers"));
    }
    // As in shells, leading zeros in either end pad all numbers to the longer end.
    let padded = [from, to].iter().any(|text| text.len() > 1 && text.starts_with('0'));
    let digits = if padded { from.len().max(to.len()) } else { 1 };
    Ok((first..=last).map(|number| format!("{number:0digits$}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &str) -> Vec<String> {
        expand(path).unwrap().iter().map(|path| path.display().to_string()).collect()
    }

    #[test]
    fn braces_expand_as_in_shells() {
        assert_eq!(names("s-{008..011}.tar"), ["s-008.tar", "s-009.tar", "s-010.tar", "s-011.tar"]);
        assert_eq!(names("s-{8..10}.tar"), ["s-8.tar", "s-9.tar", "s-10.tar"]);
        assert_eq!(names("{a,b}/{0..1}.tar"), ["a/0.tar", "a/1.tar", "b/0.tar", "b/1.tar"]);
        assert_eq!(names("a.tar::b-{0..1}.tar"), ["a.tar", "b-0.tar", "b-1.tar"]);
        assert_eq!(names("plain.tar"), ["plain.tar"]);
    }

    #[test]
    fn malformed_patterns_are_refused() {
        for bad in [
            "a-{0..",
            "a-0}",
            "{x}.tar",
            "{3..1}",
            "{a..b}",
            "{0..99999999}",
            "a.tar::",
            "{0..9999}{0..9999}",
            "{0..000000000000000000000000000001}",
            &"{0..1}".repeat(17),
        ] {
            assert!(expand(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_folder_stands_for_its_archives() {
        let place = tempfile::tempdir().unwrap();
        for name in ["b.tar", "a.tar", "a.txt"] {
            std::fs::write(place.path().join(name), "").unwrap();
        }
        let found = expand(place.path().to_str().unwrap()).unwrap();
        assert_eq!(found, [place.path().join("a.tar"), place.path().join("b.tar")]);
        std::fs::create_dir(place.path().join("empty")).unwrap();
        assert!(expand(place.path().join("empty").to_str().unwrap()).is_err());
    }
}

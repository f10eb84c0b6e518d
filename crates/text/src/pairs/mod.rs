//! Parallel texts: pairs of a text and its translation.
//!
//! | path | pairs |
//! |---|---|
//! | `.tsv` | the columns that the first line names by the languages, or else the first two |
//! | `.jsonl`, `.ndjson` | the keys of the languages, in the line or in its `translation` |
//! | a folder of `NAME.en` and `NAME.de` | the lines of both files |
//! | a folder of `.mo` files, or one | the messages of compiled gettext catalogues and their translations |

mod gettext;

use std::path::{Path, PathBuf};

use phalanx_data::{DataError, Links, Result, Split, encoding};
use serde_json::Value;

use crate::documents::split_of;
use crate::lines::{for_each_text, wrong_line};

pub use gettext::catalogue;

/// A text and its translation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TextPair {
    /// The text.
    pub source: String,
    /// Its translation.
    pub target: String,
}

/// The languages of the two sides, as keys, columns and endings name them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Languages {
    /// The language of the source.
    pub source: String,
    /// The language of the target.
    pub target: String,
}

/// Pairs in two splits. Pairs with an empty side are left out.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ParallelTexts {
    train: Vec<TextPair>,
    test: Vec<TextPair>,
}

/// The number of pairs, or of catalogues, of which the last one is for testing where no names tell the splits.
const EVERY: usize = 10;

impl ParallelTexts {
    /// Reads all pairs that a path names. Catalogues are split as wholes, since messages recur within them; other pairs one
    /// by one, unless names of files tell the splits.
    ///
    /// # Errors
    /// If a file cannot be read or is malformed: the error names the line; if both sides have different numbers of lines; or
    /// if a split has no pair.
    pub fn open(path: &Path, languages: &Languages) -> Result<Self> {
        let mut texts = Self::default();
        let files = files(path, languages)?;
        let named = files.iter().any(|file| split_of(file.path()) == Some(Split::Train));
        let mut number = 0;
        for (place, file) in files.iter().enumerate() {
            let mut pairs = file.read(languages)?;
            pairs.retain(|pair| !pair.source.trim().is_empty() && !pair.target.trim().is_empty());
            for pair in pairs {
                let for_test = match (named, file) {
                    (true, _) => split_of(file.path()) == Some(Split::Test),
                    (false, PairFile::Catalogue(_)) if files.len() > 1 => place % EVERY == EVERY - 1,
                    (false, _) => number % EVERY == EVERY - 1,
                };
                number += 1;
                if for_test { &mut texts.test } else { &mut texts.train }.push(pair);
            }
        }
        if texts.train.is_empty() || texts.test.is_empty() {
            let (train, test) = (texts.train.len(), texts.test.len());
            let reason = format!("{train} pairs for training and {test} for testing; both need some");
            return Err(DataError::Text { name: path.display().to_string(), reason });
        }
        Ok(texts)
    }

    /// The pairs of a split.
    #[must_use]
    pub fn pairs(&self, split: Split) -> &[TextPair] {
        match split {
            Split::Train => &self.train,
            Split::Test => &self.test,
        }
    }
}

/// A file of pairs, or two with a side each.
enum PairFile {
    Table(PathBuf),
    JsonLines(PathBuf),
    Catalogue(PathBuf),
    Sides { source: PathBuf, target: PathBuf },
}

impl PairFile {
    fn path(&self) -> &Path {
        match self {
            Self::Table(path) | Self::JsonLines(path) | Self::Catalogue(path) => path,
            Self::Sides { source, .. } => source,
        }
    }

    /// The form of a file, by its ending; `None` for other files and for targets, which belong to their sources.
    fn of(path: &Path, languages: &Languages) -> Option<Self> {
        let ending = path.extension()?.to_str()?;
        match ending {
            "tsv" => Some(Self::Table(path.to_owned())),
            "jsonl" | "ndjson" => Some(Self::JsonLines(path.to_owned())),
            "mo" => Some(Self::Catalogue(path.to_owned())),
            ending if ending == languages.source => {
                Some(Self::Sides { source: path.to_owned(), target: path.with_extension(&languages.target) })
            }
            _ => None,
        }
    }

    fn read(&self, languages: &Languages) -> Result<Vec<TextPair>> {
        match self {
            Self::Table(path) => table(path, languages),
            Self::JsonLines(path) => json_lines(path, languages),
            Self::Catalogue(path) => {
                let bytes = Links::Follow.read(path).map_err(|error| DataError::io(path, error))?;
                catalogue(&bytes).map_err(|reason| DataError::file(path, reason))
            }
            Self::Sides { source, target } => sides(source, target),
        }
    }
}

/// Finds the files of pairs, sorted by their names.
fn files(path: &Path, languages: &Languages) -> Result<Vec<PairFile>> {
    let io = |error| DataError::io(path, error);
    let mut paths = vec![path.to_owned()];
    if std::fs::metadata(path).map_err(io)?.is_dir() {
        let entries =
            std::fs::read_dir(path).map_err(io)?.collect::<std::io::Result<Vec<_>>>().map_err(io)?;
        paths = entries.iter().map(std::fs::DirEntry::path).filter(|path| path.is_file()).collect();
        paths.sort();
    }
    let found: Vec<PairFile> = paths.iter().filter_map(|path| PairFile::of(path, languages)).collect();
    if found.is_empty() {
        let Languages { source, target } = languages;
        let looked_for = format!(
            "a table (.tsv), lines of JSON (.jsonl), catalogues (.mo), or files that end in .{source} and .{target}"
        );
        return Err(DataError::Unrecognised { path: path.to_owned(), looked_for });
    }
    Ok(found)
}

/// Reads the lines of a file.
fn lines(path: &Path) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for_each_text(path, &mut |_, text| {
        lines.push(text.to_owned());
        Ok(())
    })?;
    Ok(lines)
}

fn sides(source: &Path, target: &Path) -> Result<Vec<TextPair>> {
    let (sources, targets) = (lines(source)?, lines(target)?);
    if sources.len() != targets.len() {
        let reason = format!("{} lines, but {} has {}", sources.len(), target.display(), targets.len());
        return Err(DataError::file(source, reason));
    }
    Ok(sources.into_iter().zip(targets).map(|(source, target)| TextPair { source, target }).collect())
}

fn table(path: &Path, languages: &Languages) -> Result<Vec<TextPair>> {
    let mut columns = [0, 1];
    let mut pairs = Vec::new();
    for (number, line) in lines(path)?.into_iter().enumerate() {
        let cells: Vec<&str> = line.split('\t').collect();
        let named =
            [&languages.source, &languages.target].map(|name| cells.iter().position(|cell| cell == name));
        if let (0, [Some(source), Some(target)]) = (number, named) {
            columns = [source, target];
            continue;
        }
        if line.trim().is_empty() {
            continue;
        }
        let (Some(source), Some(target)) = (cells.get(columns[0]), cells.get(columns[1])) else {
            let reason = format!("{} cells; a text and its translation are two", cells.len());
            return Err(wrong_line(path, number + 1, reason));
        };
        pairs.push(TextPair { source: (*source).to_owned(), target: (*target).to_owned() });
    }
    Ok(pairs)
}

fn json_lines(path: &Path, languages: &Languages) -> Result<Vec<TextPair>> {
    let mut pairs = Vec::new();
    for (number, line) in lines(path)?.into_iter().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let wrong = |reason: String| wrong_line(path, number + 1, reason);
        let object: Value = encoding::parse_json(line.as_bytes()).map_err(wrong)?;
        let of = |key: &str| {
            let text = object.get("translation").unwrap_or(&object).get(key).and_then(Value::as_str);
            text.map(str::to_owned).ok_or_else(|| wrong(format!("no text under {key:?}")))
        };
        pairs.push(TextPair { source: of(&languages.source)?, target: of(&languages.target)? });
    }
    Ok(pairs)
}

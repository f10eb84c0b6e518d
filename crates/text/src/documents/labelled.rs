//! Texts with classes.
//!
//! | path | a text and its class |
//! |---|---|
//! | `.jsonl`, `.ndjson` | two keys of a line |
//! | `.tsv` | two columns that the first line names |
//! | `.parquet` | two columns; numbers have the names that Hugging Face's `datasets` writes into the file |
//! | a folder of folders | each file, and the name of its folder; folders named `train` and `test` may be above |
//! | a folder of such files | the same, the splits by names |

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use phalanx_data::{DataError, LabelledRows, Links, Result, Split, encoding, read_parquet_labelled};
use serde_json::Value;

use super::{Documents, DocumentsConfig, ending, split_of};
use crate::lines::{for_each_line, for_each_text, wrong_line};

/// The keys of the text and of the class, in lines of JSON and in tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelKeys {
    /// The key of the text.
    pub text: String,
    /// The key of the class.
    pub class: String,
}

/// A text and its class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledDocument {
    /// The text.
    pub text: String,
    /// The class, an index into [`LabelledDocuments::classes`].
    pub class: u32,
}

/// Texts with classes, in two splits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledDocuments {
    classes: Vec<String>,
    train: Vec<LabelledDocument>,
    test: Vec<LabelledDocument>,
}

/// A text with the name of its class.
struct Named {
    text: String,
    class: String,
    split: Option<Split>,
}

impl LabelledDocuments {
    /// Reads all texts that a path names. Where no names tell the splits, of every `100 / test_percent` texts the last is for testing.
    /// Classes are in the order of their names, or of their numbers, which parquet
    /// files may name.
    ///
    /// # Errors
    /// If a file cannot be read or is malformed: the error names the line; or if there is no text, or a split has none.
    pub fn open(path: &Path, keys: &LabelKeys, test_percent: u64) -> Result<Self> {
        let documents = Documents::open(&[path.to_owned()], DocumentsConfig::default())?;
        let (mut all, mut names) = (Vec::new(), None);
        for file in documents.files() {
            let split = split_below(path, file);
            let mut take = |text: String, class: String| all.push(Named { text, class, split });
            match ending(file) {
                "jsonl" | "ndjson" => json_lines(file, keys, &mut take)?,
                "tsv" => table(file, keys, &mut take)?,
                "parquet" => parquet(file, keys, &mut names, &mut take)?,
                _ if path.is_dir() => whole(file, &mut take)?,
                _ => {
                    let looked_for = "lines of JSON (.jsonl), a table (.tsv or .parquet), or a folder with a folder for each class";
                    return Err(DataError::Unrecognised {
                        path: path.to_owned(),
                        looked_for: looked_for.into(),
                    });
                }
            }
        }
        let classes =
            names.unwrap_or_else(|| in_order(all.iter().map(|named| named.class.clone()).collect()));
        let named = all.iter().any(|named| named.split == Some(Split::Train));
        let every = 100_usize.checked_div(test_percent as usize).map_or(usize::MAX, |every| every.max(2));
        let (mut train, mut test) = (Vec::new(), Vec::new());
        for (number, Named { text, class, split }) in all.into_iter().enumerate() {
            let for_test = if named { split == Some(Split::Test) } else { number % every == every - 1 };
            let class = classes.iter().position(|known| *known == class).unwrap_or(0) as u32;
            if for_test { &mut test } else { &mut train }.push(LabelledDocument { text, class });
        }
        if train.is_empty() || test.is_empty() {
            let (train, test) = (train.len(), test.len());
            let reason = format!("{train} texts for training and {test} for testing; both need some");
            return Err(DataError::Text { name: path.display().to_string(), reason });
        }
        Ok(Self { classes, train, test })
    }

    /// The names of the classes.
    #[must_use]
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The texts of a split.
    #[must_use]
    pub fn texts(&self, split: Split) -> &[LabelledDocument] {
        match split {
            Split::Train => &self.train,
            Split::Test => &self.test,
        }
    }
}

/// The split that the name of a file, or of a folder between `root` and it, tells.
fn split_below(root: &Path, file: &Path) -> Option<Split> {
    let below = file.strip_prefix(root).unwrap_or(file);
    let folders = below.parent().into_iter().flat_map(Path::components);
    folders
        .map(|part| PathBuf::from(part.as_os_str()))
        .find_map(|part| split_of(&part))
        .or_else(|| split_of(file))
}

/// Sorts the names of classes, as numbers if all are.
fn in_order(names: BTreeSet<String>) -> Vec<String> {
    let mut names: Vec<String> = names.into_iter().collect();
    if names.iter().all(|name| name.parse::<i64>().is_ok()) {
        names.sort_by_key(|name| name.parse::<i64>().unwrap_or(0));
    }
    names
}

fn whole(file: &Path, take: &mut dyn FnMut(String, String)) -> Result<()> {
    let text = Links::Follow.read_text(file).map_err(|error| DataError::io(file, error))?;
    let folder = file.parent().and_then(Path::file_name).unwrap_or_default();
    take(text, folder.to_string_lossy().into_owned());
    Ok(())
}

fn json_lines(file: &Path, keys: &LabelKeys, take: &mut dyn FnMut(String, String)) -> Result<()> {
    for_each_line(file, &mut |line, bytes| {
        if bytes.trim_ascii().is_empty() {
            return Ok(());
        }
        let wrong = |reason: String| wrong_line(file, line, reason);
        let object: Value = encoding::parse_json(bytes).map_err(wrong)?;
        let of = |key: &str| match object.get(key) {
            Some(Value::String(text)) => Ok(text.clone()),
            Some(Value::Number(number)) => Ok(number.to_string()),
            Some(Value::Bool(answer)) => Ok(answer.to_string()),
            _ => {
                let known: Vec<&String> =
                    object.as_object().into_iter().flat_map(serde_json::Map::keys).collect();
                Err(wrong(format!("no text or number under {key:?}; the line has {known:?}")))
            }
        };
        take(of(&keys.text)?, of(&keys.class)?);
        Ok(())
    })
}

/// Reads the rows of a file. All files must name the same classes.
fn parquet(
    file: &Path,
    keys: &LabelKeys,
    known: &mut Option<Vec<String>>,
    take: &mut dyn FnMut(String, String),
) -> Result<()> {
    let LabelledRows { texts, classes, names } = read_parquet_labelled(file, &keys.text, &keys.class)?;
    if let Some(names) = names {
        let before = known.get_or_insert_with(|| names.clone());
        if *before != names {
            let reason = format!("{names:?}, but the files before have {before:?}");
            return Err(DataError::ClassNames { path: file.to_owned(), reason });
        }
    }
    texts.into_iter().zip(classes).for_each(|(text, class)| take(text, class));
    Ok(())
}

fn table(file: &Path, keys: &LabelKeys, take: &mut dyn FnMut(String, String)) -> Result<()> {
    let mut columns: Option<[usize; 2]> = None;
    for_each_text(file, &mut |line, text| {
        if text.trim().is_empty() {
            return Ok(());
        }
        let wrong = |reason: String| wrong_line(file, line, reason);
        let cells: Vec<&str> = text.split('\t').collect();
        let Some([of_text, of_class]) = columns else {
            let column = |key: &str| {
                let place = cells.iter().position(|cell| *cell == key);
                place.ok_or_else(|| wrong(format!("no column {key:?}; the first line has {cells:?}")))
            };
            columns = Some([column(&keys.text)?, column(&keys.class)?]);
            return Ok(());
        };
        match (cells.get(of_text), cells.get(of_class)) {
            (Some(text), Some(class)) => take((*text).to_owned(), (*class).to_owned()),
            _ => return Err(wrong(format!("{} cells; the first line has more", cells.len()))),
        }
        Ok(())
    })
}

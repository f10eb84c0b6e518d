//! Texts with classes, or pairs of texts with one.
//!
//! | path | a text, a second one if there is to be one, and the class |
//! |---|---|
//! | `.jsonl`, `.ndjson` | keys of a line |
//! | `.tsv` | columns that the first line names |
//! | `.parquet` | columns; numbers have the names that Hugging Face's `datasets` writes into the file |
//! | a folder of folders | each file, and the name of its folder; folders named `train` and `test` may be above |
//! | a folder of such files | the same, the splits by names |

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use phalanx_data::{
    DataError, LabelledColumns, LabelledRows, Links, Result, Split, encoding, read_parquet_labelled,
};
use serde_json::Value;

use super::{Documents, DocumentsConfig, ending, split_of};
use crate::lines::{for_each_line, for_each_text, wrong_line};

/// The keys of the text and of the class, in lines of JSON and in tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelKeys {
    /// The key of the text.
    pub text: String,
    /// The key of a second text, of which the class is, too.
    pub second: Option<String>,
    /// The key of the class.
    pub class: String,
}

/// A text and its class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledDocument {
    /// The text.
    pub text: String,
    /// The second text.
    pub second: Option<String>,
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
    second: Option<String>,
    class: String,
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
            let mut take = |named: Named| all.push((named, split));
            match ending(file) {
                "jsonl" | "ndjson" => json_lines(file, keys, &mut take)?,
                "tsv" => table(file, keys, &mut take)?,
                "parquet" => parquet(file, keys, &mut names, &mut take)?,
                _ if path.is_dir() && keys.second.is_none() => whole(file, &mut take)?,
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
            names.unwrap_or_else(|| in_order(all.iter().map(|(named, _)| named.class.clone()).collect()));
        let named = all.iter().any(|(_, split)| *split == Some(Split::Train));
        let every = 100_usize.checked_div(test_percent as usize).map_or(usize::MAX, |every| every.max(2));
        let (mut train, mut test) = (Vec::new(), Vec::new());
        for (number, (Named { text, second, class }, split)) in all.into_iter().enumerate() {
            let for_test = if named { split == Some(Split::Test) } else { number % every == every - 1 };
            let Some(class) = classes.iter().position(|known| *known == class) else {
                let reason = format!("a text has the class {class:?}; a parquet file names {classes:?}");
                return Err(DataError::ClassNames { path: path.to_owned(), reason });
            };
            let class = class as u32;
            if for_test { &mut test } else { &mut train }.push(LabelledDocument { text, second, class });
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

fn whole(file: &Path, take: &mut dyn FnMut(Named)) -> Result<()> {
    let text = Links::Follow.read_text(file).map_err(|error| DataError::io(file, error))?;
    let folder = file.parent().and_then(Path::file_name).unwrap_or_default();
    take(Named { text, second: None, class: folder.to_string_lossy().into_owned() });
    Ok(())
}

fn json_lines(file: &Path, keys: &LabelKeys, take: &mut dyn FnMut(Named)) -> Result<()> {
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
        let second = keys.second.as_deref().map(of).transpose()?;
        take(Named { text: of(&keys.text)?, second, class: of(&keys.class)? });
        Ok(())
    })
}

/// Reads the rows of a file. All files must name the same classes.
fn parquet(
    file: &Path,
    keys: &LabelKeys,
    known: &mut Option<Vec<String>>,
    take: &mut dyn FnMut(Named),
) -> Result<()> {
    let columns = LabelledColumns { text: &keys.text, second: keys.second.as_deref(), class: &keys.class };
    let LabelledRows { texts, seconds, classes, names } = read_parquet_labelled(file, columns)?;
    if let Some(names) = names {
        let before = known.get_or_insert_with(|| names.clone());
        if *before != names {
            let reason = format!("{names:?}, but the files before have {before:?}");
            return Err(DataError::ClassNames { path: file.to_owned(), reason });
        }
    }
    let mut seconds = seconds.into_iter();
    let rows = texts.into_iter().zip(classes);
    rows.for_each(|(text, class)| take(Named { text, second: seconds.next(), class }));
    Ok(())
}

fn table(file: &Path, keys: &LabelKeys, take: &mut dyn FnMut(Named)) -> Result<()> {
    let mut columns: Option<TableColumns> = None;
    for_each_text(file, &mut |line, text| {
        if text.trim().is_empty() {
            return Ok(());
        }
        let wrong = |reason: String| wrong_line(file, line, reason);
        let cells: Vec<&str> = text.split('\t').collect();
        let Some(TableColumns { text, second, class }) = columns else {
            let column = |key: &str| {
                let place = cells.iter().position(|cell| *cell == key);
                place.ok_or_else(|| wrong(format!("no column {key:?}; the first line has {cells:?}")))
            };
            columns = Some(TableColumns {
                text: column(&keys.text)?,
                second: keys.second.as_deref().map(column).transpose()?,
                class: column(&keys.class)?,
            });
            return Ok(());
        };
        let cell = |place: usize| {
            let cell = cells.get(place).map(|cell| (*cell).to_owned());
            cell.ok_or_else(|| wrong(format!("{} cells; the first line has more", cells.len())))
        };
        take(Named { text: cell(text)?, second: second.map(cell).transpose()?, class: cell(class)? });
        Ok(())
    })
}

/// The columns of a table.
#[derive(Clone, Copy)]
struct TableColumns {
    text: usize,
    second: Option<usize>,
    class: usize,
}

//! Texts with classes.

use std::path::Path;

use parquet::basic::Type;
use parquet::file::reader::{FileReader, RowGroupReader};

use super::{
    check_columns, description, find_column, names_of, open, read_bytes, read_labels, unreadable,
    without_panics,
};
use crate::error::{DataError, Result};
use crate::parquet::limits::Limits;

/// The columns of texts with classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LabelledColumns<'a> {
    /// The column of the text.
    pub text: &'a str,
    /// The column of a second text, of which the class is, too.
    pub second: Option<&'a str>,
    /// The column of the class.
    pub class: &'a str,
}

/// The rows of a file: texts, and the name of the class of each.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LabelledRows {
    /// The texts.
    pub texts: Vec<String>,
    /// The second texts; none without a column of them.
    pub seconds: Vec<String>,
    /// The names of their classes; the numbers, where the file names none.
    pub classes: Vec<String>,
    /// All classes in the order of their numbers, if the file names them.
    pub names: Option<Vec<String>>,
}

/// The places of columns in a file.
struct Places {
    text: usize,
    second: Option<usize>,
    class: usize,
}

/// Reads texts with classes: texts, or whole numbers, whose names the metadata of Hugging Face's `datasets` may have.
///
/// # Errors
/// If the file is damaged or has no such column, a value is null or not UTF-8, or a number has no name.
pub fn read_parquet_labelled(path: &Path, columns: LabelledColumns<'_>) -> Result<LabelledRows> {
    let (mut file, reader) = without_panics(path, || open(path))?;
    let file_bytes = file.metadata().map_err(|error| DataError::io(path, error))?.len();
    let metadata = reader.metadata();
    let json = description(metadata);
    let names = json.map(|json| names_of(json, columns.class, path)).transpose()?.flatten();
    let schema = metadata.file_metadata().schema_descr();
    let find = |column: &str| find_column(schema, &[column], path);
    let places = Places {
        text: find(columns.text)?,
        second: columns.second.map(find).transpose()?,
        class: find(columns.class)?,
    };
    let all: Vec<usize> =
        [Some(places.text), places.second, Some(places.class)].into_iter().flatten().collect();
    check_columns(metadata, &all, &mut file, file_bytes).map_err(|reason| unreadable(path, reason))?;
    let limits = Limits::of(file_bytes);
    let mut rows = LabelledRows { names, ..LabelledRows::default() };
    let mut total = 0_u64;
    for number in 0..reader.num_row_groups() {
        let group = reader.get_row_group(number).map_err(|error| unreadable(path, error.to_string()))?;
        let read = without_panics(path, || read_group(&*group, &places, path, &rows))?;
        let texts = read.texts.iter().chain(&read.seconds);
        total = texts.fold(total, |total, text| total.saturating_add(text.len() as u64));
        if total > limits.bytes {
            let reason = format!("its texts have {total} bytes, more than the limit of {}", limits.bytes);
            return Err(unreadable(path, reason));
        }
        rows.texts.extend(read.texts);
        rows.seconds.extend(read.seconds);
        rows.classes.extend(read.classes);
    }
    Ok(rows)
}

/// Reads a row group, which is behind `before`.
fn read_group(
    group: &dyn RowGroupReader,
    places: &Places,
    path: &Path,
    before: &LabelledRows,
) -> Result<LabelledRows> {
    let first = before.texts.len();
    let texts = strings(group, places.text, path, first)?;
    let seconds = places.second.map(|second| strings(group, second, path, first)).transpose()?;
    let classes = classes_of(group, places.class, path, before)?;
    let number = texts.len();
    if classes.len() != number || seconds.as_ref().is_some_and(|seconds| seconds.len() != number) {
        let classes = classes.len();
        let reason = format!(
            "{number} texts, but {classes} classes or another number of second texts from row {first}"
        );
        return Err(unreadable(path, reason));
    }
    Ok(LabelledRows { texts, seconds: seconds.unwrap_or_default(), classes, names: None })
}

/// Reads a column of texts.
fn strings(group: &dyn RowGroupReader, column: usize, path: &Path, first: usize) -> Result<Vec<String>> {
    let name = group.metadata().column(column).column_path().string();
    let bytes = read_bytes(group, column, path, first)?;
    let rows = bytes.iter().enumerate().map(|(row, bytes)| {
        let text = std::str::from_utf8(bytes.data());
        text.map(str::to_owned)
            .map_err(|error| unreadable(path, format!("row {} of column {name}: {error}", first + row)))
    });
    rows.collect()
}

/// Reads a column of classes: texts, or numbers that may have names.
fn classes_of(
    group: &dyn RowGroupReader,
    column: usize,
    path: &Path,
    before: &LabelledRows,
) -> Result<Vec<String>> {
    let first = before.texts.len();
    if group.metadata().column(column).column_type() == Type::BYTE_ARRAY {
        return strings(group, column, path, first);
    }
    let named = |(row, number): (usize, i64)| {
        let Some(names) = &before.names else { return Ok(number.to_string()) };
        let name = usize::try_from(number).ok().and_then(|number| names.get(number));
        name.cloned().ok_or_else(|| {
            let reason = format!("row {} has class {number}; the file names {}", first + row, names.len());
            unreadable(path, reason)
        })
    };
    read_labels(group, column, path, first)?.into_iter().enumerate().map(named).collect()
}

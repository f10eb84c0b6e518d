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

/// The rows of a file: texts, and the name of the class of each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledRows {
    /// The texts.
    pub texts: Vec<String>,
    /// The names of their classes; the numbers, where the file names none.
    pub classes: Vec<String>,
    /// All classes in the order of their numbers, if the file names them.
    pub names: Option<Vec<String>>,
}

/// Reads the texts of the column `text` and the classes of the column `class`: whole numbers, whose names the metadata of Hugging
/// Face's `datasets` may have, or texts.
///
/// # Errors
/// If the file is damaged or has no such column, a value is null or not UTF-8, or a number has no name.
pub fn read_parquet_labelled(path: &Path, text: &str, class: &str) -> Result<LabelledRows> {
    let (mut file, reader) = without_panics(path, || open(path))?;
    let file_bytes = file.metadata().map_err(|error| DataError::io(path, error))?.len();
    let metadata = reader.metadata();
    let json = description(metadata);
    let names = json.map(|json| names_of(json, class, path)).transpose()?.flatten();
    let schema = metadata.file_metadata().schema_descr();
    let columns = [find_column(schema, &[text], path)?, find_column(schema, &[class], path)?];
    check_columns(metadata, &columns, &mut file, file_bytes).map_err(|reason| unreadable(path, reason))?;
    let limits = Limits::of(file_bytes);
    let mut rows = LabelledRows { texts: Vec::new(), classes: Vec::new(), names };
    let mut total = 0_u64;
    for number in 0..reader.num_row_groups() {
        let first = rows.texts.len();
        let group = reader.get_row_group(number).map_err(|error| unreadable(path, error.to_string()))?;
        let [texts, classes] = without_panics(path, || {
            Ok([
                strings(&*group, columns[0], path, first)?,
                classes_of(&*group, columns[1], path, (first, &rows))?,
            ])
        })?;
        if texts.len() != classes.len() {
            let reason = format!("{} texts but {} classes from row {first}", texts.len(), classes.len());
            return Err(unreadable(path, reason));
        }
        total = texts.iter().fold(total, |total, text| total.saturating_add(text.len() as u64));
        if total > limits.bytes {
            let reason = format!("its texts have {total} bytes, more than the limit of {}", limits.bytes);
            return Err(unreadable(path, reason));
        }
        rows.texts.extend(texts);
        rows.classes.extend(classes);
    }
    Ok(rows)
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
    (first, rows): (usize, &LabelledRows),
) -> Result<Vec<String>> {
    if group.metadata().column(column).column_type() == Type::BYTE_ARRAY {
        return strings(group, column, path, first);
    }
    let named = |(row, number): (usize, i64)| {
        let Some(names) = &rows.names else { return Ok(number.to_string()) };
        let name = usize::try_from(number).ok().and_then(|number| names.get(number));
        name.cloned().ok_or_else(|| {
            let reason = format!("row {} has class {number}; the file names {}", first + row, names.len());
            unreadable(path, reason)
        })
    };
    read_labels(group, column, path, first)?.into_iter().enumerate().map(named).collect()
}

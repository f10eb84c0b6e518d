//! Texts of a column of a parquet file.

use super::{check_columns, find_column, open, read_bytes, unreadable, without_panics};
use crate::error::{DataError, Result};
use crate::parquet::limits::Limits;
use parquet::file::reader::FileReader;
use std::path::Path;

/// Calls `take` with the rows of each row group of a file: the texts of the column `column`, UTF-8 without nulls.
///
/// # Errors
/// If the file is damaged, has no such column, or a text is null or not UTF-8; errors of `take`.
pub fn read_parquet_texts(
    path: &Path,
    column: &str,
    take: &mut dyn FnMut(Vec<String>) -> Result<()>,
) -> Result<()> {
    let (mut file, reader) = without_panics(path, || open(path))?;
    let file_bytes = file.metadata().map_err(|error| DataError::io(path, error))?.len();
    let schema = reader.metadata().file_metadata().schema_descr();
    let place = find_column(schema, &[column], path)?;
    check_columns(reader.metadata(), &[place], &mut file, file_bytes)
        .map_err(|reason| unreadable(path, reason))?;
    let limits = Limits::of(file_bytes);
    let (mut row, mut total) = (0, 0_u64);
    for number in 0..reader.num_row_groups() {
        let texts = without_panics(path, || {
            let group = reader.get_row_group(number).map_err(|error| unreadable(path, error.to_string()))?;
            read_bytes(&*group, place, path, row)
        })?;
        total = texts.iter().fold(total, |total, text| total.saturating_add(text.len() as u64));
        if total > limits.bytes {
            let most = limits.bytes;
            let reason = format!(
                "its texts have {total} bytes by row {row}, more than the limit of {most} for a file of {file_bytes}"
            );
            return Err(unreadable(path, reason));
        }
        let mut strings = Vec::with_capacity(texts.len());
        for text in texts {
            let text = std::str::from_utf8(text.data())
                .map_err(|error| unreadable(path, format!("row {row} of column {column}: {error}")))?;
            strings.push(text.to_owned());
            row += 1;
        }
        take(strings)?;
    }
    Ok(())
}

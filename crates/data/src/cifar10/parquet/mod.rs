//! The parquet form of the Hugging Face hub: `img: struct{bytes, path}`, `label: int64`.
//!
//! The columns are read directly, without arrow. A column of nullable values comes with a
//! definition level per row; where it is below the column's highest, the row is null, which is an
//! error here.

mod claims;
mod thrift;

use self::claims::Allowance;
use crate::encoded::{EncodedImages, check_label};
use crate::error::{DataError, Result};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::schema::types::SchemaDescriptor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

/// The columns that may hold the compressed images, and the labels.
const IMAGE_COLUMNS: [&str; 2] = ["img.bytes", "image.bytes"];
const LABEL_COLUMN: &str = "label";

/// Reads whole files; `fallback` names the classes where no file does.
pub(crate) fn read(files: &[PathBuf], fallback: Vec<String>) -> Result<(EncodedImages, Vec<String>)> {
    let mut images = EncodedImages::default();
    let mut class_names: Option<Vec<String>> = None;
    for path in files {
        let read = AssertUnwindSafe(|| read_file(path, &fallback, (&mut images, &mut class_names)));
        // Decoders of the crate take much for granted of what pages say of themselves, and panic where it is otherwise.
        catch_unwind(read).unwrap_or_else(|panic| {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref().cloned()).unwrap_or_default();
            let reason = format!("its pages are damaged, as reading them ended in: {text}");
            Err(DataError::Parquet { file: path.clone(), reason })
        })?;
    }
    Ok((images, class_names.unwrap_or(fallback)))
}

/// Adds a file's images and, if it names them, its classes.
fn read_file(
    path: &Path,
    fallback: &[String],
    (images, class_names): (&mut EncodedImages, &mut Option<Vec<String>>),
) -> Result<()> {
    let io = |error| DataError::io(path, error);
    let mut file = std::fs::File::open(path).map_err(io)?;
    let there = file.metadata().map_err(io)?.len();
    let claims = |reason| DataError::Parquet { file: path.to_owned(), reason };
    claims::check_schema(&mut file, there).map_err(claims)?;
    let reader =
        SerializedFileReader::new(file.try_clone().map_err(io)?).map_err(|error| broken(path, &error))?;
    let metadata = reader.metadata().file_metadata();
    let said = metadata
        .key_value_metadata()
        .and_then(|pairs| pairs.iter().find(|pair| pair.key == "huggingface"))
        .and_then(|pair| pair.value.as_deref());
    if let Some(names) = said.map(|json| names_of(json, path)).transpose()?.flatten() {
        let before = class_names.get_or_insert_with(|| names.clone());
        if *before != names {
            let reason = format!("{names:?}, but the files before it have {before:?}");
            return Err(DataError::ClassNames { path: path.to_owned(), reason });
        }
    }
    let num_classes = class_names.as_ref().map_or(fallback.len(), Vec::len);
    let image_column = find_column(metadata.schema_descr(), &IMAGE_COLUMNS, path)?;
    let label_column = find_column(metadata.schema_descr(), &[LABEL_COLUMN], path)?;
    let allowance = Allowance::of(there);
    check_columns(&reader, &[image_column, label_column], &mut file, (there, allowance)).map_err(claims)?;
    images.begin_file(path);
    let (mut row, mut total) = (0, 0_u64);
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group).map_err(|error| broken(path, &error))?;
        let (bytes, labels) =
            (read_images(&*group, image_column, path, row)?, read_labels(&*group, label_column, path, row)?);
        if bytes.len() != labels.len() {
            let reason = format!("{} images but {} labels from row {row}", bytes.len(), labels.len());
            return Err(DataError::Parquet { file: path.to_owned(), reason });
        }
        total = bytes.iter().fold(total, |total, bytes| total.saturating_add(bytes.len() as u64));
        if total > allowance.bytes {
            let reason = format!(
                "its images have {total} bytes by row {row}, more than {} of a file of {there}",
                allowance.bytes
            );
            return Err(claims(reason));
        }
        for (bytes, label) in bytes.iter().zip(labels) {
            images.push(bytes.data(), check_label(label, num_classes, path, row)?);
            row += 1;
        }
    }
    Ok(())
}

fn broken(file: &Path, error: &dyn std::error::Error) -> DataError {
    DataError::Parquet { file: file.to_path_buf(), reason: error.to_string() }
}

/// The position of the first of several columns that is there.
fn find_column(schema: &SchemaDescriptor, names: &[&str], file: &Path) -> Result<usize> {
    let found: Vec<String> = schema.columns().iter().map(|column| column.path().string()).collect();
    names.iter().find_map(|name| found.iter().position(|column| column == name)).ok_or_else(|| {
        DataError::Parquet {
            file: file.to_path_buf(),
            reason: format!("no column {}; it has {}", names.join(" or "), found.join(", ")),
        }
    })
}

/// Checks that columns lie within a file of so many bytes, as its reader takes for granted, and become no more than is allowed.
fn check_columns<R: FileReader>(
    reader: &R,
    columns: &[usize],
    file: &mut std::fs::File,
    (there, allowance): (u64, Allowance),
) -> std::result::Result<(), String> {
    let (mut total, mut taken) = (0_u64, 0_u64);
    for (number, group) in reader.metadata().row_groups().iter().enumerate() {
        let rows = u64::try_from(group.num_rows()).unwrap_or(0);
        total = total.saturating_add(rows);
        if total > allowance.rows {
            return Err(format!(
                "{total} rows by row group {number} are more than {} of a file of {there} bytes",
                allowance.rows
            ));
        }
        for column in columns.iter().map(|column| group.column(*column)) {
            let first = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
            let begin = u64::try_from(first).ok();
            let end = begin.zip(u64::try_from(column.compressed_size()).ok());
            let end = end.and_then(|(first, size)| first.checked_add(size)).filter(|end| *end <= there);
            let (path, size) = (column.column_path().string(), column.compressed_size());
            let Some(lies) = begin.zip(end) else {
                return Err(format!(
                    "column {path} of row group {number} has {size} bytes from byte {first} on, which are not all in a file of {there}"
                ));
            };
            // Columns that share bytes would have them read again and again.
            taken = taken.saturating_add(lies.1 - lies.0);
            if taken > there {
                return Err(format!(
                    "columns have {taken} bytes by {path} of row group {number}, more than the {there} of their file"
                ));
            }
            claims::check_pages(file, lies, rows, allowance.bytes)
                .map_err(|problem| format!("column {path} of row group {number}: {problem}"))?;
        }
    }
    Ok(())
}

fn read_images(
    group: &dyn RowGroupReader,
    column: usize,
    file: &Path,
    first_row: usize,
) -> Result<Vec<ByteArray>> {
    let rows = group.metadata().num_rows();
    match group.get_column_reader(column).map_err(|error| broken(file, &error))? {
        ColumnReader::ByteArrayColumnReader(reader) => {
            let column = group.metadata().column(column).column_path().string();
            read_column(reader, rows, file, &column, group, first_row)
        }
        _ => Err(wrong_type(group, column, "byte array", file)),
    }
}

fn read_labels(group: &dyn RowGroupReader, column: usize, file: &Path, first_row: usize) -> Result<Vec<i64>> {
    let rows = group.metadata().num_rows();
    match group.get_column_reader(column).map_err(|error| broken(file, &error))? {
        ColumnReader::Int64ColumnReader(reader) => {
            read_column(reader, rows, file, LABEL_COLUMN, group, first_row)
        }
        ColumnReader::Int32ColumnReader(reader) => {
            let labels = read_column(reader, rows, file, LABEL_COLUMN, group, first_row)?;
            Ok(labels.into_iter().map(i64::from).collect())
        }
        _ => Err(wrong_type(group, column, "integer", file)),
    }
}

fn wrong_type(group: &dyn RowGroupReader, column: usize, wanted: &str, file: &Path) -> DataError {
    let column = group.metadata().column(column);
    let reason =
        format!("column {} is {}, not {wanted}", column.column_path().string(), column.column_type());
    DataError::Parquet { file: file.to_path_buf(), reason }
}

/// All values of one column of a row group; a null is an error that names its row.
fn read_column<T: DataType>(
    mut reader: ColumnReaderImpl<T>,
    rows: i64,
    file: &Path,
    column: &str,
    group: &dyn RowGroupReader,
    first_row: usize,
) -> Result<Vec<T::T>> {
    let rows = usize::try_from(rows).unwrap_or(0);
    let descriptor = group.metadata().columns().iter().find(|c| c.column_path().string() == column);
    let (highest, repeated) =
        descriptor.map_or((0, 0), |c| (c.column_descr().max_def_level(), c.column_descr().max_rep_level()));
    if repeated > 0 {
        let reason = format!("column {column} is a list");
        return Err(DataError::Parquet { file: file.to_path_buf(), reason });
    }
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    let mut read = 0;
    while read < rows {
        let (records, _, _) = reader
            .read_records(rows - read, Some(&mut levels), None, &mut values)
            .map_err(|error| broken(file, &error))?;
        if records == 0 {
            let reason = format!("column {column} ends at row {} of {}", first_row + read, first_row + rows);
            return Err(DataError::Parquet { file: file.to_path_buf(), reason });
        }
        read += records;
    }
    // Levels are only given where a value can be null.
    if let Some(null) = levels.iter().position(|&level| level < highest) {
        return Err(DataError::NullValue {
            file: file.to_path_buf(),
            row: first_row + null,
            column: column.to_string(),
        });
    }
    Ok(values)
}

/// The class names in the metadata that the `datasets` library writes; `None` where the label has none.
fn names_of(json: &str, path: &Path) -> Result<Option<Vec<String>>> {
    let wrong = |reason: String| DataError::ClassNames { path: path.to_path_buf(), reason };
    let info: serde_json::Value =
        serde_json::from_str(json).map_err(|error| wrong(format!("huggingface metadata: {error}")))?;
    let Some(names) = info.pointer("/info/features/label/names") else { return Ok(None) };
    let names = names.as_array().filter(|names| !names.is_empty());
    let names = names
        .and_then(|names| names.iter().map(|n| n.as_str().map(String::from)).collect::<Option<Vec<_>>>());
    names
        .map(Some)
        .ok_or_else(|| wrong("huggingface metadata: label.names is not a list of names".to_string()))
}

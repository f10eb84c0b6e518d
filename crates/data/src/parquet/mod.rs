//! Images and labels from parquet files of the Hugging Face hub: `img: struct{bytes, path}`, `label: int64`; and texts.
//!
//! The columns are read directly, without arrow. A nullable column has a definition level for each row; a level below the
//! column's highest means null, which is an error here.
//!
//! The parquet crate trusts the metadata of a file. So [`schema_check`] and [`page_check`] look at the claims before it
//! allocates memory for them.

mod labelled;
mod limits;
mod page_check;
mod schema_check;
mod texts;
mod thrift;

use self::limits::Limits;
use self::page_check::{ColumnChunk, check_pages};
use crate::encoded::{EncodedImages, check_label};
use crate::error::{DataError, ParseResult, Result};
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::file::metadata::{ColumnChunkMetaData, ParquetMetaData};
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::schema::types::SchemaDescriptor;
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

pub use self::labelled::{LabelledColumns, LabelledRows, read_parquet_labelled};
pub use self::texts::read_parquet_texts;

/// The accepted names of the column of compressed images, and the name of the column of labels.
const IMAGE_COLUMNS: [&str; 2] = ["img.bytes", "image.bytes"];
const LABEL_COLUMN: &str = "label";

/// The images read from the files up to now, and the class names if a file has them.
#[derive(Default)]
struct ParquetImages {
    images: EncodedImages,
    class_names: Option<Vec<String>>,
}

/// Reads whole files. Returns their images and the class names, which are `fallback` if no file names them.
pub(crate) fn read(files: &[PathBuf], fallback: Vec<String>) -> Result<(EncodedImages, Vec<String>)> {
    let mut collected = ParquetImages::default();
    for path in files {
        without_panics(path, || read_file(path, &fallback, &mut collected))?;
    }
    Ok((collected.images, collected.class_names.unwrap_or(fallback)))
}

/// Runs a reader of a file. The decoders of the parquet crate panic at pages that contradict their headers; that is an error
/// here.
fn without_panics<T>(path: &Path, read: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let text = text.or_else(|| panic.downcast_ref().cloned()).unwrap_or_default();
        Err(unreadable(path, format!("its pages are damaged; reading them failed with: {text}")))
    })
}

/// Opens a file whose schema was checked.
fn open(path: &Path) -> Result<(File, SerializedFileReader<File>)> {
    let io = |error| DataError::io(path, error);
    let mut file = crate::Links::Follow.open(path).map_err(io)?;
    let file_bytes = file.metadata().map_err(io)?.len();
    schema_check::check_schema(&mut file, file_bytes).map_err(|reason| unreadable(path, reason))?;
    let reader =
        SerializedFileReader::new(file.try_clone().map_err(io)?).map_err(|error| broken(path, &error))?;
    Ok((file, reader))
}

/// Adds the images of a file and, if it names them, its classes.
fn read_file(path: &Path, fallback: &[String], collected: &mut ParquetImages) -> Result<()> {
    let (mut file, reader) = open(path)?;
    let file_bytes = file.metadata().map_err(|error| DataError::io(path, error))?.len();
    let metadata = reader.metadata();
    collect_class_names(metadata, path, &mut collected.class_names)?;
    let num_classes = collected.class_names.as_ref().map_or(fallback.len(), Vec::len);
    let schema = metadata.file_metadata().schema_descr();
    let image_column = find_column(schema, &IMAGE_COLUMNS, path)?;
    let label_column = find_column(schema, &[LABEL_COLUMN], path)?;
    let limits = Limits::of(file_bytes);
    check_columns(metadata, &[image_column, label_column], &mut file, file_bytes)
        .map_err(|reason| unreadable(path, reason))?;
    collected.images.begin_file(path);
    let (mut row, mut total) = (0, 0_u64);
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group).map_err(|error| broken(path, &error))?;
        let images = read_bytes(&*group, image_column, path, row)?;
        let labels = read_labels(&*group, label_column, path, row)?;
        if images.len() != labels.len() {
            let reason = format!("{} images but {} labels from row {row}", images.len(), labels.len());
            return Err(unreadable(path, reason));
        }
        total = images.iter().fold(total, |total, image| total.saturating_add(image.len() as u64));
        if total > limits.bytes {
            let most = limits.bytes;
            let reason = format!(
                "its images have {total} bytes by row {row}, more than the limit of {most} for a file of {file_bytes}"
            );
            return Err(unreadable(path, reason));
        }
        for (image, label) in images.iter().zip(labels) {
            collected.images.push(image.data(), check_label(label, num_classes, path, row)?);
            row += 1;
        }
    }
    Ok(())
}

fn unreadable(file: &Path, reason: String) -> DataError {
    DataError::Parquet { file: file.to_path_buf(), reason }
}

fn broken(file: &Path, error: &dyn std::error::Error) -> DataError {
    unreadable(file, error.to_string())
}

/// The description of a file's features by the `datasets` library.
fn description(metadata: &ParquetMetaData) -> Option<&str> {
    let pairs = metadata.file_metadata().key_value_metadata()?;
    pairs.iter().find(|pair| pair.key == "huggingface")?.value.as_deref()
}

/// Reads the class names of a file, which must be those of the files before it.
fn collect_class_names(
    metadata: &ParquetMetaData,
    path: &Path,
    class_names: &mut Option<Vec<String>>,
) -> Result<()> {
    let json = description(metadata);
    if let Some(names) = json.map(|json| names_of(json, LABEL_COLUMN, path)).transpose()?.flatten() {
        let before = class_names.get_or_insert_with(|| names.clone());
        if *before != names {
            let reason = format!("{names:?}, but the files before have {before:?}");
            return Err(DataError::ClassNames { path: path.to_owned(), reason });
        }
    }
    Ok(())
}

/// Returns the index of the first of several columns that exists.
fn find_column(schema: &SchemaDescriptor, names: &[&str], file: &Path) -> Result<usize> {
    let found: Vec<String> = schema.columns().iter().map(|column| column.path().string()).collect();
    names.iter().find_map(|name| found.iter().position(|column| column == name)).ok_or_else(|| {
        unreadable(file, format!("no column {}; it has {}", names.join(" or "), found.join(", ")))
    })
}

/// Checks that columns lie within the file and stay within its limits once they are decoded.
fn check_columns(
    metadata: &ParquetMetaData,
    columns: &[usize],
    file: &mut File,
    file_bytes: u64,
) -> ParseResult<()> {
    let limits = Limits::of(file_bytes);
    let (mut rows, mut bytes) = (0_u64, 0_u64);
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let group_rows = u64::try_from(group.num_rows()).unwrap_or(0);
        rows = rows.saturating_add(group_rows);
        if rows > limits.rows {
            return Err(format!(
                "{rows} rows by row group {number} are more than the limit of {} for a file of {file_bytes} bytes",
                limits.rows
            ));
        }
        for column in columns.iter().map(|column| group.column(*column)) {
            let named =
                |problem| format!("column {} of row group {number} {problem}", column.column_path().string());
            let chunk = chunk_of(column, group_rows, file_bytes).map_err(named)?;
            // Columns that share bytes would be read again and again.
            bytes = bytes.saturating_add(chunk.end - chunk.begin);
            if bytes > file_bytes {
                return Err(named(format!(
                    "brings the columns to {bytes} bytes, more than the {file_bytes} of their file"
                )));
            }
            check_pages(file, chunk, limits.bytes)
                .map_err(|problem| named(format!("is damaged: {problem}")))?;
        }
    }
    Ok(())
}

/// Returns the bytes of a column chunk, which must lie within the file.
fn chunk_of(column: &ColumnChunkMetaData, rows: u64, file_bytes: u64) -> ParseResult<ColumnChunk> {
    let first = column.dictionary_page_offset().unwrap_or_else(|| column.data_page_offset());
    let size = column.compressed_size();
    let begin = u64::try_from(first).ok();
    let end = begin.zip(u64::try_from(size).ok()).and_then(|(begin, size)| begin.checked_add(size));
    match begin.zip(end.filter(|end| *end <= file_bytes)) {
        Some((begin, end)) => Ok(ColumnChunk { begin, end, rows }),
        None => Err(format!("has {size} bytes from byte {first} on, beyond its file of {file_bytes}")),
    }
}

fn read_bytes(
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
    let name = group.metadata().column(column).column_path().string();
    match group.get_column_reader(column).map_err(|error| broken(file, &error))? {
        ColumnReader::Int64ColumnReader(reader) => read_column(reader, rows, file, &name, group, first_row),
        ColumnReader::Int32ColumnReader(reader) => {
            let labels = read_column(reader, rows, file, &name, group, first_row)?;
            Ok(labels.into_iter().map(i64::from).collect())
        }
        _ => Err(wrong_type(group, column, "integer", file)),
    }
}

fn wrong_type(group: &dyn RowGroupReader, column: usize, wanted: &str, file: &Path) -> DataError {
    let column = group.metadata().column(column);
    let (name, found) = (column.column_path().string(), column.column_type());
    unreadable(file, format!("column {name} is {found}, not {wanted}"))
}

/// Reads all values of one column of a row group. A null is an error that names its row.
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
        return Err(unreadable(file, format!("column {column} is a list")));
    }
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    let mut read = 0;
    while read < rows {
        let (records, _, _) = reader
            .read_records(rows - read, Some(&mut levels), None, &mut values)
            .map_err(|error| broken(file, &error))?;
        if records == 0 {
            let reason = format!("column {column} ends at row {} of {}", first_row + read, first_row + rows);
            return Err(unreadable(file, reason));
        }
        read += records;
    }
    // Only nullable columns have levels.
    if let Some(null) = levels.iter().position(|&level| level < highest) {
        return Err(DataError::NullValue {
            file: file.to_path_buf(),
            row: first_row + null,
            column: column.to_string(),
        });
    }
    Ok(values)
}

/// Parses the class names of a column in the metadata of the `datasets` library; `None` if it has none.
fn names_of(json: &str, column: &str, path: &Path) -> Result<Option<Vec<String>>> {
    let wrong = |reason: String| DataError::ClassNames { path: path.to_path_buf(), reason };
    let info: serde_json::Value =
        serde_json::from_str(json).map_err(|error| wrong(format!("huggingface metadata: {error}")))?;
    let features = info.pointer("/info/features");
    let Some(names) = features.and_then(|features| features.get(column)?.get("names")) else {
        return Ok(None);
    };
    let names = names.as_array().filter(|names| !names.is_empty());
    let names = names
        .and_then(|names| names.iter().map(|n| n.as_str().map(String::from)).collect::<Option<Vec<_>>>());
    names
        .map(Some)
        .ok_or_else(|| wrong(format!("huggingface metadata: {column}.names is not a list of names")))
}

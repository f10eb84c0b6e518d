//! Checks the page headers of a column before the parquet crate decodes the pages.
//!
//! The crate believes page headers: it allocates the uncompressed size and the number of dictionary values that they
//! claim. Identical rows take no bits, so a few hundred bytes could claim gigabytes.
//!
//! Source: the file format and `parquet.thrift` of Apache Parquet.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use parquet::basic::Encoding;

use super::thrift::{CompactReader, Field};
use crate::error::ParseResult;

/// The fields of a page header that the parquet crate believes.
#[derive(Debug, Default)]
struct PageHeader {
    kind: i32,
    uncompressed_bytes: i32,
    compressed_bytes: i32,
    values: i32,
    encoding: i32,
}

/// The kinds of pages.
const DATA: i32 = 0;
const DICTIONARY: i32 = 2;
const DATA_V2: i32 = 3;

/// The encodings whose pages contain counts that the parquet crate trusts.
const REFUSED: [(Encoding, &str); 2] = [
    (Encoding::DELTA_LENGTH_BYTE_ARRAY, "DELTA_LENGTH_BYTE_ARRAY"),
    (Encoding::DELTA_BYTE_ARRAY, "DELTA_BYTE_ARRAY"),
];

/// A column chunk of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct ColumnChunk {
    /// The first byte.
    pub(super) begin: u64,
    /// The byte after the last.
    pub(super) end: u64,
    /// The rows of its row group.
    pub(super) rows: u64,
}

/// Checks the pages of a column chunk, which may have at most `max_bytes` uncompressed bytes.
///
/// # Errors
/// A description of the problem.
pub(super) fn check_pages(file: &mut File, chunk: ColumnChunk, max_bytes: u64) -> ParseResult<()> {
    let (mut at, mut values, mut bytes) = (chunk.begin, 0_u64, 0_u64);
    while at < chunk.end && values < chunk.rows {
        let problem = |problem: String| format!("the page at byte {at} {problem}");
        let (header, length) =
            read_header(file, at, chunk.end).ok_or_else(|| problem("has no readable header".to_owned()))?;
        let size = check_page(&header).map_err(problem)?;
        bytes = bytes.saturating_add(size.uncompressed_bytes);
        if bytes > max_bytes {
            let claim =
                format!("would expand its column to {bytes} bytes, more than the limit of {max_bytes}");
            return Err(problem(claim));
        }
        if header.kind != DICTIONARY {
            values = values.saturating_add(size.data_values);
        }
        if values > chunk.rows {
            let (found, rows) = (size.data_values, chunk.rows);
            return Err(problem(format!(
                "has {found} values, which are more than the {rows} rows of its group"
            )));
        }
        at = at.saturating_add(length).saturating_add(size.compressed_bytes);
    }
    Ok(())
}

/// The claims of a page header, as plausible numbers.
struct PageSize {
    uncompressed_bytes: u64,
    compressed_bytes: u64,
    /// The values of a data page; 0 for other pages.
    data_values: u64,
}

/// Checks one page header.
fn check_page(header: &PageHeader) -> ParseResult<PageSize> {
    let PageHeader { kind, uncompressed_bytes, compressed_bytes, values, encoding } = *header;
    let Ok(compressed_bytes) = u64::try_from(compressed_bytes) else {
        return Err(format!("has {compressed_bytes} bytes"));
    };
    let (Ok(uncompressed), Ok(count)) = (u64::try_from(uncompressed_bytes), u64::try_from(values)) else {
        return Err(format!("has {values} values in {uncompressed_bytes} bytes"));
    };
    let is_data = matches!(kind, DATA | DATA_V2);
    // A value takes at least four bytes: a number, or its own length.
    if kind == DICTIONARY && count.saturating_mul(4) > uncompressed {
        return Err(format!("is a dictionary of {count} values in {uncompressed} bytes"));
    }
    if let (true, Some((_, name))) =
        (is_data, REFUSED.iter().find(|(refused, _)| *refused as i32 == encoding))
    {
        return Err(format!("is encoded as {name}; PLAIN or a dictionary can be read"));
    }
    let data_values = if is_data { count } else { 0 };
    Ok(PageSize { uncompressed_bytes: uncompressed, compressed_bytes, data_values })
}

/// Reads the page header at byte `at` of a file. Returns it and its length.
fn read_header(file: &mut File, at: u64, end: u64) -> Option<(PageHeader, u64)> {
    // A header has some tens of bytes, and more with the statistics of its values.
    let mut length = 4096;
    loop {
        file.seek(SeekFrom::Start(at)).ok()?;
        let mut bytes = Vec::new();
        (&*file).take(length.min(end - at)).read_to_end(&mut bytes).ok()?;
        let mut reader = CompactReader::new(&bytes);
        if let Some(header) = parse_header(&mut reader) {
            return Some((header, reader.position() as u64));
        }
        if length >= end - at {
            return None;
        }
        length *= 8;
    }
}

/// Parses a page header.
fn parse_header(reader: &mut CompactReader<'_>) -> Option<PageHeader> {
    let mut header = PageHeader::default();
    reader.fields(|reader, field: Field| {
        match field.id {
            1 => header.kind = reader.number(field)?,
            2 => header.uncompressed_bytes = reader.number(field)?,
            3 => header.compressed_bytes = reader.number(field)?,
            5 | 7 | 8 if field.is_struct() => parse_kind(reader, field.id, &mut header)?,
            _ => reader.skip(field)?,
        }
        Some(())
    })?;
    Some(header)
}

/// Parses the part of a page header that depends on its kind: field 5 for data, 7 for a dictionary, 8 for data of
/// version 2.
fn parse_kind(reader: &mut CompactReader<'_>, kind: i16, header: &mut PageHeader) -> Option<()> {
    // The number of values is field 1. The encoding is field 2, or field 4 after the numbers of nulls and rows.
    let encoding = if kind == 8 { 4 } else { 2 };
    reader.fields(|reader, field| {
        match field.id {
            1 => header.values = reader.number(field)?,
            id if id == encoding => header.encoding = reader.number(field)?,
            _ => reader.skip(field)?,
        }
        Some(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parquet::thrift::testing::{file_of, numbers};

    /// A page of `bytes` uncompressed bytes with the fields of its kind.
    fn page(kind: i32, bytes: i32, field: u8, inner: &[(u8, i32)]) -> Vec<u8> {
        let head = numbers(&[(1, kind), (1, bytes), (1, 10)]);
        let inner = numbers(inner);
        [&head[..], &[(field - 3) << 4 | 12], &inner, &[0, 0], &[7; 10]].concat()
    }

    fn checked(pages: &[Vec<u8>], rows: u64) -> ParseResult<()> {
        let bytes = pages.concat();
        let chunk = ColumnChunk { begin: 0, end: bytes.len() as u64, rows };
        check_pages(&mut file_of(&bytes), chunk, 1000)
    }

    #[test]
    fn pages_that_claim_too_much_are_refused_and_others_pass() {
        let dictionary = |values| page(DICTIONARY, 40, 7, &[(1, values), (1, 0)]);
        let data =
            |values, bytes, encoding| page(DATA, bytes, 5, &[(1, values), (1, encoding), (1, 3), (1, 3)]);
        let data_2 =
            |values, encoding| page(DATA_V2, 20, 8, &[(1, values), (1, 0), (1, values), (1, encoding)]);
        assert_eq!(checked(&[dictionary(10), data(3, 900, 8), data_2(4, 0)], 7), Ok(()));
        // Bytes after the last row are not read.
        assert_eq!(checked(&[data(3, 10, 0), vec![0xff; 20]], 3), Ok(()));
        for (pages, rows, expected) in [
            (vec![dictionary(11)], 7, "byte 0 is a dictionary of 11 values in 40 bytes"),
            (vec![dictionary(1 << 28)], 7, "268435456 values"),
            (vec![data(3, 10, 0), data(5, 10, 0)], 7, "has 5 values, which are more than the 7 rows"),
            (vec![data_2(8, 0)], 7, "has 8 values"),
            (
                vec![data(1, 600, 0), data(1, 401, 0)],
                7,
                "would expand its column to 1001 bytes, more than the limit of 1000",
            ),
            (vec![data(1, -1, 0)], 7, "1 values in -1 bytes"),
            (vec![data(-1, 1, 0)], 7, "-1 values in 1 bytes"),
            (vec![data(1, 10, 6)], 7, "is encoded as DELTA_LENGTH_BYTE_ARRAY; PLAIN or"),
            (vec![data_2(1, 7)], 7, "is encoded as DELTA_BYTE_ARRAY"),
            (vec![data(3, 10, 0), vec![0xff; 20]], 7, "has no readable header"),
            (vec![vec![0x15; 3]], 7, "byte 0 has no readable header"),
        ] {
            let problem = checked(&pages, rows).expect_err(expected);
            assert!(problem.contains(expected), "{problem}");
        }
        // A header longer than the first read, by a text that is skipped.
        let mut long = numbers(&[(1, DATA), (1, 10), (1, 10)]);
        long.extend([0x18, 0xd0, 0x86, 0x03]);
        long.extend(vec![b'x'; 50_000]);
        long.extend([0x1c, 0x15, 6, 0, 0]);
        long.extend([7; 10]);
        assert_eq!(checked(&[long, data(1, 10, 0)], 4), Ok(()));
    }
}

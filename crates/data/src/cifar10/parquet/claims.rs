//! What a file says of itself, looked at before its reader makes room for it.
//!
//! A page is uncompressed into as many bytes as its head says, a dictionary has as many values, a node of the schema as many
//! children, and a row takes no bits at all where many are alike: a few hundred bytes could ask for gigabytes.
//!
//! Source: the file format and `parquet.thrift` of Apache Parquet.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use parquet::basic::Encoding;

use super::thrift::{Field, Walk};

/// What a file of so many bytes may become.
#[derive(Debug, Clone, Copy)]
pub(super) struct Allowance {
    /// Bytes of each column, and of all images.
    pub(super) bytes: u64,
    pub(super) rows: u64,
}

impl Allowance {
    /// That of a file. Compressed images compress no further, and few are in a file more than once.
    pub(super) fn of(file_bytes: u64) -> Self {
        Self {
            bytes: file_bytes.saturating_mul(256).saturating_add(8 << 20),
            rows: file_bytes.saturating_mul(16).saturating_add(1 << 15),
        }
    }
}

/// How deep a schema may be.
const DEEPEST: usize = 100;

/// Bytes at the end of a file: the length of what is before them, and who has written it.
const TAIL: u64 = 8;

/// Checks the schema at the end of a file of so many bytes.
///
/// # Errors
/// What is wrong with it. A file that does not end in metadata is left to the reader, whose error says more.
pub(super) fn check_schema(file: &mut File, there: u64) -> Result<(), String> {
    let Some(metadata) = metadata_of(file, there) else { return Ok(()) };
    let mut problem = None;
    let walked = Walk::new(&metadata).fields(|walk, field| {
        if field.id != 2 || !field.is_list() {
            return walk.skip(field);
        }
        let (count, of) = walk.list()?;
        // The children that are still to come of each node that an element lies in.
        let mut open: Vec<u64> = Vec::new();
        for element in 0..count {
            if !of.is_struct() {
                return None;
            }
            let mut children = 0;
            walk.fields(|walk, field| {
                if field.id != 5 {
                    return walk.skip(field);
                }
                children = walk.number(field)?;
                Some(())
            })?;
            while open.last() == Some(&0) {
                open.pop();
            }
            if let Some(of_parent) = open.last_mut() {
                *of_parent -= 1;
            }
            let left = count - element - 1;
            match u64::try_from(children) {
                Ok(children) if children > left => {
                    problem =
                        Some(format!("element {element} of its schema has {children} children of {left}"));
                }
                Err(_) => problem = Some(format!("element {element} of its schema has {children} children")),
                Ok(children) => open.push(children),
            }
            if open.len() > DEEPEST {
                problem = Some(format!("its schema is more than {DEEPEST} deep"));
            }
            if problem.is_some() {
                return None;
            }
        }
        Some(())
    });
    match (problem, walked) {
        (Some(problem), _) => Err(problem),
        (None, Some(())) => Ok(()),
        (None, None) => Err(format!("its {} bytes of metadata are damaged", metadata.len())),
    }
}

fn metadata_of(file: &mut File, there: u64) -> Option<Vec<u8>> {
    let tail = there.checked_sub(TAIL)?;
    file.seek(SeekFrom::Start(tail)).ok()?;
    let mut bytes = [0; TAIL as usize];
    file.read_exact(&mut bytes).ok()?;
    if &bytes[4..] != b"PAR1" {
        return None;
    }
    let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    file.seek(SeekFrom::Start(tail.checked_sub(u64::from(length))?)).ok()?;
    let mut metadata = vec![0; length as usize];
    file.read_exact(&mut metadata).ok()?;
    Some(metadata)
}

/// What the head of a page says.
#[derive(Debug, Default)]
struct Page {
    kind: i32,
    uncompressed: i32,
    compressed: i32,
    values: i32,
    encoding: i32,
}

/// Kinds of pages.
const DATA: i32 = 0;
const DICTIONARY: i32 = 2;
const DATA_2: i32 = 3;

/// The head that begins here.
fn head(walk: &mut Walk<'_>) -> Option<Page> {
    let mut page = Page::default();
    walk.fields(|walk, field: Field| {
        match field.id {
            1 => page.kind = walk.number(field)?,
            2 => page.uncompressed = walk.number(field)?,
            3 => page.compressed = walk.number(field)?,
            5 | 7 | 8 if field.is_struct() => {
                // Values come first, and the encoding second, unless nulls and rows are before it.
                let encoding = if field.id == 8 { 4 } else { 2 };
                walk.fields(|walk, field| {
                    match field.id {
                        1 => page.values = walk.number(field)?,
                        id if id == encoding => page.encoding = walk.number(field)?,
                        _ => walk.skip(field)?,
                    }
                    Some(())
                })?;
            }
            _ => walk.skip(field)?,
        }
        Some(())
    })?;
    Some(page)
}

/// Checks the pages of a column that lies in these bytes of a file and has so many rows.
///
/// # Errors
/// What is wrong with them.
pub(super) fn check_pages(
    file: &mut File,
    (mut at, end): (u64, u64),
    rows: u64,
    most: u64,
) -> Result<(), String> {
    let (mut found, mut bytes) = (0_u64, 0_u64);
    while at < end && found < rows {
        let say = |problem: String| Err(format!("the page at byte {at} {problem}"));
        let Some((page, length)) = head_at(file, at, end) else {
            return say("has no head that can be read".to_owned());
        };
        let Ok(compressed) = u64::try_from(page.compressed) else {
            return say(format!("has {} bytes", page.compressed));
        };
        let (Ok(uncompressed), Ok(values)) = (u64::try_from(page.uncompressed), u64::try_from(page.values))
        else {
            return say(format!("has {} values in {} bytes", page.values, page.uncompressed));
        };
        bytes = bytes.saturating_add(uncompressed);
        if bytes > most {
            return say(format!(
                "would make {bytes} bytes of its column, more than the {most} of such a file"
            ));
        }
        match page.kind {
            // No value is shorter than a number of four bytes, or its own length.
            DICTIONARY if values.saturating_mul(4) > uncompressed => {
                return say(format!("is a dictionary of {values} values in {uncompressed} bytes"));
            }
            DATA | DATA_2 => {
                found = found.saturating_add(values);
                if found > rows {
                    return say(format!(
                        "has {values} values, which are more than the {rows} rows of its group"
                    ));
                }
                // Numbers in these pages say how many lengths are to come, and the reader believes them.
                let told = Encoding::DELTA_LENGTH_BYTE_ARRAY as i32;
                if page.encoding == told || page.encoding == Encoding::DELTA_BYTE_ARRAY as i32 {
                    let which =
                        if page.encoding == told { "DELTA_LENGTH_BYTE_ARRAY" } else { "DELTA_BYTE_ARRAY" };
                    return say(format!("is encoded as {which}; PLAIN or a dictionary can be read"));
                }
            }
            _ => {}
        }
        at = at.saturating_add(length).saturating_add(compressed);
    }
    Ok(())
}

/// The head of a page at a byte of a file, and its length.
fn head_at(file: &mut File, at: u64, end: u64) -> Option<(Page, u64)> {
    // A head has some tens of bytes, and more if it says which values are the least and the greatest.
    let mut length = 4096;
    loop {
        file.seek(SeekFrom::Start(at)).ok()?;
        let mut bytes = Vec::new();
        (&*file).take(length.min(end - at)).read_to_end(&mut bytes).ok()?;
        let mut walk = Walk::new(&bytes);
        if let Some(page) = head(&mut walk) {
            return Some((page, walk.passed() as u64));
        }
        if length >= end - at {
            return None;
        }
        length *= 8;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("room");
        file
    }

    /// A number, zigzag and in groups of seven bits.
    fn number(number: i32) -> Vec<u8> {
        let mut left = ((number << 1) ^ (number >> 31)).cast_unsigned();
        let mut bytes = Vec::new();
        while left > 0x7f {
            bytes.push(left as u8 | 0x80);
            left >>= 7;
        }
        bytes.push(left as u8);
        bytes
    }

    /// The fields of a structure that are numbers, by how far each is behind the one before it.
    fn numbers(fields: &[(u8, i32)]) -> Vec<u8> {
        fields.iter().flat_map(|(step, value)| [vec![step << 4 | INT], number(*value)].concat()).collect()
    }

    const INT: u8 = 5;

    /// A page of so many bytes, all of them its body, with the fields of its kind.
    fn page(kind: i32, bytes: i32, field: u8, inner: &[(u8, i32)]) -> Vec<u8> {
        let head = numbers(&[(1, kind), (1, bytes), (1, 10)]);
        let inner = numbers(inner);
        [&head[..], &[(field - 3) << 4 | 12], &inner, &[0, 0], &[7; 10]].concat()
    }

    fn checked(pages: &[Vec<u8>], rows: u64) -> Result<(), String> {
        let bytes = pages.concat();
        check_pages(&mut file_of(&bytes), (0, bytes.len() as u64), rows, 1000)
    }

    #[test]
    fn pages_that_claim_too_much_are_refused_and_others_pass() {
        let dictionary = |values| page(DICTIONARY, 40, 7, &[(1, values), (1, 0)]);
        let data =
            |values, bytes, encoding| page(DATA, bytes, 5, &[(1, values), (1, encoding), (1, 3), (1, 3)]);
        let data_2 =
            |values, encoding| page(DATA_2, 20, 8, &[(1, values), (1, 0), (1, values), (1, encoding)]);
        assert_eq!(checked(&[dictionary(10), data(3, 900, 8), data_2(4, 0)], 7), Ok(()));
        // What follows the last row is not read.
        assert_eq!(checked(&[data(3, 10, 0), vec![0xff; 20]], 3), Ok(()));
        for (pages, rows, expected) in [
            (vec![dictionary(11)], 7, "byte 0 is a dictionary of 11 values in 40 bytes"),
            (vec![dictionary(1 << 28)], 7, "268435456 values"),
            (vec![data(3, 10, 0), data(5, 10, 0)], 7, "has 5 values, which are more than the 7 rows"),
            (vec![data_2(8, 0)], 7, "has 8 values"),
            (
                vec![data(1, 600, 0), data(1, 401, 0)],
                7,
                "would make 1001 bytes of its column, more than the 1000",
            ),
            (vec![data(1, -1, 0)], 7, "1 values in -1 bytes"),
            (vec![data(-1, 1, 0)], 7, "-1 values in 1 bytes"),
            (vec![data(1, 10, 6)], 7, "is encoded as DELTA_LENGTH_BYTE_ARRAY; PLAIN or"),
            (vec![data_2(1, 7)], 7, "is encoded as DELTA_BYTE_ARRAY"),
            (vec![data(3, 10, 0), vec![0xff; 20]], 7, "has no head that can be read"),
            (vec![vec![0x15; 3]], 7, "byte 0 has no head"),
        ] {
            let problem = checked(&pages, rows).expect_err(expected);
            assert!(problem.contains(expected), "{problem}");
        }
        // A head that is longer than what is read of it at first, by a text that is passed over.
        let mut long = numbers(&[(1, DATA), (1, 10), (1, 10)]);
        long.extend([0x18, 0xd0, 0x86, 0x03]);
        long.extend(vec![b'x'; 50_000]);
        long.extend([0x1c, 0x15, 6, 0, 0]);
        long.extend([7; 10]);
        assert_eq!(checked(&[long, data(1, 10, 0)], 4), Ok(()));
    }

    /// A file with a schema of elements that have so many children.
    fn schema(children: &[i32]) -> Vec<u8> {
        let mut metadata = numbers(&[(1, 1)]);
        metadata.extend([0x19, 0xfc]);
        metadata.push(children.len() as u8);
        for children in children {
            metadata.extend([0x48, 1, b'x']);
            metadata.extend(numbers(&[(1, *children)]));
            metadata.push(0);
        }
        metadata.push(0);
        let length = (metadata.len() as u32).to_le_bytes();
        [b"PAR1", &metadata[..], &length, b"PAR1"].concat()
    }

    #[test]
    fn schemas_with_children_that_are_not_there_are_refused() {
        let checked = |bytes: &[u8]| check_schema(&mut file_of(bytes), bytes.len() as u64);
        assert_eq!(checked(&schema(&[3, 0, 1, 0, 0])), Ok(()));
        for (children, expected) in [
            (&[1 << 30, 0][..], "element 0 of its schema has 1073741824 children of 1"),
            (&[2, 0, 1], "element 2 of its schema has 1 children of 0"),
            (&[-1], "has -1 children"),
            (&[1; 110], "more than 100 deep"),
        ] {
            let problem = checked(&schema(children)).expect_err(expected);
            assert!(problem.contains(expected), "{problem}");
        }
        // The reader says what is wrong with a file that is none; what is damaged further inside is said here.
        assert_eq!(checked(b"no table"), Ok(()));
        assert_eq!(checked(b""), Ok(()));
        let mut damaged = schema(&[1, 0]);
        damaged[4] = 0x16;
        damaged[6] = 0xf0;
        assert!(checked(&damaged).is_err_and(|problem| problem.contains("bytes of metadata are damaged")));
    }
}

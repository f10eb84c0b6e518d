//! Checks the schema of a file before the parquet crate parses it.
//!
//! The crate allocates as many children as a schema node claims, and recurses as deep as the schema nests: a few hundred
//! bytes could claim gigabytes or overflow the stack.
//!
//! Source: the file format and `parquet.thrift` of Apache Parquet.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use super::thrift::CompactReader;
use crate::error::ParseResult;

/// The deepest accepted schema.
const MAX_DEPTH: usize = 100;

/// The length of the footer: the length of the metadata and the magic number.
const FOOTER: u64 = 8;

/// Field ids in `FileMetaData` and `SchemaElement`.
const SCHEMA: i16 = 2;
const NUM_CHILDREN: i16 = 5;

/// Checks the schema of a file of `file_bytes` bytes.
///
/// # Errors
/// A description of the problem. A file without a footer passes: the parquet crate reports it better.
pub(super) fn check_schema(file: &mut File, file_bytes: u64) -> ParseResult<()> {
    let Some(metadata) = read_metadata(file, file_bytes) else { return Ok(()) };
    let mut checked = Ok(());
    let parsed = CompactReader::new(&metadata).fields(|reader, field| {
        if field.id != SCHEMA || !field.is_list() {
            return reader.skip(field);
        }
        checked = check_tree(&child_counts(reader)?);
        checked.is_ok().then_some(())
    });
    checked?;
    parsed.ok_or_else(|| format!("its {} bytes of metadata are damaged", metadata.len()))
}

/// Reads the number of children of each element in a list of schema elements.
fn child_counts(reader: &mut CompactReader<'_>) -> Option<Vec<i32>> {
    let (count, kind) = reader.list()?;
    let mut counts = Vec::new();
    for _ in 0..count {
        if !kind.is_struct() {
            return None;
        }
        let mut children = 0;
        reader.fields(|reader, field| {
            if field.id != NUM_CHILDREN {
                return reader.skip(field);
            }
            children = reader.number(field)?;
            Some(())
        })?;
        counts.push(children);
    }
    Some(counts)
}

/// Checks that a tree, given by the number of children of each node in depth-first order, is complete and not too deep.
fn check_tree(counts: &[i32]) -> ParseResult<()> {
    // The missing children of each ancestor of the current node.
    let mut open: Vec<u64> = Vec::new();
    for (element, &children) in counts.iter().enumerate() {
        while open.last() == Some(&0) {
            open.pop();
        }
        if let Some(missing) = open.last_mut() {
            *missing -= 1;
        }
        let left = counts.len() - element - 1;
        match u64::try_from(children) {
            Ok(children) if children <= left as u64 => open.push(children),
            Ok(_) => {
                return Err(format!("element {element} of its schema has {children} children of {left}"));
            }
            Err(_) => return Err(format!("element {element} of its schema has {children} children")),
        }
        if open.len() > MAX_DEPTH {
            return Err(format!("its schema is more than {MAX_DEPTH} deep"));
        }
    }
    Ok(())
}

/// Reads the metadata at the end of a file; `None` if the file has none.
fn read_metadata(file: &mut File, file_bytes: u64) -> Option<Vec<u8>> {
    let footer = file_bytes.checked_sub(FOOTER)?;
    file.seek(SeekFrom::Start(footer)).ok()?;
    let mut bytes = [0; FOOTER as usize];
    file.read_exact(&mut bytes).ok()?;
    if &bytes[4..] != b"PAR1" {
        return None;
    }
    let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    file.seek(SeekFrom::Start(footer.checked_sub(u64::from(length))?)).ok()?;
    let mut metadata = vec![0; length as usize];
    file.read_exact(&mut metadata).ok()?;
    Some(metadata)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parquet::thrift::testing::{file_of, numbers};

    /// A file whose schema elements have these numbers of children.
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
    fn schemas_with_missing_children_are_refused() {
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
        // The parquet crate reports a file without a footer; damaged metadata is reported here.
        assert_eq!(checked(b"no table"), Ok(()));
        assert_eq!(checked(b""), Ok(()));
        let mut damaged = schema(&[1, 0]);
        damaged[4] = 0x16;
        damaged[6] = 0xf0;
        assert!(checked(&damaged).is_err_and(|problem| problem.contains("bytes of metadata are damaged")));
    }
}

//! A reader of Thrift's compact protocol that extracts numbers and skips everything else without allocating.
//!
//! It is strict: anything that a lenient reader might interpret differently, such as a field id that overflows, is an
//! error.
//!
//! Source: the specification of the Apache Thrift compact protocol.

/// The types of fields.
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const SHORT: u8 = 4;
const INT: u8 = 5;
const LONG: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const MAP: u8 = 11;
const STRUCT: u8 = 12;
const UUID: u8 = 13;

/// The deepest accepted nesting.
const DEEPEST: usize = 64;

/// A field of a structure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub(super) id: i16,
    kind: u8,
}

impl Field {
    /// True for a structure.
    pub(super) fn is_struct(self) -> bool {
        self.kind == STRUCT
    }

    /// True for a list.
    pub(super) fn is_list(self) -> bool {
        self.kind == LIST
    }
}

/// A position in Thrift-encoded bytes. Every function returns `None` if the bytes end early or are malformed.
#[derive(Debug)]
pub(super) struct CompactReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> CompactReader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The number of bytes read so far.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn pass(&mut self, count: u64) -> Option<()> {
        let end = self.at.checked_add(usize::try_from(count).ok()?)?;
        self.at = (end <= self.bytes.len()).then_some(end)?;
        Some(())
    }

    fn unsigned(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn signed(&mut self) -> Option<i64> {
        let number = self.unsigned()?;
        Some((number >> 1).cast_signed() ^ -(number & 1).cast_signed())
    }

    /// Reads a field of type i32.
    pub(super) fn number(&mut self, field: Field) -> Option<i32> {
        if field.kind == INT { i32::try_from(self.signed()?).ok() } else { None }
    }

    /// Reads a structure. Calls `each` with every field, which it must read or skip; `None` ends the reading.
    pub(super) fn fields(&mut self, mut each: impl FnMut(&mut Self, Field) -> Option<()>) -> Option<()> {
        let mut id = 0_i16;
        loop {
            let head = self.byte()?;
            if head == 0 {
                return Some(());
            }
            id = match head >> 4 {
                0 => i16::try_from(self.signed()?).ok()?,
                step => id.checked_add(i16::from(step))?,
            };
            each(self, Field { id, kind: head & 0x0f })?;
        }
    }

    /// Reads the head of a list. Returns the number of entries and their type.
    pub(super) fn list(&mut self) -> Option<(u64, Field)> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.unsigned()?,
            count => u64::from(count),
        };
        Some((count, Field { id: 0, kind: head & 0x0f }))
    }

    /// Skips a field of a structure.
    pub(super) fn skip(&mut self, field: Field) -> Option<()> {
        // The type of a boolean field is its value.
        if matches!(field.kind, TRUE | FALSE) { Some(()) } else { self.skip_kind(field.kind, 0) }
    }

    fn skip_kind(&mut self, kind: u8, depth: usize) -> Option<()> {
        if depth > DEEPEST {
            return None;
        }
        match kind {
            TRUE | FALSE | BYTE => self.pass(1),
            SHORT..=LONG => self.unsigned().map(drop),
            DOUBLE => self.pass(8),
            UUID => self.pass(16),
            BINARY => {
                let length = self.unsigned()?;
                self.pass(length)
            }
            LIST | SET => {
                let (count, of) = self.list()?;
                (0..count).try_for_each(|_| self.skip_kind(of.kind, depth + 1))
            }
            MAP => {
                let count = self.unsigned()?;
                let kinds = if count > 0 { self.byte()? } else { 0 };
                (0..count).try_for_each(|_| {
                    self.skip_kind(kinds >> 4, depth + 1)?;
                    self.skip_kind(kinds & 0x0f, depth + 1)
                })
            }
            STRUCT => self.fields(|reader, field| {
                if matches!(field.kind, TRUE | FALSE) {
                    return Some(());
                }
                reader.skip_kind(field.kind, depth + 1)
            }),
            _ => None,
        }
    }
}

/// Encoders for the tests of this folder.
#[cfg(test)]
pub(super) mod testing {
    use std::fs::File;
    use std::io::Write;

    pub(in crate::parquet) fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(bytes).expect("room");
        file
    }

    /// Encodes a number: zigzag, in groups of seven bits.
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

    /// Encodes i32 fields. Each has the distance of its id from the one before.
    pub(in crate::parquet) fn numbers(fields: &[(u8, i32)]) -> Vec<u8> {
        fields
            .iter()
            .flat_map(|(step, value)| [vec![step << 4 | super::INT], number(*value)].concat())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_and_other_fields_are_skipped() {
        // Field 1: 300; field 2: a list of two texts; field 20: a structure of a boolean and a map; field 21: -2.
        let bytes = [
            0x15, 0xd8, 0x04, 0x19, 0x28, 1, b'a', 2, b'b', b'c', 0x0c, 40, 0x11, 0x1b, 1, 0x38, 7, 1, b'z',
            0, 0x15, 3, 0,
        ];
        let mut found = Vec::new();
        let mut reader = CompactReader::new(&bytes);
        let parsed = reader.fields(|reader, field| {
            if matches!(field.id, 1 | 21) {
                found.push((field.id, reader.number(field)?));
                return Some(());
            }
            assert_eq!((field.is_list(), field.is_struct()), (field.id == 2, field.id == 20));
            reader.skip(field)
        });
        assert_eq!((parsed, reader.position(), found), (Some(()), bytes.len(), vec![(1, 300), (21, -2)]));
        for end in 0..bytes.len() {
            let ended = CompactReader::new(&bytes[..end]).fields(CompactReader::skip);
            assert_eq!(ended, None, "{end} bytes are not a whole structure");
        }
        // Structures nested without end.
        assert_eq!(CompactReader::new(&[0x1c; 1000]).fields(CompactReader::skip), None);
        // A field id that overflows, and a number of more than ten bytes.
        assert_eq!(CompactReader::new(&[0xf5, 0].repeat(3000)).fields(CompactReader::skip), None);
        assert_eq!(CompactReader::new(&[0x15, 0xff].repeat(12)).fields(CompactReader::skip), None);
    }
}

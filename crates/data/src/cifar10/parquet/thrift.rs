//! Thrift's compact protocol, as far as the numbers of a structure can be looked at before anybody believes them.
//!
//! Nothing is kept or made: what is read stays where it is. Whatever a lenient reader might take for something else, such as numbers
//! of fields that overflow, is no Thrift here.
//!
//! Source: the specification of the Apache Thrift compact protocol.

/// Kinds of fields.
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

/// How deep structures may lie in each other.
const DEEPEST: usize = 64;

/// A field of a structure.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub(super) id: i16,
    kind: u8,
}

impl Field {
    /// Whether it is a structure.
    pub(super) fn is_struct(self) -> bool {
        self.kind == STRUCT
    }

    /// Whether it is a list.
    pub(super) fn is_list(self) -> bool {
        self.kind == LIST
    }
}

/// A place in bytes. Whatever ends early or is no Thrift is `None`, from every function.
#[derive(Debug)]
pub(super) struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Walk<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// How many bytes have been passed.
    pub(super) fn passed(&self) -> usize {
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

    /// The number of 32 bits that a field is; nothing if it is something else.
    pub(super) fn number(&mut self, field: Field) -> Option<i32> {
        if field.kind == INT { i32::try_from(self.signed()?).ok() } else { None }
    }

    /// Calls `each` with every field of the structure that begins here. It has to pass the field, and says `None` to end everything.
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

    /// How many entries the list that begins here has, and what kind they are of.
    pub(super) fn list(&mut self) -> Option<(u64, Field)> {
        let head = self.byte()?;
        let count = match head >> 4 {
            15 => self.unsigned()?,
            count => u64::from(count),
        };
        Some((count, Field { id: 0, kind: head & 0x0f }))
    }

    /// Passes a field of a structure.
    pub(super) fn skip(&mut self, field: Field) -> Option<()> {
        // The truth of a field is in its head.
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
            STRUCT => self.fields(|walk, field| {
                if matches!(field.kind, TRUE | FALSE) {
                    return Some(());
                }
                walk.skip_kind(field.kind, depth + 1)
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_and_all_else_is_passed() {
        // Field 1: 300; field 2: a list of two texts; field 20: a structure of a truth and a map; field 21: -2.
        let bytes = [
            0x15, 0xd8, 0x04, 0x19, 0x28, 1, b'a', 2, b'b', b'c', 0x0c, 40, 0x11, 0x1b, 1, 0x38, 7, 1, b'z',
            0, 0x15, 3, 0,
        ];
        let mut found = Vec::new();
        let mut walk = Walk::new(&bytes);
        let walked = walk.fields(|walk, field| {
            if matches!(field.id, 1 | 21) {
                found.push((field.id, walk.number(field)?));
                return Some(());
            }
            assert_eq!((field.is_list(), field.is_struct()), (field.id == 2, field.id == 20));
            walk.skip(field)
        });
        assert_eq!((walked, walk.passed(), found), (Some(()), bytes.len(), vec![(1, 300), (21, -2)]));
        for end in 0..bytes.len() {
            let ended = Walk::new(&bytes[..end]).fields(Walk::skip);
            assert_eq!(ended, None, "{end} bytes are no whole structure");
        }
        // A structure in a structure, without end.
        assert_eq!(Walk::new(&[0x1c; 1000]).fields(Walk::skip), None);
        // Fields whose number overflows, and a number of ten bytes and more.
        assert_eq!(Walk::new(&[0xf5, 0].repeat(3000)).fields(Walk::skip), None);
        assert_eq!(Walk::new(&[0x15, 0xff].repeat(12)).fields(Walk::skip), None);
    }
}

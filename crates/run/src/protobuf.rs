//! An encoder of Protocol Buffers messages, for TensorBoard's event files and for ONNX.

/// A message under construction.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message(Vec<u8>);

impl Message {
    /// Creates an empty message.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the encoded bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Adds an integer.
    #[must_use]
    pub fn varint(mut self, field: u32, value: u64) -> Self {
        self.key(field, 0);
        self.number(value);
        self
    }

    /// Adds a `double`.
    #[must_use]
    pub fn double(mut self, field: u32, value: f64) -> Self {
        self.key(field, 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Adds a `float`.
    #[must_use]
    pub fn float(mut self, field: u32, value: f32) -> Self {
        self.key(field, 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// Adds bytes or a string.
    #[must_use]
    pub fn bytes(mut self, field: u32, value: &[u8]) -> Self {
        self.key(field, 2);
        self.number(value.len() as u64);
        self.0.extend(value);
        self
    }

    /// Adds a message.
    #[must_use]
    pub fn message(self, field: u32, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }

    fn key(&mut self, field: u32, kind: u32) {
        self.number(u64::from(field << 3 | kind));
    }

    /// Writes a varint: seven bits a byte, the lowest first.
    fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// A decoded field: an integer, or the bytes of any other type.
#[cfg(test)]
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Field {
    pub(crate) number: u64,
    pub(crate) varint: u64,
    pub(crate) bytes: Vec<u8>,
}

/// The fields of a message, in their order; `None` if it is none.
#[cfg(test)]
pub(crate) fn fields(mut bytes: &[u8]) -> Option<Vec<Field>> {
    fn varint(bytes: &mut &[u8]) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let (first, rest) = bytes.split_first()?;
            *bytes = rest;
            value |= u64::from(first & 0x7f) << shift;
            if first & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes)?;
        let mut field = Field { number: key >> 3, ..Field::default() };
        let length = match key & 7 {
            0 => {
                field.varint = varint(&mut bytes)?;
                0
            }
            1 => 8,
            2 => usize::try_from(varint(&mut bytes)?).ok()?,
            5 => 4,
            _ => return None,
        };
        field.bytes = bytes.get(..length)?.to_vec();
        bytes = &bytes[length..];
        found.push(field);
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_the_specification() {
        // https://protobuf.dev/programming-guides/encoding: field 1 = 150, field 2 = "testing", field 3 = { field 1 = 150 }
        let number = Message::new().varint(1, 150);
        assert_eq!(number.0, [0x08, 0x96, 0x01]);
        assert_eq!(Message::new().bytes(2, b"testing").0, b"\x12\x07testing");
        assert_eq!(Message::new().message(3, &number).0, [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(Message::new().float(1, 1.0).0, [0x0d, 0, 0, 0x80, 0x3f]);
        assert_eq!(Message::new().double(1, 1.0).0, [0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
        let large = Message::new().varint(20, u64::MAX).into_bytes();
        assert_eq!(
            fields(&large).expect("a message")[0],
            Field { number: 20, varint: u64::MAX, bytes: vec![] }
        );
        assert_eq!(fields(&large[..5]), None);
    }
}

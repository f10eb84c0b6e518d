//! Reads the wire format of protocol buffers.

/// The value of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Field<'a> {
    /// A varint: an integer, a boolean or an enumeration.
    Number(u64),
    /// Four bytes: a float.
    Float(f32),
    /// Bytes with a length: a string or a message.
    Bytes(&'a [u8]),
    /// Eight bytes, which no field of these messages has.
    Other,
}

/// Calls `take` with the number and the value of each field of a message.
pub(super) fn fields<'a>(
    message: &'a [u8],
    mut take: impl FnMut(u64, Field<'a>) -> Result<(), String>,
) -> Result<(), String> {
    let mut rest = message;
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        let field = match key & 7 {
            0 => Field::Number(varint(&mut rest)?),
            1 => {
                bytes(&mut rest, 8)?;
                Field::Other
            }
            2 => {
                let length = varint(&mut rest)?;
                Field::Bytes(bytes(&mut rest, usize::try_from(length).map_err(|_| cut_short())?)?)
            }
            5 => {
                let four = bytes(&mut rest, 4)?;
                Field::Float(f32::from_le_bytes([four[0], four[1], four[2], four[3]]))
            }
            kind => return Err(format!("not a protocol buffer: a field of kind {kind}")),
        };
        take(key >> 3, field)?;
    }
    Ok(())
}

fn varint(rest: &mut &[u8]) -> Result<u64, String> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (&byte, others) = rest.split_first().ok_or_else(cut_short)?;
        *rest = others;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err("not a protocol buffer: an integer of more than 64 bits".to_owned())
}

fn bytes<'a>(rest: &mut &'a [u8], length: usize) -> Result<&'a [u8], String> {
    let (taken, others) = rest.split_at_checked(length).ok_or_else(cut_short)?;
    *rest = others;
    Ok(taken)
}

fn cut_short() -> String {
    "not a protocol buffer, or cut short".to_owned()
}

//! Compiled gettext catalogues (`.mo`).
//!
//! Source: "The Format of GNU MO Files" in gettext's manual.

use super::TextPair;

/// The number at the beginning of a catalogue.
const MAGIC: u32 = 0x9504_12de;

/// A table of a catalogue: of each text, its length and its place.
struct Table<'a> {
    bytes: &'a [u8],
    at: usize,
    is_swapped: bool,
}

/// Reads a number of 32 bits.
fn number(bytes: &[u8], at: usize, is_swapped: bool) -> Result<usize, String> {
    let end = at.checked_add(4).filter(|end| *end <= bytes.len());
    let end = end.ok_or_else(|| format!("it is cut short: {} bytes, and byte {at} is read", bytes.len()))?;
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..end]);
    Ok(if is_swapped { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) } as usize)
}

impl<'a> Table<'a> {
    fn text(&self, index: usize) -> Result<&'a [u8], String> {
        let entry = index.checked_mul(8).and_then(|offset| offset.checked_add(self.at));
        let entry = entry.ok_or_else(|| format!("its table is at {}, which is out of range", self.at))?;
        let length = number(self.bytes, entry, self.is_swapped)?;
        let at = number(self.bytes, entry + 4, self.is_swapped)?;
        let end = at.checked_add(length).filter(|end| *end <= self.bytes.len());
        let end = end.ok_or_else(|| format!("text {index} of {length} bytes at {at} is beyond its end"))?;
        Ok(&self.bytes[at..end])
    }
}

/// The encodings of catalogues.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Charset {
    Utf8,
    Latin1,
    /// Latin 1 with eight other characters, such as the euro.
    Latin9,
}

/// The characters in which Latin 9 differs.
const LATIN9: [(u8, char); 8] =
    [(0xa4, '€'), (0xa6, 'Š'), (0xa8, 'š'), (0xb4, 'Ž'), (0xb8, 'ž'), (0xbc, 'Œ'), (0xbd, 'œ'), (0xbe, 'Ÿ')];

impl Charset {
    /// Reads the encoding from the header of a catalogue.
    fn of(header: &str) -> Result<Self, String> {
        let lowered = header.to_lowercase();
        let name = lowered.split("charset=").nth(1).unwrap_or("utf-8");
        let name = name.split_whitespace().next().unwrap_or("utf-8").trim_end_matches("\\n");
        match name {
            "utf-8" | "utf8" | "ascii" | "us-ascii" | "charset" => Ok(Self::Utf8),
            "iso-8859-1" => Ok(Self::Latin1),
            "iso-8859-15" => Ok(Self::Latin9),
            other => Err(format!("its encoding is {other}; known are utf-8, iso-8859-1 and iso-8859-15")),
        }
    }

    fn decode(self, bytes: &[u8]) -> Result<String, String> {
        let of_latin9 = |byte: u8| LATIN9.iter().find(|(known, _)| *known == byte).map(|(_, letter)| *letter);
        match self {
            Self::Utf8 => {
                String::from_utf8(bytes.to_vec()).map_err(|error| format!("a text is not UTF-8: {error}"))
            }
            Self::Latin1 => Ok(bytes.iter().map(|byte| char::from(*byte)).collect()),
            Self::Latin9 => {
                Ok(bytes.iter().map(|byte| of_latin9(*byte).unwrap_or_else(|| char::from(*byte))).collect())
            }
        }
    }
}

/// Reads the messages of a compiled catalogue, each with its translation. The header is left out, and the context in front of a
/// message. A message with a plural is two pairs where the language has two forms, and else one.
///
/// # Errors
/// If the bytes are no catalogue, are cut short, or are in another encoding than UTF-8, ISO-8859-1 or ISO-8859-15.
pub fn catalogue(bytes: &[u8]) -> Result<Vec<TextPair>, String> {
    let is_swapped = match number(bytes, 0, false)? as u32 {
        MAGIC => false,
        magic if magic.swap_bytes() == MAGIC => true,
        _ => return Err("no compiled catalogue of gettext".to_owned()),
    };
    let count = number(bytes, 8, is_swapped)?;
    let table = |place: usize| -> Result<Table<'_>, String> {
        Ok(Table { bytes, at: number(bytes, place, is_swapped)?, is_swapped })
    };
    let (messages, translations) = (table(12)?, table(16)?);
    if count > bytes.len() / 16 {
        return Err(format!("{count} messages do not fit into {} bytes", bytes.len()));
    }
    let mut charset = Charset::Utf8;
    let mut pairs = Vec::new();
    for index in 0..count {
        let (message, translation) = (messages.text(index)?, translations.text(index)?);
        if message.is_empty() {
            charset = Charset::of(&String::from_utf8_lossy(translation))?;
            continue;
        }
        let (message, translation) = (charset.decode(message)?, charset.decode(translation)?);
        let message = message.rsplit('\u{4}').next().unwrap_or_default();
        let (sources, targets): (Vec<&str>, Vec<&str>) =
            (message.split('\0').collect(), translation.split('\0').collect());
        let forms = if sources.len() == 2 && targets.len() == 2 { 2 } else { 1 };
        for (source, target) in sources.into_iter().zip(targets).take(forms) {
            pairs.push(TextPair { source: source.to_owned(), target: target.to_owned() });
        }
    }
    Ok(pairs)
}

//! Byte order marks at the start of texts: that of UTF-8 is skipped, and others name the encoding in the error.

use serde::de::DeserializeOwned;

/// The byte order mark of UTF-8.
const UTF_8: &[u8] = b"\xef\xbb\xbf";

/// Returns the bytes after a byte order mark of UTF-8.
///
/// # Errors
/// The encoding, if the mark is of another one.
pub fn without_mark(bytes: &[u8]) -> Result<&[u8], String> {
    let other = match bytes {
        // That of UTF-32 in little-endian order begins as that of UTF-16.
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => Some("UTF-32"),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => Some("UTF-16"),
        _ => None,
    };
    match other {
        Some(encoding) => Err(format!("{encoding} text; save the file as UTF-8")),
        None => Ok(bytes.strip_prefix(UTF_8).unwrap_or(bytes)),
    }
}

/// Parses JSON, with or without a byte order mark.
///
/// # Errors
/// The encoding, if it is not UTF-8, or the parser's message.
pub fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_slice(without_mark(bytes)?).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_skipped_or_named() {
        let parse = |bytes: &[u8]| parse_json::<Vec<u8>>(bytes);
        assert_eq!(parse(b"[1, 2]"), Ok(vec![1, 2]));
        assert_eq!(parse(b"\xef\xbb\xbf[1, 2]"), Ok(vec![1, 2]));
        let named = |bytes: &[u8]| parse(bytes).expect_err("not UTF-8");
        assert_eq!(named(b"\xff\xfe[\0"), "UTF-16 text; save the file as UTF-8");
        assert_eq!(named(b"\xfe\xff\0["), "UTF-16 text; save the file as UTF-8");
        assert_eq!(named(b"\xff\xfe\0\0[\0\0\0"), "UTF-32 text; save the file as UTF-8");
        assert!(named(b"[1,").contains("EOF"));
    }
}

//! Checks of a JPEG before it is decoded: decoders silently fill missing parts with grey.

use crate::error::ParseResult;

/// Checks that the image is complete and its colour space is known.
///
/// The segments before the image data are skipped, so the end of an embedded thumbnail is not mistaken for the end of
/// the image. Within the data, the byte 0xff is followed by 0xd9 only at the end.
pub(super) fn check(bytes: &[u8]) -> ParseResult<()> {
    let mut at = 2;
    let (mut components, mut by_adobe) = (0, false);
    let cut = || format!("truncated: its {} bytes end within the header", bytes.len());
    let data = loop {
        // Any number of 0xff may come before a marker.
        let begin = bytes[at.min(bytes.len())..].iter().position(|byte| *byte == 0xff).ok_or_else(cut)? + at;
        let marker_at = bytes[begin..].iter().position(|byte| *byte != 0xff).ok_or_else(cut)? + begin;
        let marker = bytes[marker_at];
        at = marker_at + 1;
        // Restart markers, TEM and a stuffed 0xff have no length.
        if matches!(marker, 0x00 | 0x01 | 0xd0..=0xd8) {
            continue;
        }
        if marker == 0xd9 {
            return Err("the file ends before the image data".to_owned());
        }
        let length = match bytes.get(at..at + 2) {
            Some(length) => usize::from(length[0]) << 8 | usize::from(length[1]),
            None => return Err(cut()),
        };
        let segment = bytes.get(at + 2..at + length.max(2)).ok_or_else(cut)?;
        at += length.max(2);
        match marker {
            0xda => break at,
            0xee if segment.starts_with(b"Adobe") => by_adobe = true,
            0xc0..=0xcf if !matches!(marker, 0xc4 | 0xc8 | 0xcc) => {
                components = segment.get(5).copied().unwrap_or(0);
            }
            _ => {}
        }
    };
    if components == 4 && !by_adobe {
        return Err(
            "CMYK without Adobe's marker, so it is unknown whether the values are inverted; convert the image to RGB"
                .to_owned(),
        );
    }
    let end = bytes[data..].windows(2).rposition(|pair| pair == [0xff, 0xd9]);
    end.map(|_| ()).ok_or_else(|| format!("truncated: no end of image within its {} bytes", bytes.len()))
}

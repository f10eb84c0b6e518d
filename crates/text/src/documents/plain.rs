//! Plain texts.

use std::io::Read as _;
use std::path::Path;

use phalanx_data::{DataError, Links, Result};

use super::Passage;

/// The bytes of a passage, about.
const PASSAGE: usize = 1 << 20;

/// Reads a file in passages. They are cut at the beginnings of lines that are not empty and not indented, where no tokenizer
/// joins characters.
pub(super) fn read(file: &Path, take: &mut dyn FnMut(Passage) -> Result<()>) -> Result<()> {
    let io = |error| DataError::io(file, error);
    let mut opened = Links::Follow.open(file).map_err(io)?;
    let (mut held, mut read, mut first) = (Vec::new(), 0_u64, true);
    loop {
        let more = (&mut opened).take(PASSAGE as u64).read_to_end(&mut held).map_err(io)?;
        if first {
            let mark = held.len()
                - phalanx_data::encoding::without_mark(&held)
                    .map_err(|reason| DataError::File { file: file.to_owned(), reason })?
                    .len();
            held.drain(..mark);
            first = false;
        }
        let is_end = more < PASSAGE;
        let Some(cut) = (if is_end { Some(held.len()) } else { line(&held) }) else { continue };
        let rest = held.split_off(cut);
        let passage = std::mem::replace(&mut held, rest);
        let length = passage.len() as u64;
        let text = String::from_utf8(passage).map_err(|error| {
            let at = read + error.utf8_error().valid_up_to() as u64;
            let reason = format!("not UTF-8 at byte {at}; save it as UTF-8, or leave it out");
            DataError::File { file: file.to_owned(), reason }
        })?;
        read += length;
        take(Passage { text, ends: is_end })?;
        if is_end {
            return Ok(());
        }
    }
}

/// The beginning of the last line that can begin a passage.
fn line(bytes: &[u8]) -> Option<usize> {
    let begins =
        |at: &usize| bytes[at - 1] == b'\n' && !bytes[*at].is_ascii_whitespace() && bytes[*at].is_ascii();
    (1..bytes.len()).rev().find(begins)
}

//! The header of llm.c's token files.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use phalanx_data::{DataError, Result};

use super::{ShardFormat, TokenShard, Width, read_at};

/// The bytes of the header: 256 numbers of four bytes.
pub(super) const HEADER: u64 = 1024;

/// The first two numbers of a file, by the width of its tokens.
pub(super) fn magic(width: Width) -> [i32; 2] {
    match width {
        Width::Two => [20_240_520, 1],
        Width::Four => [20_240_801, 7],
    }
}

/// The facts of a header.
pub(super) struct Header {
    width: Width,
    len: u64,
}

impl Header {
    pub(super) fn shard(&self, path: &Path, file: File) -> TokenShard {
        TokenShard {
            path: path.to_owned(),
            file: Arc::new(file),
            format: ShardFormat::LlmC,
            width: self.width,
            begin: HEADER,
            len: self.len,
            documents: None,
        }
    }
}

/// Reads the header of a file; `None` if it is of another format.
pub(super) fn header(path: &Path, file: &File, bytes: u64) -> Result<Option<Header>> {
    let mut first = [0; 12];
    if bytes < HEADER || read_at(file, &mut first, 0).is_err() {
        return Ok(None);
    }
    let number = |at: usize| i32::from_le_bytes([first[at], first[at + 1], first[at + 2], first[at + 3]]);
    let widths = [Width::Two, Width::Four];
    let Some(width) = widths.into_iter().find(|width| magic(*width)[0] == number(0)) else { return Ok(None) };
    let wrong = |reason: String| Err(DataError::file(path, reason));
    if number(4) != magic(width)[1] {
        return wrong(format!("llm.c's format in version {}; expected {}", number(4), magic(width)[1]));
    }
    let len = u64::try_from(number(8)).unwrap_or_default();
    let there = (bytes - HEADER) / width.bytes();
    if there != len || !(bytes - HEADER).is_multiple_of(width.bytes()) {
        return wrong(format!(
            "its header says {len} tokens, and {there} are there: the file is cut short or damaged"
        ));
    }
    Ok(Some(Header { width, len }))
}

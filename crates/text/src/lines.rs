//! The lines of files of texts.

use std::io::{BufRead as _, BufReader};
use std::path::Path;

use phalanx_data::encoding::without_mark;
use phalanx_data::{DataError, Links, Result};

/// Makes the error of a line.
pub(crate) fn wrong_line(file: &Path, line: usize, reason: String) -> DataError {
    DataError::Line { file: file.to_owned(), line, reason }
}

/// Calls `each` with the number of every line, from 1, and its bytes without the line's end and without a byte order mark.
pub(crate) fn for_each_line(file: &Path, each: &mut dyn FnMut(usize, &[u8]) -> Result<()>) -> Result<()> {
    let io = |error| DataError::io(file, error);
    let mut reader = BufReader::new(Links::Follow.open(file).map_err(io)?);
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        if reader.read_until(b'\n', &mut bytes).map_err(io)? == 0 {
            break;
        }
        let content = bytes.strip_suffix(b"\n").unwrap_or(&bytes);
        let content = content.strip_suffix(b"\r").unwrap_or(content);
        let content = match line {
            1 => without_mark(content).map_err(|reason| wrong_line(file, line, reason))?,
            _ => content,
        };
        each(line, content)?;
    }
    Ok(())
}

/// Calls `each` with the number and the text of every line.
pub(crate) fn for_each_text(file: &Path, each: &mut dyn FnMut(usize, &str) -> Result<()>) -> Result<()> {
    for_each_line(file, &mut |line, bytes| {
        let text = std::str::from_utf8(bytes);
        each(line, text.map_err(|error| wrong_line(file, line, format!("not UTF-8: {error}")))?)
    })
}

//! Lines of JSON.

use std::io::{BufRead as _, BufReader};
use std::path::Path;

use phalanx_data::{DataError, Links, Result};
use serde_json::Value;

use super::Passage;

/// Reads the text of each line. Empty lines are left out.
pub(super) fn read(file: &Path, field: &str, take: &mut dyn FnMut(Passage) -> Result<()>) -> Result<()> {
    let io = |error| DataError::io(file, error);
    let mut reader = BufReader::new(Links::Follow.open(file).map_err(io)?);
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        if reader.read_until(b'\n', &mut bytes).map_err(io)? == 0 {
            break;
        }
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        let wrong = |reason: String| DataError::Line { file: file.to_owned(), line, reason };
        let object: Value = phalanx_data::encoding::parse_json(&bytes).map_err(wrong)?;
        let text = object.get(field).and_then(Value::as_str).ok_or_else(|| {
            let keys: Vec<&str> =
                object.as_object().into_iter().flat_map(|object| object.keys().map(String::as_str)).collect();
            wrong(format!("no text under {field:?}; the line has {keys:?}"))
        })?;
        take(Passage { text: text.to_owned(), ends: true })?;
    }
    Ok(())
}

//! Lines of JSON.

use std::path::Path;

use phalanx_data::Result;
use serde_json::Value;

use super::Passage;
use crate::lines::{for_each_line, wrong_line};

/// Reads the text of each line. Empty lines are left out.
pub(super) fn read(file: &Path, field: &str, take: &mut dyn FnMut(Passage) -> Result<()>) -> Result<()> {
    for_each_line(file, &mut |line, bytes| {
        if bytes.trim_ascii().is_empty() {
            return Ok(());
        }
        let wrong = |reason: String| wrong_line(file, line, reason);
        let object: Value = phalanx_data::encoding::parse_json(bytes).map_err(wrong)?;
        let text = object.get(field).and_then(Value::as_str).ok_or_else(|| {
            let keys: Vec<&str> =
                object.as_object().into_iter().flat_map(|object| object.keys().map(String::as_str)).collect();
            wrong(format!("no text under {field:?}; the line has {keys:?}"))
        })?;
        take(Passage { text: text.to_owned(), ends: true })
    })
}

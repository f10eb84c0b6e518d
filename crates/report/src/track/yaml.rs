//! The `meta.yaml` files of MLflow: one key and value a line.

use std::fmt::Write as _;

use serde_json::Value;

/// Returns a file of these keys. A value in JSON is one in YAML, too.
pub(super) fn file(keys: &[(&str, Value)]) -> String {
    let mut text = String::new();
    for (key, value) in keys {
        let _ = writeln!(text, "{key}: {value}");
    }
    text
}

/// Returns the text of a key in a file that MLflow or this program has written.
pub(super) fn text(file: &str, key: &str) -> Option<String> {
    let value = file.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "))?.trim();
    match value.as_bytes() {
        [b'"', ..] => serde_json::from_str(value).ok(),
        [b'\'', .., b'\''] => Some(value[1..value.len() - 1].replace("''", "'")),
        _ => Some(value.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_in_every_form() {
        let written = file(&[("name", "a \"b\": c".into()), ("end_time", Value::Null), ("status", 3.into())]);
        assert_eq!(written, "name: \"a \\\"b\\\": c\"\nend_time: null\nstatus: 3\n");
        assert_eq!(text(&written, "name").as_deref(), Some("a \"b\": c"));
        for (line, expected) in [("name: plain", "plain"), ("name: 'it''s'", "it's"), ("name: '1'", "1")] {
            assert_eq!(text(&format!("experiment_id: '7'\n{line}\n"), "name").as_deref(), Some(expected));
        }
        assert_eq!(text("names: a\n", "name"), None);
    }
}

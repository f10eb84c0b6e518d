//! Texts that become part of a script or a manifest.

use std::path::Path;

use super::error::ClusterError;

/// Refuses a text with control characters: a line break would begin a line of its own in a script.
pub(super) fn check_text(what: &str, text: &str) -> Result<(), ClusterError> {
    // Readers of YAML take the separators of lines and paragraphs for line breaks, too.
    let is_break = |letter: &char| letter.is_control() || matches!(letter, '\u{2028}' | '\u{2029}');
    match text.chars().find(is_break) {
        Some(letter) => Err(ClusterError::ControlCharacter {
            what: what.to_owned(),
            text: text.escape_debug().to_string(),
            character: letter.escape_debug().to_string(),
        }),
        None => Ok(()),
    }
}

/// Returns the text of a path, which must be UTF-8 and have no control characters.
pub(super) fn checked_path<'a>(what: &str, path: &'a Path) -> Result<&'a str, ClusterError> {
    let text = path
        .to_str()
        .ok_or_else(|| ClusterError::NotUtf8 { what: what.to_owned(), path: path.display().to_string() })?;
    check_text(what, text)?;
    Ok(text)
}

//! Escaping of text and JSON in HTML.

pub(crate) use phalanx_charts::escape;

/// Serialises a value for a `script` element, so that no content can end the element.
pub(crate) fn script_json(value: &impl serde::Serialize) -> Result<String, serde_json::Error> {
    // These characters occur only in strings, where JSON allows escapes.
    Ok(serde_json::to_string(value)?
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029"))
}

/// Converts a text to an element id of letters, digits and dashes.
pub(crate) fn slug(text: &str) -> String {
    let mut slug = String::new();
    for c in text.chars() {
        match c.is_ascii_alphanumeric() {
            true => slug.push(c.to_ascii_lowercase()),
            false if slug.ends_with('-') => {}
            false => slug.push('-'),
        }
    }
    slug.trim_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_ends_what_it_stands_in() {
        assert_eq!(escape("<b a=\"'\">&"), "&lt;b a=&quot;&#x27;&quot;&gt;&amp;");
        let json = script_json(&"</script><!--\u{2028}").expect("JSON");
        assert_eq!(json, "\"\\u003c/script\\u003e\\u003c!--\\u2028\"");
        assert_eq!(serde_json::from_str::<String>(&json).expect("JSON"), "</script><!--\u{2028}");
        assert_eq!(slug("Speed & <Memory>"), "speed-memory");
    }
}

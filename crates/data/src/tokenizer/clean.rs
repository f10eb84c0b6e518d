//! Cleaning of text before it is split.
//!
//! The reference runs ftfy, decodes HTML entities twice, collapses white space and lowers the case. This implements the
//! parts of ftfy that change ordinary text: straight quotes, plain ligatures and full-width letters, no control
//! characters, composed accents. It does not repair text that was decoded with the wrong encoding.

use unicode_normalization::UnicodeNormalization as _;

/// Returns the text that the tokenizer splits.
pub(super) fn clean(text: &str) -> String {
    let text: String = text.chars().filter_map(plain).collect();
    let text = expand(&text);
    let text: String = text.nfc().collect();
    let once = html_escape::decode_html_entities(&text);
    let twice = html_escape::decode_html_entities(&once);
    let folded = twice.split_whitespace().collect::<Vec<_>>().join(" ");
    folded.to_lowercase()
}

/// Simplifies a character; `None` for a control character.
fn plain(c: char) -> Option<char> {
    match c {
        '\u{2018}' | '\u{2019}' | '\u{201a}' | '\u{201b}' | '\u{02bc}' => Some('\''),
        '\u{201c}'..='\u{201f}' => Some('"'),
        // Full-width forms of ASCII.
        '\u{ff01}'..='\u{ff5e}' => char::from_u32(c as u32 - 0xff01 + 0x21),
        '\u{3000}' => Some(' '),
        '\t' | '\n' | '\r' | '\u{0b}' | '\u{0c}' | '\u{2028}' | '\u{2029}' => Some(' '),
        '\u{feff}' => None,
        c if c.is_control() => None,
        c => Some(c),
    }
}

/// Expands Latin ligatures to their letters.
fn expand(text: &str) -> String {
    const LIGATURES: [(char, &str); 7] = [
        ('\u{fb00}', "ff"),
        ('\u{fb01}', "fi"),
        ('\u{fb02}', "fl"),
        ('\u{fb03}', "ffi"),
        ('\u{fb04}', "ffl"),
        ('\u{fb05}', "st"),
        ('\u{fb06}', "st"),
    ];
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match LIGATURES.iter().find(|(ligature, _)| *ligature == c) {
            Some((_, letters)) => out.push_str(letters),
            None => out.push(c),
        }
    }
    out
}

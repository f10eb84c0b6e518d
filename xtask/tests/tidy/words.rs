//! Forbidden words: riddles instead of terms, persons instead of programs, doc comments that begin with a question.
//!
//! They are counted in the comments, strings and names of sources, and in pages.

use crate::code::{Piece, Token, pieces};

/// Words with a plainer alternative, with a space on either side.
const WORDS: &[&str] = &[
    " whoever ",
    " whomever ",
    " nobody ",
    " nobody's ",
    " somebody ",
    " somebody's ",
    " everybody ",
    " everybody's ",
    " anybody ",
    " whatever ",
    " beside ",
    " meanwhile ",
    " so many ",
    " that which ",
    " those which ",
    " as it lies ",
    " processor ",
    " processors ",
    " processor's ",
    " way around ",
];

/// Keys of files of other programs.
const FOREIGN: &[&str] = &["post_processor"];

/// Question words that may not begin a doc comment.
const BEGINNINGS: &[&str] = &["What", "Whatever", "How", "Whether", "Those", "That", "Who", "Whose"];

/// Forbidden parts of names, in lower case.
const PARTS: &[&str] =
    &["whoever", "nobody", "somebody", "everybody", "anybody", "whatever", "beside", "meanwhile"];

/// Forbidden names: they hide their meaning.
const NAMES: &[&str] = &[
    "Told",
    "Desk",
    "Held",
    "Leash",
    "Interlude",
    "Doors",
    "Standing",
    "Hearing",
    "Aside",
    "Laps",
    "Taken",
    "Made",
];

/// A forbidden word in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hit {
    pub(crate) line: usize,
    pub(crate) word: String,
}

/// Returns the words of a text in lower case, with single spaces around each.
fn normal(text: &str) -> String {
    let letters = text.chars().map(|c| if c.is_alphanumeric() || c == '\'' { c } else { ' ' });
    let small = letters.collect::<String>().to_lowercase();
    format!(" {} ", small.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Finds the forbidden words of a line of prose.
fn in_prose(line: usize, text: &str, found: &mut Vec<Hit>) {
    let text = normal(text);
    for word in WORDS {
        let count = text.matches(word).count();
        found.extend((0..count).map(|_| Hit { line, word: word.trim().to_owned() }));
    }
}

/// Returns the parts of a name in lower case: `rank` and `report` for `RankReport` and `rank_report`.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for letter in name.chars() {
        if letter == '_' || letter.is_uppercase() {
            parts.push(String::new());
        }
        if let Some(last) = parts.last_mut().filter(|_| letter != '_') {
            last.extend(letter.to_lowercase());
        }
    }
    parts
}

/// Finds the forbidden words of a Rust source.
pub(crate) fn of_source(text: &str) -> Vec<Hit> {
    let mut found = Vec::new();
    // The line after the last doc comment, which may continue there. A heading begins it anew.
    let mut after_doc = 0;
    for (line, piece) in pieces(text) {
        match piece {
            Piece::Comment(comment) => {
                for (at, text) in comment.lines().enumerate() {
                    in_prose(line + at, text, &mut found);
                }
                let doc = comment.strip_prefix("///").or_else(|| comment.strip_prefix("//!"));
                if let Some(doc) = doc {
                    let first = doc.split_whitespace().next().unwrap_or_default();
                    if line != after_doc && BEGINNINGS.contains(&first) {
                        found.push(Hit { line, word: format!("doc: {first} …") });
                    }
                    after_doc = if first == "#" { 0 } else { line + 1 };
                }
            }
            Piece::Text(string) if !FOREIGN.contains(&string.trim_matches('"')) => {
                for (at, text) in string.lines().enumerate() {
                    in_prose(line + at, text, &mut found);
                }
            }
            Piece::Text(_) => {}
            Piece::Token(Token::Word(name)) => {
                let hidden = NAMES.contains(&name.as_str());
                if hidden || parts(&name).iter().any(|part| PARTS.contains(&part.as_str())) {
                    found.push(Hit { line, word: format!("name: {name}") });
                }
            }
            Piece::Token(_) => {}
        }
    }
    found
}

/// Finds the forbidden words of a page.
pub(crate) fn of_page(text: &str) -> Vec<Hit> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        in_prose(at + 1, line, &mut found);
    }
    found
}

#[test]
fn words_are_found_where_they_are_read() {
    let words = |text: &str| of_source(text).into_iter().map(|hit| hit.word).collect::<Vec<_>>();
    assert_eq!(words("/// What it is.\n/// What else.\n\n/// Returns what.\nfn f() {}"), ["doc: What …"]);
    assert_eq!(
        words("/// Reads it.\n///\n/// # Errors\n/// Those of [`open`].\nfn f() {}"),
        ["doc: Those …"]
    );
    assert_eq!(words("// Nobody is besides the processor's side."), ["nobody", "processor's"]);
    assert_eq!(words("let a = \"so many\\nranks, beside\";"), ["beside", "so many"]);
    assert_eq!(words("struct Told; fn whatever_is() {} struct Toldish; let nobodys = 1;").len(), 2);
    assert_eq!(of_page("So many ranks\nas meanwhile\n").len(), 2);
}

//! Rust sources as tokens with their lines, the comments and strings between them, and the paths that they name.

/// The part of a file before its unit tests.
pub(crate) fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

/// A word or a mark of a source. Comments, strings and characters are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    /// A name or keyword.
    Word(String),
    /// `::`
    Colons,
    /// Any other character that is no white space.
    Mark(char),
}

/// Returns the end of the string that begins at `at`, if any: `"…"`, `r#"…"#`, with `b` or `c` before it.
fn end_of_string(text: &[char], at: usize) -> Option<usize> {
    let mut open = at;
    while matches!(text.get(open), Some('b' | 'c')) && open < at + 1 {
        open += 1;
    }
    let raw = text.get(open) == Some(&'r');
    open += usize::from(raw);
    let hashes = text[open.min(text.len())..].iter().take_while(|c| **c == '#').count();
    if (hashes > 0 && !raw) || text.get(open + hashes) != Some(&'"') {
        return None;
    }
    let mut end = open + hashes + 1;
    while end < text.len() {
        match text[end] {
            '\\' if !raw => end += 2,
            '"' if (1..=hashes).all(|n| text.get(end + n) == Some(&'#')) => return Some(end + hashes + 1),
            _ => end += 1,
        }
    }
    Some(end)
}

/// Returns the end of the comment that begins at `at`, if any.
fn end_of_comment(text: &[char], at: usize) -> Option<usize> {
    if text.get(at) != Some(&'/') {
        return None;
    }
    match text.get(at + 1) {
        Some('/') => Some(text[at..].iter().position(|c| *c == '\n').map_or(text.len(), |line| at + line)),
        Some('*') => {
            let (mut depth, mut end) = (1, at + 2);
            while depth > 0 && end < text.len() {
                match (text[end], text.get(end + 1)) {
                    ('/', Some('*')) => (depth, end) = (depth + 1, end + 2),
                    ('*', Some('/')) => (depth, end) = (depth - 1, end + 2),
                    _ => end += 1,
                }
            }
            Some(end)
        }
        _ => None,
    }
}

/// Returns the end of the character that begins at `at`, if any. A lifetime is not a character.
fn end_of_character(text: &[char], at: usize) -> Option<usize> {
    match (text.get(at), text.get(at + 1), text.get(at + 2)) {
        (Some('\''), Some('\\'), _) => {
            Some(text[at + 3..].iter().position(|c| *c == '\'').map_or(text.len(), |n| at + 4 + n))
        }
        (Some('\''), Some(_), Some('\'')) => Some(at + 3),
        _ => None,
    }
}

/// A piece of a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    Token(Token),
    /// A comment with its marks.
    Comment(String),
    /// A string or a character with its marks.
    Text(String),
}

/// The pieces of a source, each with its line from 1.
pub(crate) fn pieces(text: &str) -> Vec<(usize, Piece)> {
    let text: Vec<char> = text.chars().collect();
    let is_word = |c: &char| c.is_alphanumeric() || *c == '_';
    let (mut found, mut at, mut line) = (Vec::new(), 0, 1);
    while at < text.len() {
        let comment = end_of_comment(&text, at);
        let literal = end_of_string(&text, at).or_else(|| end_of_character(&text, at));
        let end = comment.or(literal).unwrap_or_else(|| match text[at] {
            letter if is_word(&letter) => {
                text[at..].iter().position(|c| !is_word(c)).map_or(text.len(), |n| at + n)
            }
            ':' if text.get(at + 1) == Some(&':') => at + 2,
            _ => at + 1,
        });
        let end = end.min(text.len());
        let string = || text[at..end].iter().collect::<String>();
        let piece = match text[at] {
            _ if comment.is_some() => Some(Piece::Comment(string())),
            _ if literal.is_some() => Some(Piece::Text(string())),
            letter if is_word(&letter) => Some(Piece::Token(Token::Word(string()))),
            ':' if end == at + 2 => Some(Piece::Token(Token::Colons)),
            mark if !mark.is_whitespace() => Some(Piece::Token(Token::Mark(mark))),
            _ => None,
        };
        found.extend(piece.map(|piece| (line, piece)));
        line += text[at..end].iter().filter(|c| **c == '\n').count();
        at = end;
    }
    found
}

/// The words and marks of a source.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    lined_tokens(text).into_iter().map(|(_, token)| token).collect()
}

/// The words and marks of a source, each with its line from 1.
pub(crate) fn lined_tokens(text: &str) -> Vec<(usize, Token)> {
    let token = |(line, piece)| if let Piece::Token(token) = piece { Some((line, token)) } else { None };
    pieces(text).into_iter().filter_map(token).collect()
}

fn is(token: Option<&Token>, word: &str) -> bool {
    matches!(token, Some(Token::Word(found)) if found == word)
}

/// Removes every item with `#[cfg(test)]`.
pub(crate) fn without_test_items(tokens: &[Token]) -> Vec<Token> {
    outside_tests(tokens).map(|at| tokens[at].clone()).collect()
}

/// Returns the indices of tokens outside of items with `#[cfg(test)]`.
pub(crate) fn outside_tests(tokens: &[Token]) -> impl Iterator<Item = usize> {
    let test: Vec<Token> = super::code::tokens("#[cfg(test)]");
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if !tokens[at..].starts_with(&test) {
            kept.push(at);
            at += 1;
            continue;
        }
        // To the end of the item: a semicolon outside of brackets, or the brace that closes its body.
        at += test.len();
        let mut depth = 0_i32;
        while at < tokens.len() {
            match tokens[at] {
                Token::Mark('{' | '(' | '[') => depth += 1,
                Token::Mark('}' | ')' | ']') => depth -= 1,
                _ => {}
            }
            let ends = matches!(tokens[at], Token::Mark(';' | '}')) && depth == 0;
            at += 1;
            if ends {
                break;
            }
        }
    }
    kept.into_iter()
}

/// An imported path, and its name in the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) path: Vec<String>,
    pub(crate) name: String,
}

/// Collects the paths of the `use` tree that begins at `at`, with `prefix` before them. Returns its end.
fn tree(tokens: &[Token], mut at: usize, prefix: &[String], found: &mut Vec<Named>) -> usize {
    let mut path = prefix.to_vec();
    loop {
        match tokens.get(at) {
            Some(Token::Mark('{')) => {
                at += 1;
                while at < tokens.len() && tokens[at] != Token::Mark('}') {
                    if tokens[at] == Token::Mark(',') {
                        at += 1;
                    } else {
                        at = tree(tokens, at, &path, found);
                    }
                }
                return at + 1;
            }
            Some(Token::Mark('*')) => {
                found.push(Named { path, name: "*".to_owned() });
                return at + 1;
            }
            Some(Token::Word(word)) => {
                // `use a::{self}` means `a`.
                if word != "self" || path.is_empty() {
                    path.push(word.clone());
                }
                at += 1;
            }
            // Not a path: skipped, so that every call advances.
            _ => return at + 1,
        }
        if tokens.get(at) == Some(&Token::Colons)
            && matches!(tokens.get(at + 1), Some(Token::Word(_) | Token::Mark('{' | '*')))
        {
            at += 1;
            continue;
        }
        let mut name = path.last().cloned().unwrap_or_default();
        if is(tokens.get(at), "as")
            && let Some(Token::Word(alias)) = tokens.get(at + 1)
        {
            name.clone_from(alias);
            at += 2;
        }
        found.push(Named { path, name });
        return at;
    }
}

/// Returns every path that begins with `crate` or `super`, as an absolute path without `crate`. `own` is the module of
/// the file.
pub(crate) fn paths(tokens: &[Token], own: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        let begins = is(tokens.get(at), "crate") || is(tokens.get(at), "super");
        let inside = at > 0 && tokens[at - 1] == Token::Colons;
        if begins && !inside && tokens.get(at + 1) == Some(&Token::Colons) {
            tree(tokens, at, &[], &mut found);
        }
    }
    found.into_iter().filter_map(|named| absolute(&named.path, own)).collect()
}

/// Resolves `crate` and `super` of a path. `None` if it leads out of the crate.
fn absolute(path: &[String], own: &[String]) -> Option<Vec<String>> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    if supers > 0 {
        let base = own.len().checked_sub(supers)?;
        return Some(own[..base].iter().chain(&path[supers..]).cloned().collect());
    }
    path.split_first().filter(|(first, _)| *first == "crate").map(|(_, rest)| rest.to_vec())
}

/// Returns the imports of a module's own file, as paths from that module.
pub(crate) fn uses(tokens: &[Token]) -> Vec<Named> {
    let mut found = Vec::new();
    for at in 0..tokens.len() {
        if is(tokens.get(at), "use") {
            tree(tokens, at + 1, &[], &mut found);
        }
    }
    found
}

#[test]
fn what_is_not_code_is_left_out() {
    let text = r##"a /* b /* c */ */ "d \" e" r#"f " g"# 'h' '\'' b"i" 'j: k // l"##;
    let words: Vec<_> = tokens(text)
        .into_iter()
        .filter_map(|token| if let Token::Word(word) = token { Some(word) } else { None })
        .collect();
    assert_eq!(words, ["a", "j", "k"]);
    let kept = without_test_items(&tokens("a #[cfg(test)] mod t { b { c } } d #[cfg(test)] use e; f"));
    assert_eq!(kept, tokens("a d f"));
}

#[test]
fn paths_of_every_form_are_found() {
    let text = "use crate::{a::{self, B as C}, d::*}; fn f(x: super::e::F) -> crate::g::h::<u8> { super::super::i() }";
    let own = ["x".to_owned(), "y".to_owned()];
    let found: Vec<String> = paths(&tokens(text), &own).iter().map(|path| path.join("::")).collect();
    assert_eq!(found, ["a", "a::B", "d", "x::e::F", "g::h", "i"]);
    let brought = uses(&tokens("pub use a::{B as C, d::E};"));
    let brought: Vec<_> = brought.iter().map(|named| (named.path[0].as_str(), named.name.as_str())).collect();
    assert_eq!(brought, [("a", "C"), ("a", "E")]);
}

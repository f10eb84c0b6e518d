//! Sizes of functions and types: lines, nesting, fields, methods.

use crate::code::{Token, lined_tokens, outside_tests};

/// The largest number of lines of a function.
const MAX_LINES: usize = 60;
/// The deepest nesting of control flow in a function.
const MAX_NESTING: usize = 4;
/// The largest number of fields of a struct.
const MAX_FIELDS: usize = 15;
/// The largest number of methods of a trait.
const MAX_METHODS: usize = 12;

/// An item that is larger than the rule allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LargeItem {
    pub(crate) kind: &'static str,
    pub(crate) line: usize,
    pub(crate) name: String,
    pub(crate) size: usize,
}

/// The tokens of one file outside of its tests.
struct Code {
    lines: Vec<usize>,
    tokens: Vec<Token>,
}

impl Code {
    fn of(text: &str) -> Self {
        let (lines, tokens): (Vec<usize>, Vec<Token>) = lined_tokens(text).into_iter().unzip();
        let kept: Vec<usize> = outside_tests(&tokens).collect();
        Self {
            lines: kept.iter().map(|at| lines[*at]).collect(),
            tokens: kept.iter().map(|at| tokens[*at].clone()).collect(),
        }
    }

    fn word(&self, at: usize) -> Option<&str> {
        match self.tokens.get(at) {
            Some(Token::Word(word)) => Some(word),
            _ => None,
        }
    }

    fn mark(&self, at: usize) -> Option<char> {
        match self.tokens.get(at) {
            Some(Token::Mark(mark)) => Some(*mark),
            _ => None,
        }
    }

    /// Returns the index of the brace that opens the body of the item at `at`, if it has a body.
    fn body(&self, at: usize) -> Option<usize> {
        let mut depth = 0_usize;
        for at in at..self.tokens.len() {
            match self.mark(at) {
                Some('(' | '[') => depth += 1,
                Some(')' | ']') => depth = depth.checked_sub(1)?,
                Some('{') if depth == 0 => return Some(at),
                Some(';' | '}') if depth == 0 => return None,
                _ => {}
            }
        }
        None
    }

    /// Returns the index of the bracket that closes the one at `open`.
    fn close(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        for at in open..self.tokens.len() {
            match self.mark(at) {
                Some('{' | '(' | '[') => depth += 1,
                Some('}' | ')' | ']') => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return at;
            }
        }
        self.tokens.len().saturating_sub(1)
    }

    /// Returns the number of tokens directly inside the braces at `open` that `counts` accepts.
    fn count(&self, open: usize, counts: impl Fn(usize) -> bool) -> usize {
        let (end, mut at, mut found) = (self.close(open), open + 1, 0);
        while at < end {
            if matches!(self.mark(at), Some('{' | '(' | '[')) {
                at = self.close(at);
            } else {
                found += usize::from(counts(at));
            }
            at += 1;
        }
        found
    }

    /// Returns the deepest nesting of `if`, `match`, `for`, `while`, `loop` and block closures in the body at `open`.
    /// An `else if` is as deep as its `if`, an arm as deep as its `match`.
    fn nesting(&self, open: usize) -> usize {
        let end = self.close(open);
        // For each open bracket: its depth, and true if a control-flow header is open inside of it.
        let (mut stack, mut deepest) = (vec![(0, false)], 0);
        for at in open + 1..end {
            match self.mark(at) {
                Some('(' | '[') => stack.push((0, false)),
                Some('{') => {
                    let header = stack.last_mut().is_some_and(|(_, header)| std::mem::take(header));
                    let is_control = header || self.opens_block(at);
                    stack.push((usize::from(is_control), false));
                    deepest = deepest.max(stack.iter().map(|(depth, _)| depth).sum());
                }
                Some(')' | ']' | '}') => drop(stack.pop()),
                _ => {}
            }
            if matches!(self.word(at), Some("if" | "match" | "for" | "while"))
                && !self.is_guard(at)
                && self.mark(at + 1) != Some('<')
                && let Some((_, header)) = stack.last_mut()
            {
                *header = true;
            }
        }
        deepest
    }

    /// Returns true if the `if` at `at` is the guard of an arm: its next brace comes after `=>`.
    fn is_guard(&self, at: usize) -> bool {
        let mut next = at + 1;
        while next < self.tokens.len() {
            match self.mark(next) {
                Some('{') => return false,
                Some('(' | '[') => next = self.close(next),
                Some('=') if self.mark(next + 1) == Some('>') => return true,
                _ => {}
            }
            next += 1;
        }
        false
    }

    /// Returns true if the brace at `at` follows `else`, `loop` or the parameters of a closure.
    fn opens_block(&self, at: usize) -> bool {
        matches!(self.word(at - 1), Some("else" | "loop")) || self.mark(at - 1) == Some('|')
    }
}

/// Returns the too large items of a file.
pub(crate) fn large(text: &str) -> Vec<LargeItem> {
    let code = Code::of(text);
    let mut found = Vec::new();
    for at in 0..code.tokens.len() {
        let (Some(kind), Some(name)) = (code.word(at), code.word(at + 1)) else { continue };
        let Some(open) = code.body(at + 2) else { continue };
        let mut check = |kind, size, most| {
            if size > most {
                found.push(LargeItem { kind, line: code.lines[at], name: name.to_owned(), size });
            }
        };
        match kind {
            "fn" => {
                check("long function", code.lines[code.close(open)] - code.lines[at] + 1, MAX_LINES);
                check("deep function", code.nesting(open), MAX_NESTING);
            }
            "struct" => {
                check("wide struct", code.count(open, |at| code.mark(at) == Some(':')), MAX_FIELDS);
            }
            "trait" => {
                check("wide trait", code.count(open, |at| code.word(at) == Some("fn")), MAX_METHODS);
            }
            _ => {}
        }
    }
    found
}

#[test]
fn nesting_counts_control_flow() {
    let nesting = |body: &str| Code::of(&format!("{{ {body} }}")).nesting(0);
    for (body, depth) in [
        ("a(); S { b: 1 };", 0),
        ("if a { S { b } } else if c { d } else { e }", 1),
        ("match a { B if c => { d } E { f } => {} }", 1),
        ("for a in b { while c { loop { x.map(|y| { if z { w } }) } } }", 5),
        ("let Some(a) = b else { return };", 1),
        ("if a.any(|b| { c }) { d }", 1),
    ] {
        assert_eq!(nesting(body), depth, "{body}");
    }
}

#[test]
fn large_items_are_found_by_name() {
    let fields: String = (0..16).map(|n| format!("/// A: b\n a{n}: Vec<[u8; 3]>,\n")).collect();
    let methods: String = (0..13).map(|n| format!("fn f{n}(a: u8) {{ fn g() {{}} }}\n")).collect();
    let lines = "a();\n".repeat(60);
    let text = format!("struct A {{ {fields} }}\ntrait B {{ {methods} }}\nfn c() -> [u8; 2] {{\n{lines}}}\n");
    let found: Vec<_> = large(&text).into_iter().map(|item| (item.kind, item.name, item.size)).collect();
    let named = |kind, name: &str, size| (kind, name.to_owned(), size);
    assert_eq!(
        found,
        [named("wide struct", "A", 16), named("wide trait", "B", 13), named("long function", "c", 62)]
    );
}

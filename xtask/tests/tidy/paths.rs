//! Checks that the paths in pages exist.

use std::collections::BTreeSet;

use crate::sources::{all_files, pages, report};

/// Folders at the root. A path that begins with one of them is relative to the root.
const TOPS: &[&str] = &["crates", "docs", "xtask", "benches", "fuzz", "parity", ".ci"];

/// Extensions of files in the tree. Files written by runs have others.
const ENDINGS: &[&str] = &[".rs", ".cu", ".cuh", ".cpp", ".hpp", ".h", ".md", ".svg", ".css"];

/// Returns the texts in back-ticks of a line, outside of code blocks.
fn in_ticks(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Expands the braces of a path such as `a/{b,c}.rs`.
fn expanded(path: &str) -> Vec<String> {
    match (path.find('{'), path.find('}')) {
        (Some(open), Some(close)) if open < close => path[open + 1..close]
            .split(',')
            .flat_map(|part| expanded(&format!("{}{}{}", &path[..open], part.trim(), &path[close + 1..])))
            .collect(),
        _ => vec![path.to_owned()],
    }
}

/// Returns a text in back-ticks as a path, if it looks like a file or folder of the tree.
fn path_of(text: &str) -> Option<&str> {
    let path = text.split_once(':').map_or(text, |(path, _)| path).trim_end_matches('/');
    let plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-{},".contains(c));
    // `NAME` stands for any name.
    let open =
        path.split(['/', '.']).any(|part| part.len() > 1 && part.chars().all(|c| c.is_ascii_uppercase()));
    let is_known = ["README", "CHANGELOG", "LICENSE"].iter().any(|name| path.contains(name));
    if !plain || !path.contains('/') || path.starts_with('/') || path.starts_with("..") || open && !is_known {
        return None;
    }
    let top = path.split('/').next().unwrap_or_default();
    (TOPS.contains(&top) || ENDINGS.iter().any(|ending| path.ends_with(ending))).then_some(path)
}

#[test]
fn paths_in_pages_exist() {
    let mut known: BTreeSet<String> = BTreeSet::new();
    for file in all_files() {
        // Paths may be relative to a crate's folder or its sources.
        let parts: Vec<&str> = file.split('/').collect();
        for end in 1..=parts.len() {
            known.extend((0..end).map(|begin| parts[begin..end].join("/")));
        }
    }
    let mut breaches = Vec::new();
    for (page, text) in pages() {
        let mut in_block = false;
        for (number, line) in text.lines().enumerate() {
            in_block ^= line.trim_start().starts_with("```");
            if in_block {
                continue;
            }
            let paths = in_ticks(line).filter_map(path_of).flat_map(expanded);
            let missing = paths.filter(|path| !known.contains(path.as_str()));
            breaches.extend(missing.map(|path| format!("{page}:{}: there is no {path}", number + 1)));
        }
    }
    report("paths in pages exist", &breaches);
}

#[test]
fn paths_are_told_from_other_words() {
    for (text, path) in [
        ("crates/tensor/src/ops", Some("crates/tensor/src/ops")),
        ("conv/dense.rs:12", Some("conv/dense.rs")),
        ("docs/", None),
        ("runs/a/metrics.jsonl", None),
        ("fuzz/corpus/READER.tar.gz", None),
        ("a/b", None),
        ("/proc/self/maps.rs", None),
        ("crates/data/README.md", Some("crates/data/README.md")),
    ] {
        assert_eq!(path_of(text), path, "{text}");
    }
    assert_eq!(expanded("a/{b,c}.rs"), ["a/b.rs", "a/c.rs"]);
}

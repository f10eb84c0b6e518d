//! Counts that may only decrease: forbidden words and too large items, by folder.
//!
//! `counts.txt` holds the counts. `cargo xtask tidy --count` rewrites it. `cargo xtask tidy --show PLACE` lists the
//! findings in files whose path begins with PLACE.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use crate::shapes::large;
use crate::sources::{all_sources, pages, root};
use crate::words::{of_page, of_source};

/// The environment variable of the task: `write` for the table, or the beginning of the paths to list.
const TASK: &str = "PHALANX_TIDY_COUNTS";

/// Files that define forbidden words.
const ABOUT_WORDS: &[&str] = &["xtask/tests/tidy/words.rs"];

/// A finding: kind, file, line, and text.
struct Finding {
    kind: &'static str,
    file: String,
    line: usize,
    what: String,
}

/// Returns the folder of a file in the counts: a crate, or `docs`.
fn folder(file: &str) -> String {
    let depth = if file.starts_with("crates/") { 2 } else { 1 };
    let parts: Vec<&str> = file.split('/').collect();
    if parts.len() == 1 { "docs".to_owned() } else { parts[..depth].join("/") }
}

fn findings() -> Vec<Finding> {
    let mut found = Vec::new();
    for (file, text) in all_sources() {
        if !ABOUT_WORDS.contains(&file.as_str()) {
            found.extend(of_source(&text).into_iter().map(|hit| Finding {
                kind: "word",
                file: file.clone(),
                line: hit.line,
                what: hit.word,
            }));
        }
        if file.contains("/src/") {
            found.extend(large(&text).into_iter().map(|item| Finding {
                kind: item.kind,
                file: file.clone(),
                line: item.line,
                what: format!("{} ({})", item.name, item.size),
            }));
        }
    }
    for (file, text) in pages() {
        found.extend(of_page(&text).into_iter().map(|hit| Finding {
            kind: "word",
            file: file.clone(),
            line: hit.line,
            what: hit.word,
        }));
    }
    found
}

/// Counts by kind and folder.
type Counts = BTreeMap<(String, String), usize>;

fn count(findings: &[Finding]) -> Counts {
    let mut counts = Counts::new();
    for Finding { kind, file, .. } in findings {
        *counts.entry(((*kind).to_owned(), folder(file))).or_default() += 1;
    }
    counts
}

fn place() -> PathBuf {
    root().join("xtask/tests/tidy/counts.txt")
}

fn read() -> Counts {
    let text = fs::read_to_string(place()).expect("counts.txt");
    let row = |line: &str| {
        let parts: Vec<&str> = line.split(" | ").map(str::trim).collect();
        let [kind, folder, number] = parts[..] else { panic!("counts.txt: `{line}`") };
        ((kind.to_owned(), folder.to_owned()), number.parse().expect("a number"))
    };
    text.lines().filter(|line| !line.starts_with('#')).map(row).collect()
}

fn write(counts: &Counts) {
    let mut text =
        "# kind | folder | number: may only fall; `cargo xtask tidy --count` writes this file\n".to_owned();
    for ((kind, folder), number) in counts {
        text.push_str(&format!("{kind} | {folder} | {number}\n"));
    }
    fs::write(place(), text).expect("counts.txt is written");
}

/// The sum of one kind over all folders.
fn total(counts: &Counts, kind: &str) -> usize {
    counts.iter().filter(|((of, _), _)| of == kind).map(|(_, number)| number).sum()
}

#[test]
fn what_readers_stumble_over_gets_less() {
    let findings = findings();
    let now = count(&findings);
    match std::env::var(TASK) {
        Ok(task) if task == "write" => return write(&now),
        Ok(begin) => {
            for Finding { kind, file, line, what } in
                findings.iter().filter(|one| one.file.starts_with(&begin))
            {
                println!("{file}:{line}: {kind}: {what}");
            }
            return;
        }
        Err(_) => {}
    }
    let before = read();
    let mut breaches = Vec::new();
    for kind in ["word", "long function", "deep function", "wide struct", "wide trait"] {
        let (old, new) = (total(&before, kind), total(&now, kind));
        if new <= old {
            continue;
        }
        let grown = now
            .iter()
            .filter(|(key, number)| key.0 == kind && **number > before.get(*key).copied().unwrap_or(0));
        let grown = grown.map(|((_, folder), number)| format!("{folder} ({number})")).collect::<Vec<_>>();
        breaches.push(format!(
            "{kind}: {new} in all, {old} before; more in {}: see `cargo xtask tidy --show FOLDER`",
            grown.join(", ")
        ));
    }
    crate::sources::report("these numbers may only fall", &breaches);
}

#[test]
fn files_are_counted_under_their_crate() {
    assert_eq!(folder("crates/a/src/b/c.rs"), "crates/a");
    assert_eq!(folder("docs/a.md"), "docs");
    assert_eq!(folder("README.md"), "docs");
    assert_eq!(folder("xtask/src/main.rs"), "xtask");
}

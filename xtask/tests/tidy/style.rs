//! Rules for single files: module docs, length, printing, and doc comments.

use crate::code::without_tests;
use crate::sources::{all_sources, report};

/// The largest number of lines of a source file.
const MAX_LINES: usize = 600;

#[test]
fn only_the_programs_print() {
    let prints = ["println!(", "eprintln!(", "print!(", "eprint!("];
    let mut breaches = Vec::new();
    for (name, text) in all_sources() {
        let program =
            ["crates/phalanx/src/main.rs", "crates/cli/src/commands", "crates/cli/src/console", "xtask/"]
                .iter()
                .any(|start| name.starts_with(start));
        if program
            || name.contains("/examples/")
            || name.contains("/tests/")
            || name.starts_with("benches/")
            || name.ends_with("/build.rs")
            || ["fuzz/src/main.rs", "fuzz/src/guided.rs", "parity/src/main.rs"].contains(&name.as_str())
        {
            continue;
        }
        for (number, line) in without_tests(&text).lines().enumerate() {
            let code = line.trim_start();
            if !code.starts_with("//") && prints.iter().any(|print| code.contains(print)) {
                breaches.push(format!("{name}:{}: {code}", number + 1));
            }
        }
    }
    report("libraries return values; only programs print", &breaches);
}

#[test]
fn every_file_opens_with_what_it_is_and_is_short() {
    let mut breaches = Vec::new();
    for (name, text) in all_sources() {
        if !text.starts_with("//!") {
            breaches.push(format!("{name}: does not open with a `//!` line"));
        }
        let lines = text.lines().count();
        if lines > MAX_LINES {
            breaches.push(format!("{name}: {lines} lines; split it before {MAX_LINES}"));
        }
        if let Some(at) = text.lines().position(|line| line.ends_with([' ', '\t'])) {
            breaches.push(format!("{name}:{}: trailing white space", at + 1));
        }
    }
    report("one concept a file, said at its top", &breaches);
}

#[test]
fn trainings_of_ones_own_take_fewer_than_80_lines() {
    let sources = all_sources();
    let examples: Vec<_> =
        sources.iter().filter(|(name, _)| name.starts_with("crates/phalanx/examples/own_")).collect();
    assert!(examples.len() >= 3, "the examples are elsewhere");
    let long =
        examples.iter().map(|(name, text)| (name, text.lines().count())).filter(|(_, lines)| *lines >= 80);
    report(
        "an example is short",
        &long.map(|(name, lines)| format!("{name}: {lines} lines")).collect::<Vec<_>>(),
    );
}

#[test]
fn models_know_no_ranks_and_no_files() {
    let mut breaches = Vec::new();
    for (name, text) in all_sources().iter().filter(|(name, _)| name.starts_with("crates/models/src/")) {
        for (number, line) in without_tests(text).lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            if ["std::fs", "File::", "world_size", "Communicator"].iter().any(|word| code.contains(word)) {
                breaches.push(format!("{name}:{}: {}", number + 1, code.trim()));
            }
        }
    }
    report("models are single-device code without files", &breaches);
}

#[test]
fn doc_lines_stand_alone() {
    // A reader of one item's page does not see the item before it.
    let leaning = ["The same", "As above", "Like the above"];
    let mut breaches = Vec::new();
    for (name, text) in all_sources() {
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start();
            let doc = line
                .strip_prefix("///")
                .or_else(|| line.strip_prefix("//!"))
                .unwrap_or_default()
                .trim_start();
            if leaning.iter().any(|words| doc.starts_with(words)) {
                breaches.push(format!("{name}:{}: {doc}", number + 1));
            }
        }
    }
    report("a doc line says what something is, without leaning on another", &breaches);
}

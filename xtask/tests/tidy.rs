//! The house rules as a test: the invariants of `docs/architecture.md`, read off the sources.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The allowed edges between the crates of this workspace. Adding one is a decision; see the architecture page.
const EDGES: &[(&str, &[&str])] = &[
    ("kernels", &[]),
    ("collectives", &[]),
    ("data", &[]),
    ("tensor", &["kernels"]),
    ("models", &["tensor"]),
    ("sharding", &["tensor", "collectives"]),
    ("trainer", &["tensor", "collectives", "sharding", "data", "models"]),
];

/// Crates that must not contain `unsafe` at all.
const SAFE: &[&str] = &["data", "models", "sharding", "trainer"];

/// The modules that may contain `unsafe`.
const UNSAFE_MODULES: &[&str] = &[
    "crates/collectives/src/mpi/collective.rs",
    "crates/collectives/src/mpi/raw.rs",
    "crates/collectives/src/nccl/raw.rs",
    "crates/collectives/src/shared/cross_memory/access.rs",
    "crates/collectives/src/shared/memory.rs",
    "crates/kernels/src/products/tile.rs",
    "crates/kernels/src/columns.rs",
    "crates/kernels/src/fork_join.rs",
    "crates/kernels/src/gemm_call.rs",
    "crates/tensor/src/storage/unwritten.rs",
];

/// The longest a source file may be.
const MAX_LINES: usize = 600;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = match fs::read_dir(folder) {
        Ok(entries) => entries.filter_map(Result::ok).map(|entry| entry.path()).collect(),
        Err(_) => return,
    };
    entries.sort();
    for path in entries {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Every Rust file of the workspace with its text and its path from the root.
fn all_sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for top in ["crates", "xtask", "benches"] {
        sources(&root().join(top), &mut found);
    }
    found
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).expect("a source file is readable UTF-8");
            let name = path.strip_prefix(root()).expect("below the root").display().to_string();
            (name, text)
        })
        .collect()
}

/// Collects every breach before failing, so that one run shows them all.
fn report(rule: &str, breaches: &[String]) {
    assert!(breaches.is_empty(), "{rule}:\n  {}", breaches.join("\n  "));
}

/// The part of a file before its unit tests.
fn without_tests(text: &str) -> &str {
    text.split("#[cfg(test)]").next().unwrap_or(text)
}

#[test]
fn dependencies_point_one_way() {
    let mut breaches = Vec::new();
    let allowed: BTreeMap<_, BTreeSet<_>> =
        EDGES.iter().map(|(from, to)| (*from, to.iter().copied().collect())).collect();
    for folder in fs::read_dir(root().join("crates")).expect("crates/ exists").filter_map(Result::ok) {
        let name = folder.file_name().into_string().expect("crate folders have plain names");
        let manifest = fs::read_to_string(folder.path().join("Cargo.toml")).expect("a crate has a manifest");
        let Some(allowed) = allowed.get(name.as_str()) else {
            breaches.push(format!("crates/{name} is not in the table of allowed edges"));
            continue;
        };
        let normal = manifest.split("[dev-dependencies]").next().unwrap_or_default();
        for line in normal.lines().filter_map(|line| line.strip_prefix("phalanx-")) {
            let to = line.split(['.', ' ', '=']).next().unwrap_or_default();
            if !allowed.contains(to) {
                breaches.push(format!("crates/{name} depends on {to}"));
            }
        }
    }
    report("only the edges of the architecture page are allowed", &breaches);
}

#[test]
fn kernels_and_collectives_and_data_know_no_tensors() {
    let mut breaches = Vec::new();
    for name in ["kernels", "collectives", "data"] {
        let manifest =
            fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).expect("manifest");
        let candle =
            manifest.lines().find(|line| line.starts_with("candle") && !line.contains("optional = true"));
        breaches.extend(candle.map(|line| format!("crates/{name}: {line}")));
    }
    report("kernels, collectives and data work without candle", &breaches);
}

#[test]
fn only_the_programs_print() {
    let prints = ["println!(", "eprintln!(", "print!(", "eprint!("];
    let mut breaches = Vec::new();
    for (name, text) in all_sources() {
        let program =
            ["crates/trainer/src/bin/", "crates/trainer/src/cli", "crates/trainer/src/console", "xtask/"]
                .iter()
                .any(|start| name.starts_with(start));
        if program || name.contains("/examples/") || name.contains("/tests/") || name.starts_with("benches/")
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
fn unsafe_lives_in_named_modules() {
    let mut breaches = Vec::new();
    for name in SAFE {
        let text = fs::read_to_string(root().join("crates").join(name).join("src/lib.rs")).expect("lib.rs");
        if !text.contains("#![forbid(unsafe_code)]") {
            breaches.push(format!("crates/{name}/src/lib.rs: lacks #![forbid(unsafe_code)]"));
        }
    }
    for name in ["collectives", "kernels", "tensor"] {
        let text = fs::read_to_string(root().join("crates").join(name).join("src/lib.rs")).expect("lib.rs");
        if !text.contains("#![deny(unsafe_code)]") {
            breaches.push(format!("crates/{name}/src/lib.rs: lacks #![deny(unsafe_code)]"));
        }
    }
    for (name, text) in all_sources() {
        let allows = text.lines().any(|line| line.starts_with("#![allow(unsafe_code)]"));
        if allows && !UNSAFE_MODULES.contains(&name.as_str()) {
            breaches.push(format!("{name}: allows unsafe code; only {UNSAFE_MODULES:?} may"));
        }
    }
    report("unsafe code lives in few named modules", &breaches);
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
fn every_dependency_has_its_reason() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("root manifest");
    let page = fs::read_to_string(root().join("docs/dependencies.md")).expect("docs/dependencies.md");
    let table = manifest.split("[workspace.dependencies]").nth(1).expect("the table of dependencies");
    let table = table.split("\n[").next().unwrap_or_default();
    let missing: Vec<_> = table
        .lines()
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
        .filter_map(|line| line.split(' ').next())
        .filter(|name| !name.starts_with("phalanx-") && !page.contains(&format!("`{name}`")))
        .map(str::to_owned)
        .collect();
    report("docs/dependencies.md says why each library was chosen", &missing);
}

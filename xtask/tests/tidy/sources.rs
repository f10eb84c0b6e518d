//! The files of the workspace, and the report of violations.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folders with sources.
const TOPS: [&str; 5] = ["crates", "xtask", "benches", "fuzz", "parity"];

/// A virtual environment of Python has files of other projects.
fn is_foreign(folder: &Path) -> bool {
    folder.join("pyvenv.cfg").is_file()
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> = match fs::read_dir(folder) {
        Ok(entries) => entries.filter_map(Result::ok).map(|entry| entry.path()).collect(),
        Err(_) => return,
    };
    entries.sort();
    for path in entries {
        if path.is_dir() && is_foreign(&path) {
            continue;
        }
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn name(path: &Path) -> String {
    path.strip_prefix(root()).expect("below the root").display().to_string()
}

/// Returns the path from the root of every file in the source folders, `docs` and the root.
pub(crate) fn all_files() -> Vec<String> {
    let mut found = Vec::new();
    for top in TOPS.into_iter().chain(["docs", ".ci"]) {
        files(&root().join(top), &mut found);
    }
    let here = fs::read_dir(root()).expect("the root").filter_map(Result::ok).map(|entry| entry.path());
    found.extend(here.filter(|path| path.is_file()));
    found.iter().map(|path| name(path)).collect()
}

fn ending_with(ending: &str) -> Vec<(String, String)> {
    let read = |name: String| {
        let text = fs::read_to_string(root().join(&name)).expect("a file is readable UTF-8");
        (name, text)
    };
    all_files().into_iter().filter(|name| name.ends_with(ending)).map(read).collect()
}

/// Returns every Rust file of the workspace, with its path from the root and its text.
pub(crate) fn all_sources() -> Vec<(String, String)> {
    ending_with(".rs")
}

/// Returns every page except the changelog, with its path from the root and its text.
pub(crate) fn pages() -> Vec<(String, String)> {
    let mut pages = ending_with(".md");
    pages.retain(|(name, _)| name != "CHANGELOG.md");
    pages
}

/// Collects all violations before failing, so that one run shows them all.
pub(crate) fn report(rule: &str, breaches: &[String]) {
    assert!(breaches.is_empty(), "{rule}:\n  {}", breaches.join("\n  "));
}

//! The files of the workspace, and how breaches are told.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
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
pub(crate) fn all_sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for top in ["crates", "xtask", "benches", "fuzz"] {
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
pub(crate) fn report(rule: &str, breaches: &[String]) {
    assert!(breaches.is_empty(), "{rule}:\n  {}", breaches.join("\n  "));
}

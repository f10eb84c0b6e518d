//! Features of packages do not depend on the selection of packages, so that no crate is compiled twice.

use std::collections::BTreeMap;
use std::process::Command;

use crate::sources::{report, root};

/// The features of each package in a build of the selected packages.
fn features(selection: &[&str]) -> BTreeMap<String, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["tree", "--edges", "normal,build", "--prefix", "none", "--format", "{p}|{f}"]);
    let output = command.args(selection).current_dir(root()).output().expect("cargo starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).replace(" (*)", "");
    text.lines().filter_map(|line| line.split_once('|')).map(|(p, f)| (p.to_owned(), f.to_owned())).collect()
}

#[test]
fn programs_of_developers_add_no_features() {
    let (program, all) = (features(&[]), features(&["--workspace", "--exclude", "phalanx-fuzz"]));
    let differs = program.iter().filter(|(package, features)| all.get(*package) != Some(*features));
    let breaches: Vec<String> = differs
        .map(|(package, features)| format!("{package}: `{features}` by itself, `{}` with all", all[package]))
        .collect();
    report("`cargo build` and `cargo xtask` compile the same", &breaches);
}

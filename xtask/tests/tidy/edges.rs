//! The allowed dependencies between crates, and the reason for each library.

use std::collections::BTreeSet;
use std::fs;

use crate::sources::{all_sources, report, root};

/// The allowed dependencies between the crates of this workspace, then the additional ones of tests and examples.
/// Adding one is a decision; see the architecture page.
const EDGES: &[(&str, &[&str], &[&str])] = &[
    ("kernels", &[], &[]),
    ("cuda", &["kernels"], &["collectives"]),
    ("environment", &[], &["fuzz-harness"]),
    ("collectives", &["environment"], &["fuzz-harness"]),
    ("data", &[], &[]),
    ("text", &["data"], &[]),
    ("array", &["kernels", "cuda"], &[]),
    ("tensor", &["kernels", "cuda", "array"], &[]),
    ("models", &["tensor"], &[]),
    ("codecs", &["kernels", "tensor", "collectives"], &[]),
    ("sharding", &["kernels", "tensor", "collectives", "codecs"], &["models", "fuzz-harness"]),
    ("trace", &[], &[]),
    ("charts", &[], &[]),
    ("allocator", &[], &[]),
    ("run", &["charts", "data"], &[]),
    ("onnx", &["tensor", "run"], &[]),
    ("checkpoint", &["tensor", "run"], &["collectives", "models", "sharding"]),
    ("launch", &["collectives", "environment", "run", "trace"], &["data"]),
    ("report", &["charts", "collectives", "data", "run", "trace"], &["fuzz-harness"]),
    ("config", &["collectives", "data", "models", "run", "sharding", "tensor", "trace"], &[]),
    ("datasets", &["data", "run", "config"], &[]),
    ("batches", &["tensor", "data"], &[]),
    ("weights", &["tensor", "run", "checkpoint", "config"], &[]),
    ("usage", &["run", "trace"], &[]),
    ("quality", &["array"], &[]),
    (
        "trainer",
        &[
            "tensor",
            "cuda",
            "collectives",
            "sharding",
            "data",
            "run",
            "onnx",
            "checkpoint",
            "trace",
            "config",
            "batches",
            "datasets",
            "quality",
            "usage",
            "weights",
        ],
        &["fuzz-harness"],
    ),
    (
        "cli",
        &[
            "tensor",
            "cuda",
            "collectives",
            "sharding",
            "charts",
            "data",
            "text",
            "run",
            "checkpoint",
            "trace",
            "launch",
            "report",
            "config",
            "datasets",
            "trainer",
            "weights",
        ],
        &[],
    ),
    (
        "phalanx",
        &[
            "allocator",
            "tensor",
            "batches",
            "data",
            "text",
            "models",
            "run",
            "checkpoint",
            "trace",
            "launch",
            "report",
            "config",
            "datasets",
            "quality",
            "usage",
            "weights",
            "trainer",
            "cli",
        ],
        &["collectives", "cuda", "sharding", "fuzz-harness"],
    ),
];

/// Returns the dependencies in a manifest, with true for those that only tests and examples use.
fn dependencies(manifest: &str) -> Vec<(bool, &str)> {
    let (mut inside, mut of_tests) = (false, false);
    let mut found = Vec::new();
    for line in manifest.lines() {
        if let Some(section) = line.strip_prefix('[') {
            let section = section.trim_end_matches(']');
            inside = section.ends_with("dependencies");
            of_tests = section.ends_with("dev-dependencies");
        } else if inside && line.starts_with(|c: char| c.is_ascii_alphabetic()) {
            found.push((of_tests, line.split(['.', ' ', '=']).next().unwrap_or_default()));
        }
    }
    found
}

/// Returns the folders of all crates, from the root, with their manifests.
fn manifests() -> Vec<(String, String)> {
    let crates = fs::read_dir(root().join("crates")).expect("crates/ exists").filter_map(Result::ok);
    let crates = crates.map(|folder| format!("crates/{}", folder.file_name().to_string_lossy()));
    let developers = ["benches", "fuzz", "fuzz/harness", "parity", "xtask"].map(str::to_owned);
    let read = |folder: String| {
        let manifest = fs::read_to_string(root().join(&folder).join("Cargo.toml"));
        (folder, manifest.expect("a crate has a manifest"))
    };
    crates.chain(developers).map(read).collect()
}

#[test]
fn dependencies_point_one_way() {
    let mut breaches = Vec::new();
    for folder in fs::read_dir(root().join("crates")).expect("crates/ exists").filter_map(Result::ok) {
        let name = folder.file_name().into_string().expect("crate folders have plain names");
        let manifest = fs::read_to_string(folder.path().join("Cargo.toml")).expect("a crate has a manifest");
        let Some((_, allowed, in_tests)) = EDGES.iter().find(|(from, ..)| *from == name) else {
            breaches.push(format!("crates/{name} is not in the table of allowed edges"));
            continue;
        };
        for (of_tests, to) in dependencies(&manifest) {
            let Some(to) = to.strip_prefix("phalanx-") else { continue };
            if !(allowed.contains(&to) || of_tests && in_tests.contains(&to)) {
                let who = if of_tests { "tests depend" } else { "depends" };
                breaches.push(format!("crates/{name} {who} on {to}"));
            }
        }
    }
    report("only the edges of the architecture page are allowed", &breaches);
}

#[test]
fn dependencies_are_found_in_every_section() {
    let manifest = "[package]\nname = \"x\"\n[dependencies]\nphalanx-a.workspace = true\nb = \"1\"\n\
                    [target.'cfg(unix)'.dependencies]\nc = \"1\"\n[lints]\nworkspace = true\n\
                    [dev-dependencies]\nphalanx-d = { workspace = true }\n";
    assert_eq!(
        dependencies(manifest),
        [(false, "phalanx-a"), (false, "b"), (false, "c"), (true, "phalanx-d")]
    );
}

#[test]
fn kernels_and_collectives_and_data_know_no_tensors() {
    let mut breaches = Vec::new();
    for name in ["kernels", "cuda", "collectives", "data"] {
        let manifest =
            fs::read_to_string(root().join("crates").join(name).join("Cargo.toml")).expect("manifest");
        let candle =
            manifest.lines().find(|line| line.starts_with("candle") && !line.contains("optional = true"));
        breaches.extend(candle.map(|line| format!("crates/{name}: {line}")));
    }
    report("kernels, cuda, collectives and data work without candle", &breaches);
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
        .filter(|name| !name.starts_with("phalanx") && !page.contains(&format!("`{name}`")))
        .map(str::to_owned)
        .collect();
    report("docs/dependencies.md says why each library was chosen", &missing);
}

#[test]
fn every_reason_has_its_dependency() {
    let page = fs::read_to_string(root().join("docs/dependencies.md")).expect("docs/dependencies.md");
    let chosen = page.split("## Not chosen").next().unwrap_or_default();
    let mut used = BTreeSet::new();
    for (_, manifest) in manifests() {
        used.extend(dependencies(&manifest).into_iter().map(|(_, name)| name.to_owned()));
    }
    let rows = chosen.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let unused: Vec<_> = rows.filter(|name| !used.contains(*name)).map(str::to_owned).collect();
    report("docs/dependencies.md has no row of a library that no crate uses", &unused);
}

/// Returns the identifiers in the sources below a folder.
fn identifiers(below: &str) -> BTreeSet<String> {
    let sources = all_sources().into_iter().filter(|(name, _)| name.starts_with(below));
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    sources.flat_map(|(_, text)| text.split(|c| !is_part(c)).map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn every_dependency_is_used() {
    let mut unused = Vec::new();
    for (folder, manifest) in manifests() {
        let [own, all] = [format!("{folder}/src/"), format!("{folder}/")].map(|below| identifiers(&below));
        let found = dependencies(&manifest).into_iter();
        let found = found.filter(|(of_tests, name)| {
            let known = if *of_tests { &all } else { &own };
            !known.contains(&name.replace('-', "_"))
        });
        unused.extend(found.map(|(_, name)| format!("{folder} does not use {name}")));
    }
    report("crates depend on what they use", &unused);
}

//! Modules of a crate form no circle: whoever reads them can begin at the bottom.

use std::collections::{BTreeMap, BTreeSet};

use crate::code::{paths, tokens, uses, without_test_items};
use crate::sources::{all_sources, report};

/// Folders whose modules are looked at, beside every crate's.
const FOLDERS: &[&str] = &["crates/trainer/src/engine"];

/// A folder of modules: the path of its own module, from the crate's root.
struct Area<'a> {
    folder: &'a str,
    own: Vec<String>,
}

/// Who names whom, with one place for each.
type Edges = BTreeMap<String, BTreeMap<String, String>>;

impl Area<'_> {
    /// The modules of a file below the folder, from the crate's root: those of `a/b.rs` and `a/b/mod.rs` are `a`, `b`. None for
    /// the folder's own file.
    fn modules_of(&self, file: &str) -> Option<Vec<String>> {
        let path = file.strip_prefix(self.folder)?.strip_prefix('/')?.strip_suffix(".rs")?;
        let path = path.strip_suffix("/mod").unwrap_or(path);
        if ["lib", "main", "mod"].contains(&path) || path.starts_with("bin/") {
            return None;
        }
        Some(self.own.iter().cloned().chain(path.split('/').map(str::to_owned)).collect())
    }

    /// Which module names which, outside of tests.
    fn edges(&self, files: &[(String, String)]) -> Edges {
        let depth = self.own.len();
        let of_file: Vec<_> =
            files.iter().filter_map(|(name, text)| Some((name, text, self.modules_of(name)?))).collect();
        let modules: BTreeSet<&str> = of_file.iter().map(|(_, _, path)| path[depth].as_str()).collect();
        // What the folder's own file brings in counts as the module that it comes from.
        let mut origins: BTreeMap<String, String> = BTreeMap::new();
        for own in ["lib.rs", "main.rs", "mod.rs"].map(|file| format!("{}/{file}", self.folder)) {
            let Some((_, text)) = files.iter().find(|(name, _)| *name == own) else { continue };
            for brought in uses(&without_test_items(&tokens(text))) {
                let from = brought.path.iter().find(|part| !["self", "crate"].contains(&part.as_str()));
                if let Some(from) = from.filter(|from| modules.contains(from.as_str())) {
                    origins.insert(brought.name, from.clone());
                }
            }
        }
        let mut edges = Edges::new();
        for (name, text, path) in &of_file {
            for named in paths(&without_test_items(&tokens(text)), path) {
                let Some(to) = named.strip_prefix(self.own.as_slice()).and_then(|rest| rest.first()) else {
                    continue;
                };
                let to = if modules.contains(to.as_str()) { Some(to) } else { origins.get(to) };
                if let Some(to) = to.filter(|to| **to != path[depth]) {
                    let places = edges.entry(path[depth].clone()).or_default();
                    places.entry(to.clone()).or_insert_with(|| format!("{name} names {}", named.join("::")));
                }
            }
        }
        edges
    }
}

/// Everything that can be reached from a module, itself only if there is a way back.
fn reached<'a>(edges: &'a Edges, from: &str) -> BTreeSet<&'a str> {
    let mut found = BTreeSet::new();
    let mut open: Vec<&str> = vec![from];
    while let Some(next) = open.pop() {
        for to in edges.get(next).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(to.as_str()) {
                open.push(to);
            }
        }
    }
    found
}

/// The modules that reach each other, as sets, each with the places where one names another of its set.
fn circles(edges: &Edges) -> Vec<(BTreeSet<&str>, Vec<&str>)> {
    let mut found: Vec<(BTreeSet<&str>, Vec<&str>)> = Vec::new();
    for module in edges.keys() {
        let onwards = reached(edges, module);
        if !onwards.contains(module.as_str()) || found.iter().any(|(set, _)| set.contains(module.as_str())) {
            continue;
        }
        let set: BTreeSet<&str> =
            onwards.into_iter().filter(|other| reached(edges, other).contains(module.as_str())).collect();
        let inside = |from: &&str| edges[*from].iter().filter(|(to, _)| set.contains(to.as_str()));
        let places = set.iter().flat_map(|from| inside(from)).map(|(_, place)| place.as_str()).collect();
        found.push((set, places));
    }
    found
}

#[test]
fn modules_form_no_circles() {
    let files = all_sources();
    let crates: BTreeSet<String> =
        files.iter().filter_map(|(name, _)| Some(format!("{}/src", name.split_once("/src/")?.0))).collect();
    let whole = crates.iter().map(|folder| Area { folder, own: Vec::new() });
    let parts = FOLDERS.iter().map(|folder| {
        let own = folder.split_once("/src/").map_or("", |(_, path)| path);
        Area { folder, own: own.split('/').map(str::to_owned).collect() }
    });
    let mut breaches = Vec::new();
    for area in whole.chain(parts) {
        let edges = area.edges(&files);
        assert!(
            !edges.is_empty() || area.folder.starts_with("xtask"),
            "{}: no module names another",
            area.folder
        );
        for (set, places) in circles(&edges) {
            breaches.push(format!("{} {set:?}:\n    {}", area.folder, places.join("\n    ")));
        }
    }
    report("modules can be read from the bottom up", &breaches);
}

#[test]
fn a_circle_is_found_and_a_ladder_is_none() {
    let file = |name: &str, text: &str| (format!("crates/x/src/{name}"), text.to_owned());
    let mut files = vec![
        file("lib.rs", "mod a; mod b; mod c; pub use b::inner::B; pub use c::C as D;"),
        file("a.rs", "use crate::B; // use crate::D;"),
        file("b/mod.rs", "pub mod inner; #[cfg(test)] mod tests { use crate::a::A; }"),
        file("b/inner.rs", "use super::super::D; pub struct B;"),
        file("c.rs", "pub struct C; const TEXT: &str = \"crate::a\";"),
    ];
    let area = Area { folder: "crates/x/src", own: Vec::new() };
    let edges = area.edges(&files);
    assert_eq!(
        edges.iter().map(|(from, to)| (from.as_str(), to.len())).collect::<Vec<_>>(),
        [("a", 1), ("b", 1)]
    );
    assert!(circles(&edges).is_empty());
    files[4].1.push_str("use crate::a::A;");
    let edges = area.edges(&files);
    let found = circles(&edges);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].0, BTreeSet::from(["a", "b", "c"]));
    assert!(found[0].1.contains(&"crates/x/src/c.rs names a::A"), "{:?}", found[0].1);
    let inside = Area { folder: "crates/x/src/b", own: vec!["b".to_owned()] };
    assert!(inside.edges(&files).is_empty());
}

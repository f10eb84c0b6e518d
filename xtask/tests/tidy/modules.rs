//! Modules of one folder have no cyclic dependencies, so that a reader can begin at the bottom.
//!
//! Every folder of every crate is checked. A module may use types of its parent's file: that is not a cycle between
//! siblings.

use std::collections::{BTreeMap, BTreeSet};

use crate::code::{paths, tokens, uses, without_test_items};
use crate::sources::{all_sources, report};

/// The permanent cycles: the folder, its modules, and the reason.
const ACCEPTED: &[(&str, &[&str], &str)] = &[
    (
        "crates/cuda/src/memory",
        &["block", "pool", "reserve", "slice", "uses"],
        "a block returns its memory to the pool that made it",
    ),
    (
        "crates/config/src",
        &["key_types", "keys", "parallel_degree", "section", "settings"],
        "a configuration holds the settings of its task, which check themselves against the configuration",
    ),
];

/// The cycles to remove. Delete an entry with its cycle; do not add any.
const NOT_MENDED: &[(&str, &[&str])] = &[];

/// A folder of modules, and the path of its own module from the crate's root.
struct Area {
    folder: String,
    own: Vec<String>,
}

/// The modules that each module names, with one location for each.
type Edges = BTreeMap<String, BTreeMap<String, String>>;

impl Area {
    /// The modules of a file below the folder, from the crate's root: those of `a/b.rs` and `a/b/mod.rs` are `a`, `b`. None for
    /// the folder's own file.
    fn modules_of(&self, file: &str) -> Option<Vec<String>> {
        let path = file.strip_prefix(&self.folder)?.strip_prefix('/')?.strip_suffix(".rs")?;
        let path = path.strip_suffix("/mod").unwrap_or(path);
        if ["lib", "main", "mod"].contains(&path) || path.starts_with("bin/") {
            return None;
        }
        Some(self.own.iter().cloned().chain(path.split('/').map(str::to_owned)).collect())
    }

    /// The files that may be the folder's own: `a/mod.rs` or `a.rs`, and those of a crate's root.
    fn own_files(&self) -> Vec<String> {
        let inside = ["lib.rs", "main.rs", "mod.rs"].map(|file| format!("{}/{file}", self.folder));
        inside.into_iter().chain([format!("{}.rs", self.folder)]).collect()
    }

    /// The names that the folder's own file brings in from `modules`, each with its module.
    fn origins(&self, files: &[(String, String)], modules: &BTreeSet<&str>) -> BTreeMap<String, String> {
        let mut origins = BTreeMap::new();
        for own in self.own_files() {
            let Some((_, text)) = files.iter().find(|(name, _)| *name == own) else { continue };
            for brought in uses(&without_test_items(&tokens(text))) {
                let from = brought.path.iter().find(|part| !["self", "crate"].contains(&part.as_str()));
                if let Some(from) = from.filter(|from| modules.contains(from.as_str())) {
                    origins.insert(brought.name, from.clone());
                }
            }
        }
        origins
    }

    /// The modules that each module names outside of tests.
    fn edges(&self, files: &[(String, String)]) -> Edges {
        let depth = self.own.len();
        let of_file: Vec<_> =
            files.iter().filter_map(|(name, text)| Some((name, text, self.modules_of(name)?))).collect();
        let modules: BTreeSet<&str> = of_file.iter().map(|(_, _, path)| path[depth].as_str()).collect();
        let origins = self.origins(files, &modules);
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

/// Every folder of modules: those with a crate's root, and those below them.
fn areas(files: &[(String, String)]) -> Vec<Area> {
    let folders: BTreeSet<&str> =
        files.iter().filter_map(|(name, _)| Some(name.rsplit_once('/')?.0)).collect();
    let has = |folder: &str, file: &str| files.iter().any(|(name, _)| *name == format!("{folder}/{file}"));
    let roots: Vec<&str> =
        folders.iter().copied().filter(|folder| has(folder, "lib.rs") || has(folder, "main.rs")).collect();
    let mut found = Vec::new();
    for folder in folders {
        let root = roots.iter().find(|root| {
            folder == **root || folder.strip_prefix(**root).is_some_and(|rest| rest.starts_with('/'))
        });
        let Some(root) = root.filter(|root| !folder[root.len()..].starts_with("/bin")) else { continue };
        let own = folder[root.len()..].split('/').filter(|part| !part.is_empty()).map(str::to_owned);
        found.push(Area { folder: folder.to_owned(), own: own.collect() });
    }
    found
}

/// Returns all modules reachable from a module, including itself only in a cycle.
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

/// Returns the cycles: sets of modules that reach each other, with the locations of the references.
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

/// Returns true if every module of a cycle is in an entry for its folder.
fn is_in(entry: (&str, &[&str]), folder: &str, circle: &BTreeSet<String>) -> bool {
    entry.0 == folder && circle.iter().all(|module| entry.1.contains(&module.as_str()))
}

#[test]
fn modules_form_no_circles() {
    let files = all_sources();
    let mut found: Vec<(String, BTreeSet<String>, String)> = Vec::new();
    for area in areas(&files) {
        for (set, places) in circles(&area.edges(&files)) {
            let set = set.into_iter().map(str::to_owned).collect();
            found.push((area.folder.clone(), set, places.join("\n    ")));
        }
    }
    let known = || ACCEPTED.iter().map(|(folder, set, _)| (*folder, *set)).chain(NOT_MENDED.iter().copied());
    let mut breaches = Vec::new();
    for (folder, set, places) in &found {
        if !known().any(|entry| is_in(entry, folder, set)) {
            breaches.push(format!("{folder} {set:?}:\n    {places}"));
        }
    }
    for entry in known() {
        if !found.iter().any(|(folder, set, _)| is_in(entry, folder, set)) {
            breaches.push(format!("{} {:?}: no circle any more; take it out of the table", entry.0, entry.1));
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
    let area = Area { folder: "crates/x/src".to_owned(), own: Vec::new() };
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
    let all = areas(&files);
    assert_eq!(all.iter().map(|area| area.own.len()).collect::<Vec<_>>(), [0, 1]);
    assert!(all[1].edges(&files).is_empty());
}

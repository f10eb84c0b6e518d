//! Prefixes that wrappers of PyTorch put before the names of parameters.

use std::collections::{BTreeMap, BTreeSet};

/// Names of wrappers: `DataParallel` and `DistributedDataParallel`, `torch.compile`, and trainers that own a `model`.
const WRAPPERS: [&str; 3] = ["module.", "_orig_mod.", "model."];

/// Names of wrappers within a name, which no model has itself.
const INSIDE: [&str; 3] = ["_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module."];

/// The largest number of wrappers around a model.
const NESTED: usize = 4;

/// Removes the wrappers that are not at a name's beginning.
fn without_inner_wrappers(name: &str) -> String {
    INSIDE.iter().fold(name.to_owned(), |name, wrapper| name.replace(&format!(".{wrapper}"), "."))
}

/// Returns the prefixes of wrappers that names begin with, shortest first: the empty one, `module.`,
/// `module._orig_mod.`, …
pub(super) fn prefixes<'a>(names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = BTreeSet::from([""]);
    for name in names {
        let mut end = 0;
        for _ in 0..NESTED {
            let all = WRAPPERS.iter().chain(&INSIDE);
            let Some(wrapper) = all.into_iter().find(|wrapper| name[end..].starts_with(**wrapper)) else {
                break;
            };
            end += wrapper.len();
            found.insert(&name[..end]);
        }
    }
    let mut found: Vec<&str> = found.into_iter().collect();
    found.sort_by_key(|prefix| prefix.len());
    found
}

/// Returns the names of a file without wrappers, by name in the file: without the prefix (`module.`, `_orig_mod.`,
/// `model.`, or several) that leaves the most names that `is_wanted` accepts.
pub fn without_wrappers(all: &[&str], is_wanted: &dyn Fn(&str) -> bool) -> BTreeMap<String, String> {
    let mut best = (0, BTreeMap::new());
    for prefix in prefixes(all.iter().copied()) {
        let names = without_prefix(all, prefix);
        let count = names.keys().filter(|name| is_wanted(name)).count();
        if prefix.is_empty() || count > best.0 {
            best = (count, names);
        }
    }
    best.1.into_iter().map(|(plain, own)| (own.to_owned(), plain)).collect()
}

/// Names in the file by names without `prefix` and without inner wrappers. Names that do not begin with the prefix
/// keep their beginning.
pub(super) fn without_prefix<'a>(all: &[&'a str], prefix: &str) -> BTreeMap<String, &'a str> {
    let plain = all.iter().filter(|name| !name.starts_with(prefix));
    let mut names: BTreeMap<String, &str> = plain.map(|name| (without_inner_wrappers(name), *name)).collect();
    for name in all {
        names.extend(name.strip_prefix(prefix).map(|plain| (without_inner_wrappers(plain), *name)));
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_wrappers_are_found_at_the_beginning() {
        let names = ["module._orig_mod.conv.weight", "module.model.x", "conv.module.bias", "models.x"];
        assert_eq!(prefixes(names.into_iter()), ["", "module.", "module.model.", "module._orig_mod."]);
        assert_eq!(without_inner_wrappers("layer1._orig_mod.0.weight"), "layer1.0.weight");
        assert_eq!(without_inner_wrappers("_orig_mod.weight"), "_orig_mod.weight");
        assert_eq!(prefixes(["model.".repeat(9).as_str()].into_iter()).len(), 5);
    }
}

//! Checks that the page of environment variables has all of them.

use std::collections::BTreeSet;

use crate::sources::{all_sources, pages, report};

/// Returns the names of variables that a source quotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('"').skip(1).filter(|text| {
        let name = text.strip_prefix("PHALANX_").unwrap_or_default();
        !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
    })
}

#[test]
fn every_environment_variable_is_on_its_page() {
    let page = pages().into_iter().find(|(name, _)| name == "docs/environment.md").expect("the page").1;
    let mut missing = BTreeSet::new();
    for (file, text) in all_sources() {
        let is_program =
            file.starts_with("crates/") && file.contains("/src/") && !file.ends_with("/tests.rs");
        let names = quoted(&text).filter(|name| is_program && !page.contains(&format!("`{name}`")));
        missing.extend(names.map(|name| format!("{file}: {name}")));
    }
    report("docs/environment.md has every variable", &missing.into_iter().collect::<Vec<_>>());
}

#[test]
fn names_of_variables_are_told_from_other_texts() {
    let found: Vec<_> = quoted(r#"get("PHALANX_PORT"), "PHALANX_", "of PHALANX_PORT", "PORT""#).collect();
    assert_eq!(found, ["PHALANX_PORT"]);
}

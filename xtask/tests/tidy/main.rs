//! The house rules as tests: the invariants of `docs/architecture.md`, checked on the sources.
//!
//! `sources` finds and reads the files, `code` parses them. `edges` checks dependencies of crates, `features` their
//! features, and `modules` cycles between modules. `safety` checks unsafe code, `style` single files, `paths` pages,
//! `variables` the page of environment variables.
//! `counts` holds the counts of `words` and `shapes`, which may only decrease.

mod code;
mod counts;
mod edges;
mod features;
mod modules;
mod paths;
mod safety;
mod shapes;
mod sources;
mod style;
mod variables;
mod words;

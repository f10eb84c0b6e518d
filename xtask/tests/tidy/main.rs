//! The house rules as tests: the invariants of `docs/architecture.md`, read off the sources.
//!
//! `sources` finds and reads the files, `code` takes them apart. `edges` looks at crates, `features` at their selection, `modules` at circles inside of them, `safety`
//! at unsafe code, `style` at single files, `paths` at pages. `counts` holds numbers that may only fall: of `words` and of `shapes`.

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
mod words;

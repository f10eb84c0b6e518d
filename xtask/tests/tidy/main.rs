//! The house rules as tests: the invariants of `docs/architecture.md`, read off the sources.
//!
//! `sources` finds and reads the files, `code` takes them apart; `edges` looks at crates, `modules` at circles inside of
//! them, `safety` at unsafe code, `style` at single files.

mod code;
mod edges;
mod modules;
mod safety;
mod sources;
mod style;

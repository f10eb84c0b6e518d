//! Kinds and algorithms of operations, and the tags by which ranks tell them apart.

mod kind;

mod algorithm;
mod tag;

pub use algorithm::Algorithm;
pub(crate) use kind::Kind;
pub(crate) use tag::{Scope, Sequences, Tag};

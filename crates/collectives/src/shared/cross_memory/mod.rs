//! Buffers of other ranks of this host, read where they lie (cross memory attach): who may be read and how, and the
//! operations that do it.

mod access;
mod operations;

pub(crate) use access::{CrossMemory, expose};

//! Access to the memory of other ranks of this host (cross memory attach).

mod access;

pub(crate) use access::{CrossMemory, expose};

//! Cores where the system does not tell of them.

use std::io;

/// Nobody is bound here, as far as one knows.
pub(super) fn allowed() -> Vec<usize> {
    (0..cores()).collect()
}

pub(super) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

pub(super) fn near(_: &str) -> Vec<usize> {
    Vec::new()
}

pub(super) fn bind(_: &[usize], _: bool) -> io::Result<()> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "this system does not bind threads to cores"))
}

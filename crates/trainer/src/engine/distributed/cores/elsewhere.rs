//! Cores on systems without affinity.

use std::io;

/// All cores: threads are not bound here.
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

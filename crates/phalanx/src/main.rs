//! The `phalanx` program: all of it is in the library, so that tests and other programs can use it.

use std::process::ExitCode;

/// Training allocates and frees large buffers every step; this allocator keeps them instead of giving the pages
/// back to the system, which would fault each of them in again.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    phalanx::main(&phalanx::program())
}

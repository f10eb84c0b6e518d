//! The `phalanx` program: all of it is in the library, so that tests and other programs can use it.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: phalanx::Allocator = phalanx::Allocator;

fn main() -> ExitCode {
    phalanx::main(&phalanx::program())
}

//! `phalanx-fuzz`: one reader under libFuzzer. `cargo xtask fuzz` builds and runs it.
//!
//! The environment names the reader (`PHALANX_FUZZ_READER`) and a folder (`PHALANX_FUZZ_INPUTS`) that gets its kept inputs, seeds and
//! dictionary before the run; without a reader the program lists all of them. The arguments are libFuzzer's.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
mod guided;

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("error: `cargo xtask fuzz` builds this program with libFuzzer and runs it");
    std::process::exit(2);
}

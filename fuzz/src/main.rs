//! `phalanx-fuzz`: one reader under libFuzzer. `cargo xtask fuzz` builds and runs it.
//!
//! `PHALANX_FUZZ_READER` names the reader. `PHALANX_FUZZ_INPUTS` is the folder for its kept inputs, seeds and
//! dictionary. Without a reader the program lists all readers. The arguments are libFuzzer's.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
mod guided;

#[cfg(not(fuzzing))]
fn main() {
    eprintln!("error: `cargo xtask fuzz` builds this program with libFuzzer and runs it");
    std::process::exit(2);
}

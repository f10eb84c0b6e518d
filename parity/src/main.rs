//! The program `phalanx-parity`: compares Phalanx with reference files, and prints pass or fail for each quantity.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use phalanx_parity::{Quantity, check};

/// The allocator of the program `phalanx`.
#[global_allocator]
static ALLOCATOR: phalanx_allocator::Allocator = phalanx_allocator::Allocator;

/// Compare with recorded values of the reference implementations. Exit code 1 if anything differs.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask parity", bin_name = "cargo xtask parity")]
struct Args {
    /// Reference files.
    #[arg(required = true, value_name = "FILE.json")]
    files: Vec<PathBuf>,
}

fn main() -> ExitCode {
    let mut failed = 0_usize;
    for path in Args::parse().files {
        println!("{}", path.display());
        match check(&path) {
            Ok(quantities) => failed += print(&quantities),
            Err(error) => {
                failed += 1;
                eprintln!("  FAIL  {error}");
            }
        }
    }
    if failed > 0 {
        eprintln!("error: {failed} quantities differ or could not be computed");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Prints one line per quantity. Returns the number that failed.
fn print(quantities: &[Quantity]) -> usize {
    let width = quantities.iter().map(|quantity| quantity.name.len()).max().unwrap_or_default();
    for quantity in quantities {
        let verdict = if quantity.passes() { "pass" } else { "FAIL" };
        let at = quantity.worst.as_ref().map(|worst| format!(" at {worst}")).unwrap_or_default();
        let widened = quantity.widened.map(|to| format!("; ill-conditioned, so widened to {to:.0e}"));
        println!(
            "  {verdict}  {:<width$}  worst relative error {:.1e} of {:.0e}{at}{}",
            quantity.name,
            quantity.error,
            quantity.tolerance,
            widened.unwrap_or_default()
        );
    }
    quantities.iter().filter(|quantity| !quantity.passes()).count()
}

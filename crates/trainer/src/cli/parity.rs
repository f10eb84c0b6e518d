//! `phalanx parity`: compares with reference values and says pass or fail, quantity by quantity.

use std::path::PathBuf;

use clap::Args;

use super::CliError;
use crate::console::{err, out};
use crate::parity::check;

/// Compares with recorded values of the reference implementations; exit code 1 if anything differs.
#[derive(Debug, Args)]
pub(super) struct ParityArgs {
    /// Reference files.
    #[arg(required = true, value_name = "FILE.json")]
    files: Vec<PathBuf>,
}

pub(super) fn run(args: &ParityArgs) -> Result<(), CliError> {
    let mut failed = 0_usize;
    for path in &args.files {
        out(&path.display().to_string());
        let quantities = match check(path) {
            Ok(quantities) => quantities,
            Err(error) => {
                failed += 1;
                err(&format!("  FAIL  {error}"));
                continue;
            }
        };
        let width = quantities.iter().map(|quantity| quantity.name.len()).max().unwrap_or_default();
        for quantity in &quantities {
            let verdict = if quantity.passes() { "pass" } else { "FAIL" };
            failed += usize::from(!quantity.passes());
            let at = quantity.worst.as_ref().map(|worst| format!(" at {worst}")).unwrap_or_default();
            let widened = quantity.widened.map(|to| format!("; ill-conditioned, so widened to {to:.0e}"));
            out(&format!(
                "  {verdict}  {:<width$}  worst relative error {:.1e} of {:.0e}{at}{}",
                quantity.name,
                quantity.error,
                quantity.tolerance,
                widened.unwrap_or_default()
            ));
        }
    }
    if failed > 0 {
        return Err(CliError::failed(format!("{failed} of the quantities differ or could not be computed")));
    }
    Ok(())
}

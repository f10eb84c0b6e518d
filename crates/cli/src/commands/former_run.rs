//! The option `--run` of earlier versions, which is refused with the command to use.

use std::path::Path;

use clap::Arg;

/// Returns the hidden option `--run` of a command whose run is an argument. Any value of it is an error.
pub(super) fn former_run_option() -> Arg {
    Arg::new("former_run").long("run").hide(true).value_name("RUN").value_parser(refuse)
}

/// Refuses the option while it is parsed, before missing arguments are reported.
fn refuse(run: &str) -> Result<String, String> {
    let program = std::env::args_os().next();
    let program = program.as_deref().and_then(|path| Path::new(path).file_stem()?.to_str());
    let command = std::env::args().nth(1).unwrap_or_default();
    Err(format!("the run is an argument; use: {} {command} {run}", program.unwrap_or("phalanx")))
}

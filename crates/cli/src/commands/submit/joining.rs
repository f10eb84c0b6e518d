//! `phalanx submit --join`: a job whose ranks take part in a run that goes on, as long as the cluster lets them.

use std::path::Path;

use super::SubmitArgs;
use crate::Program;
use crate::commands::error::CliError;
use crate::commands::resolve::configuration_of;
use crate::console::out;
use phalanx_launch::cluster::{JobRecord, Slurm, Work};
use phalanx_run::{RunError, RunFolder, timestamp, write_aside};

/// Gives SLURM the job that joins the run in `run`, or shows its script.
pub(super) fn submit(program: &Program, args: &SubmitArgs, run: &Path) -> Result<(), CliError> {
    let folder = RunFolder::open(run).map_err(CliError::failed)?;
    if let Some(option) = args.first_change() {
        return Err(CliError::Usage(format!("--join takes part in the run as it is; leave out {option}")));
    }
    let config = configuration_of(program, &folder)?.config;
    args.job.check_devices(&config)?;
    if config.elastic().is_none() {
        return Err(CliError::Usage(format!(
            "{} is of a run whose world does not change; begin one with --elastic MIN:MAX",
            folder.path().display()
        )));
    }
    let executable = std::env::current_exe().map_err(CliError::failed)?;
    let place = std::path::absolute(folder.path()).map_err(CliError::failed)?;
    let name = format!("{}-join", place.file_name().unwrap_or_default().to_string_lossy());
    let script = args.job.of(Work::Join, name).script(&executable, &place)?;
    if args.dry_run {
        out(script.trim_end());
        return Ok(());
    }
    let written = place.join("join.sh");
    let unwritten = RunError::io("write", &written);
    write_aside(&written, script.as_bytes()).map_err(unwritten).map_err(CliError::failed)?;
    let id = Slurm.submit(&written)?;
    let record = JobRecord { scheduler: "slurm".to_owned(), id, array: false, submitted: timestamp() };
    record.write_joining(&place)?;
    let shown = folder.path().display();
    out(&format!("job {id} joins {shown}"));
    out(&format!("  {0} status {shown}\n  {0} cancel --joined {shown}", program.name()));
    Ok(())
}

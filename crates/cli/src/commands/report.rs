//! `phalanx report`: a page of what runs trained, what came of it, and what it cost.

use std::path::PathBuf;

use clap::Args;

use super::ending::ending;
use super::error::CliError;
use phalanx_run::format;

use crate::Program;
use crate::console::out;
use phalanx_report::{Defaults, Options, Report};
use phalanx_run::write_aside;

/// Write one HTML file about a run, a sweep, or several runs compared: curves, samples, resources, settings. The file
/// is self-contained.
#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// Folders of runs, of sweeps, or with folders of runs in them.
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// The file, with the ending .html [default: report.html in the first folder].
    #[arg(long, value_name = "FILE.html")]
    out: Option<PathBuf>,
    /// The most pictures of a run that are shown, at even distances over its steps.
    #[arg(long, value_name = "COUNT", default_value_t = Options::default().pictures)]
    pictures: usize,
}

/// Returns the options of reports, with the default values of the program's settings.
pub(super) fn options(program: &Program) -> Options {
    let mut defaults = Defaults::default();
    for task in &program.catalogue().tasks {
        let kind = format!("model.kind=\"{}\"", task.name());
        // Every task has defaults. Without them a report lists all settings as changed.
        if let Ok(resolved) = program.catalogue().resolve(None, &[kind]) {
            defaults
                .insert(task.name(), resolved.config.keys().into_iter().map(|key| (key.path, key.default)));
        }
    }
    Options { defaults, ..Options::default() }
}

pub(super) fn run(program: &Program, args: &ReportArgs) -> Result<(), CliError> {
    if let Some(out) = &args.out {
        ending("--out", out, &["html"])?;
    }
    let options = Options { pictures: args.pictures, ..options(program) };
    let report = Report::collect(&args.runs, &options).map_err(CliError::failed)?;
    let page = report.html();
    let place = args.out.clone().unwrap_or_else(|| args.runs[0].join("report.html"));
    write_aside(&place, page.as_bytes())
        .map_err(|error| CliError::failed(format!("cannot write {}: {error}", place.display())))?;
    out(&format!("{} ({})", place.display(), format::bytes(page.len() as u64)));
    Ok(())
}

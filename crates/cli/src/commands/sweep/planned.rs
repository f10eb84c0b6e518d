//! The configurations of a sweep's runs, and the trials that its search has drawn before.

use std::path::Path;
use std::sync::Arc;

use super::super::error::CliError;
use super::super::resolve::set_data;
use crate::sweep::search::{Search, SearchRecord};
use crate::sweep::{Configure, PlannedRun, Run, SweepFile, Trials};
use phalanx_config::{Catalogue, Config, Resolved};

/// The source of the configurations of runs.
pub(super) struct Configuration {
    pub(super) catalogue: Arc<Catalogue>,
    /// The images of all runs, as in `--data`.
    pub(super) data: Option<String>,
}

impl Configuration {
    fn of(&self, run: &Run) -> Result<Resolved, CliError> {
        let mut resolved = self.catalogue.resolve(Some(&run.extends), &run.sets)?;
        if let Some(data) = &self.data {
            set_data(&mut resolved, data)?;
        }
        resolved.validate()?;
        Ok(resolved)
    }
}

impl Configure for Configuration {
    fn configure(&self, run: &Run) -> Result<Resolved, String> {
        self.of(run).map_err(|error| error.to_string())
    }
}

/// Returns the runs with their configurations. A search may draw settings that cannot be trained, but not only those.
pub(super) fn plan(
    configuration: &Configuration,
    file: &SweepFile,
    runs: &[Run],
) -> Result<Vec<PlannedRun>, CliError> {
    let configured = runs.iter().map(|run| (run.clone(), configuration.of(run)));
    let Some(search) = &file.search else {
        return configured.map(|(run, resolved)| Ok(PlannedRun { run, resolved: Ok(resolved?) })).collect();
    };
    let (mut planned, mut first, mut sound) = (Vec::new(), None, false);
    for (run, resolved) in configured {
        if let Ok(resolved) = &resolved {
            check_prune(search, &resolved.config)?;
            sound = true;
        }
        let resolved = resolved.map_err(|error| {
            let text = error.to_string();
            first.get_or_insert(error);
            text
        });
        planned.push(PlannedRun { run, resolved });
    }
    match first {
        Some(error) if !sound => Err(error),
        _ => Ok(planned),
    }
}

/// Refuses a rule over a number that runs do not write as often as it decides.
fn check_prune(search: &Search, config: &Config) -> Result<(), CliError> {
    let (Some(prune), Some(objective)) = (&search.prune, search.objective()) else { return Ok(()) };
    let (measure, window) = (prune.objective(objective).0, prune.window());
    let (key, every) = match measure.starts_with("test_") {
        true if config.eval.enabled => ("eval.every", config.eval.every),
        true => ("eval.enabled", 0),
        false => ("log.every", config.log.every),
    };
    match every {
        0 => Err(CliError::Usage(format!(
            "[search] prune compares {measure}, which runs have at their ends only; set {key}, or prune.measure = \"loss\""
        ))),
        every if every > window => Err(CliError::Usage(format!(
            "[search] prune decides over {window} steps, but {key} = {every}: some decisions had no {measure}; lower {key}"
        ))),
        _ => Ok(()),
    }
}

/// Reads the trials that were drawn before, and adds them.
pub(super) fn recorded(
    file: &SweepFile,
    trials: &mut Trials,
    folder: &Path,
) -> Result<SearchRecord, CliError> {
    if file.search.is_none() {
        return Ok(SearchRecord::default());
    }
    let record = SearchRecord::read(folder).map_err(CliError::failed)?;
    trials.draw_recorded(file, &record).map_err(|problem| {
        let path = folder.join("search.json");
        CliError::Usage(format!(
            "{} {problem}; choose another folder with --out, or remove this one",
            path.display()
        ))
    })?;
    Ok(record)
}

/// Returns the error of a search of which every trial has failed.
pub(super) fn end_of_searches(failed: &[String]) -> Result<(), CliError> {
    match failed.first() {
        None => Ok(()),
        Some(error) => Err(CliError::failed(format!(
            "every trial of the search failed; the first: {error}\nthe same command tries them again"
        ))),
    }
}

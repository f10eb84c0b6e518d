//! Configurations of runs, and the tasks that they choose.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use phalanx_run::RunFolder;
use phalanx_trainer::config::{Config, Resolved, diff};
use phalanx_trainer::engine::{Evaluator, Task};
use toml::Value;

use super::error::CliError;
use crate::Program;
use crate::console::err;

/// The default folder of runs.
pub(super) const RUNS: &str = "runs";

/// Returns the task that a configuration chooses, with the judges of its samples.
pub(super) fn task_of(program: &Program, config: &Config) -> Result<Task, CliError> {
    let known = |config: &Config| {
        let none = || CliError::Usage(format!("{} has no task `{}`", program.name(), config.model.kind));
        program.task_of(config).cloned().ok_or_else(none)
    };
    let judges = config.quality.judges.iter().map(|judge| {
        let folder = RunFolder::open(Path::new(judge)).map_err(CliError::failed)?;
        let resolved = program.catalogue().resolve_run(&folder.config())?;
        Ok(Evaluator::new(folder.path(), known(&resolved.config)?, resolved.config))
    });
    Ok(known(config)?.with_evaluators(judges.collect::<Result<_, CliError>>()?))
}

/// The folder of the run that this one builds on, inside this one's.
pub(super) fn first_folder(folder: &RunFolder) -> PathBuf {
    folder.path().join("first")
}

/// Reads the configuration of the run in a folder. The path of the run that it builds on follows the folder if that was moved.
pub(super) fn configuration_of(program: &Program, folder: &RunFolder) -> Result<Resolved, CliError> {
    let mut resolved = program.catalogue().resolve_run(&folder.config())?;
    let place = first_folder(folder);
    let key = program.task_of(&resolved.config).and_then(Task::first_key);
    if let Some(key) = key.filter(|_| place.join("config.toml").is_file()) {
        let place = std::path::absolute(place).map_err(CliError::failed)?;
        resolved.set_value("the run before", key, Value::String(place.display().to_string()))?;
    }
    Ok(resolved)
}

/// Applies `--data KIND=PATH`.
pub(super) fn set_data(resolved: &mut Resolved, data: &str) -> Result<(), CliError> {
    let (kind, path) = data.split_once('=').unwrap_or((data, ""));
    let option = format!("--data {data}");
    resolved.set_value(&option, "data.kind", Value::String(kind.to_owned()))?;
    // Absolute, so that the run's config.toml means the same from everywhere.
    let absolute =
        |part| std::path::absolute(part).unwrap_or_else(|_| PathBuf::from(part)).display().to_string();
    // Shards can be given by several paths.
    let parts: Vec<String> = path.split("::").map(absolute).collect();
    let path = if path.is_empty() { String::new() } else { parts.join("::") };
    resolved.set_value(&option, "data.path", Value::String(path))?;
    Ok(())
}

/// Returns the file of the configuration that the current attempt of a run has: a resumption's until that is accepted.
pub(super) fn attempted_config(folder: &RunFolder) -> PathBuf {
    let proposed = folder.proposed_config();
    if proposed.is_file() { proposed } else { folder.config() }
}

/// Reports the keys by which a resumption differs from the run so far, with the first sentence of their meaning.
pub(super) fn report_changes(
    program: &Program,
    folder: &RunFolder,
    resolved: &Resolved,
) -> Result<(), CliError> {
    let before = configuration_of(program, folder)?;
    for line in changes(&before.config, &resolved.config) {
        err(&format!("changed: {line}"));
    }
    Ok(())
}

fn changes(before: &Config, after: &Config) -> Vec<String> {
    let meanings: BTreeMap<String, String> =
        after.keys().into_iter().map(|key| (key.path, key.meaning)).collect();
    let shown = |value: Option<Value>| value.map_or_else(|| "absent".to_owned(), |value| value.to_string());
    let line = |(path, before, after): (String, Option<Value>, Option<Value>)| {
        let meaning = meanings.get(&path).map_or("", String::as_str);
        let meaning = meaning.split_once(['.', ';', ':']).map_or(meaning, |(first, _)| first);
        format!("{path} = {} (was {}): {meaning}", shown(after), shown(before))
    };
    diff(before, after).into_iter().map(line).collect()
}

/// Applies `--parallel`: the degrees of `[parallel]`, as `replicate=2,shard=2`.
pub(super) fn set_parallel(resolved: &mut Resolved, degrees: &str) -> Result<(), CliError> {
    for part in degrees.split(',').filter(|part| !part.trim().is_empty()) {
        let degree = part.split_once('=').and_then(|(name, degree)| {
            let degree = degree.trim().parse::<i64>().ok()?;
            Some((name.trim(), degree))
        });
        let (name, degree) = degree.ok_or_else(|| {
            CliError::Usage(format!("--parallel {degrees}: `{part}` is no degree; write it as `shard=2`"))
        })?;
        let option = format!("--parallel {degrees}");
        resolved.set_value(&option, &format!("parallel.{name}"), Value::Integer(degree))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_keys_are_listed_with_both_values_and_their_meaning() {
        let before = Config::default();
        assert_eq!(changes(&before, &before), [""; 0]);
        let mut after = before.clone();
        (after.optim.lr, after.train.seed) = (0.5, 3);
        let lines = changes(&before, &after);
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[0].starts_with("train.seed = 3 (was 0): "), "{lines:?}");
        assert_eq!(lines[1], "optim.lr = 0.5 (was 0.001): The peak learning rate");
    }
}

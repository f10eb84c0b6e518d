//! Configurations of runs, and the tasks that they choose.

use std::path::{Path, PathBuf};

use phalanx_config::{Config, DataKind, KeyType as _, Resolved};
use phalanx_run::RunFolder;
use phalanx_trainer::engine::{Evaluator, Task};
use toml::Value;

use super::error::CliError;
use crate::Program;

/// The default folder of runs.
pub(super) const RUNS: &str = "runs";

/// Returns a path that another process does not take for an option.
pub(super) fn as_argument(path: &Path) -> PathBuf {
    match path.as_os_str().as_encoded_bytes() {
        [b'-', ..] => Path::new(".").join(path),
        _ => path.to_owned(),
    }
}

/// Refuses the name of a folder that configurations, reports and ranks of other hosts cannot hold.
pub(super) fn check_utf8(option: &str, path: &Path) -> Result<(), CliError> {
    match path.to_str() {
        Some(_) => Ok(()),
        None => Err(CliError::Usage(format!(
            "{option} {}: the name is not UTF-8, which configurations and reports of a run need; choose another one",
            path.display()
        ))),
    }
}

/// Returns the task that a configuration chooses, without judges.
pub(super) fn task_alone(program: &Program, config: &Config) -> Result<Task, CliError> {
    let none = || CliError::Usage(format!("{} has no task `{}`", program.name(), config.model.kind));
    program.task_of(config).cloned().ok_or_else(none)
}

/// Returns the task that a configuration chooses, with the judges of its samples.
pub(super) fn task_of(program: &Program, config: &Config) -> Result<Task, CliError> {
    let judges = config.quality.judges.iter().map(|judge| {
        let folder = RunFolder::open(Path::new(judge)).map_err(CliError::failed)?;
        let resolved = program.catalogue().resolve_run(&folder.config())?;
        let task = task_alone(program, &resolved.config)?;
        Ok(Evaluator::new(folder.path(), task, resolved.config))
    });
    Ok(task_alone(program, config)?.with_evaluators(judges.collect::<Result<_, CliError>>()?))
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
    if let Some(meant) = meant_data(data) {
        return Err(CliError::Usage(format!("--data {data}: no kind of images; {meant}")));
    }
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

/// Returns what a path was meant as that stands in the place of `KIND=PATH`.
fn meant_data(data: &str) -> Option<String> {
    let is_kind = |text: &str| DataKind::from_toml(&Value::String(text.to_owned())).is_ok();
    let path = Path::new(data);
    if data.contains('=') || is_kind(data) || !(path.exists() || data.contains('/')) {
        return None;
    }
    let kind = match path.extension().and_then(std::ffi::OsStr::to_str) {
        Some("tar") => "shards",
        _ if path.join("data_batch_1.bin").exists() || path.join("cifar-10-batches-bin").exists() => {
            "cifar10"
        }
        _ if path.join("train_test_split.txt").exists() => "cub",
        _ => "folder",
    };
    let what = match kind {
        "folder" => " for a folder with a folder of images for each class",
        _ => "",
    };
    Some(format!("write --data {kind}={data}{what}"))
}

/// Returns the file of the configuration that the current attempt of a run has: a resumption's until that is accepted.
pub(super) fn attempted_config(folder: &RunFolder) -> PathBuf {
    let proposed = folder.proposed_config();
    if proposed.is_file() { proposed } else { folder.config() }
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
    fn paths_in_place_of_kinds_are_explained() {
        for (data, meant) in [
            ("photos/train", Some("--data folder=photos/train")),
            ("./x.tar", Some("--data shards=./x.tar")),
            ("/", Some("--data folder=/")),
            ("shapes", None),
            ("cifar10=there", None),
            ("fodler", None),
        ] {
            let said = meant_data(data);
            match meant {
                Some(meant) => {
                    assert!(said.as_ref().is_some_and(|said| said.contains(meant)), "{data}: {said:?}");
                }
                None => assert_eq!(said, None, "{data}"),
            }
        }
    }
}

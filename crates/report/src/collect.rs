//! Collects the runs of a report: given folders, the runs of a sweep, or all runs in a folder.

use std::path::{Path, PathBuf};

use super::run::RunData;
use super::settings::Defaults;
use super::sweep::{Sweep, read_sweep};

/// The options of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The maximum number of samples of a run. They are evenly spaced and include the first and the last.
    pub pictures: usize,
    /// The default values of settings. Without them, all settings count as changed.
    pub defaults: Defaults,
}

impl Default for Options {
    fn default() -> Self {
        Self { pictures: 24, defaults: Defaults::default() }
    }
}

/// The maximum number of runs on a page, so that browsers open it quickly.
const MAX_RUNS: usize = 200;
/// The maximum number of samples over all runs.
const ALL_PICTURES: usize = 240;

/// The error of collecting a report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// The folder does not exist.
    #[error("there is no folder {}", .0.display())]
    Missing(PathBuf),
    /// The folder holds no run and no sweep.
    #[error("{} holds no run: it has no config.toml, no results.json of a sweep, and no folders of runs", .0.display())]
    NoRun(PathBuf),
}

/// The data of one or several runs.
#[derive(Debug)]
pub struct Report {
    /// The title.
    pub(crate) title: String,
    /// The runs.
    pub(crate) runs: Vec<RunData>,
    /// The sweeps of the runs, with their tables.
    pub(crate) sweeps: Vec<Sweep>,
    /// The errors of files outside of runs.
    pub(crate) problems: Vec<String>,
    /// The default values of settings.
    pub(crate) defaults: Defaults,
}

/// Returns true if a folder holds a run.
pub(crate) fn is_run(folder: &Path) -> bool {
    folder.join("config.toml").is_file()
}

/// Returns the run folders directly in a folder, sorted by name.
fn runs_in(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| is_run(path)).collect();
    found.sort();
    found
}

/// Returns the runs of a folder: itself, the runs of a sweep, or the runs in it.
fn runs_of(folder: &Path) -> Result<Vec<PathBuf>, ReportError> {
    if !folder.is_dir() {
        return Err(ReportError::Missing(folder.to_owned()));
    }
    if is_run(folder) {
        return Ok(vec![folder.to_owned()]);
    }
    let mut found = runs_in(&folder.join("runs"));
    if found.is_empty() {
        found = runs_in(folder);
    }
    match found.is_empty() && !folder.join("results.json").is_file() {
        true => Err(ReportError::NoRun(folder.to_owned())),
        false => Ok(found),
    }
}

impl Report {
    /// Collects runs. Each folder is a run, a sweep, or contains runs.
    ///
    /// # Errors
    /// [`ReportError`] if a folder holds no run. Damaged files in a run's folder become warnings in the report.
    pub fn collect(folders: &[PathBuf], options: &Options) -> Result<Self, ReportError> {
        let (mut paths, mut sweeps, mut problems) = (Vec::new(), Vec::new(), Vec::new());
        for folder in folders {
            for path in runs_of(folder)? {
                if !paths.contains(&path) {
                    paths.push(path);
                }
            }
            if !is_run(folder) {
                match read_sweep(folder) {
                    Ok(found) => sweeps.extend(found),
                    Err(problem) => problems.push(format!("{}: {problem}", folder.display())),
                }
            }
        }
        if paths.len() > MAX_RUNS {
            problems.push(format!("there are {} runs, of which the first {MAX_RUNS} are shown", paths.len()));
            paths.truncate(MAX_RUNS);
        }
        let names = names(&paths);
        let pictures = options.pictures.min(ALL_PICTURES / paths.len().max(1));
        let runs: Vec<RunData> =
            paths.iter().zip(&names).map(|(path, name)| RunData::read(path, name, pictures)).collect();
        let title = match (folders, runs.as_slice()) {
            ([folder], [run]) if is_run(folder) => run.name.clone(),
            ([folder], _) => sweeps.first().map_or_else(|| last_name(folder), |sweep| sweep.name.clone()),
            _ => names.join(", "),
        };
        Ok(Self { title, runs, sweeps, problems, defaults: options.defaults.clone() })
    }

    /// Returns the read position of a report of a single running run.
    #[cfg(feature = "live")]
    pub(crate) fn position_if_under_way(&self) -> Option<String> {
        match self.runs.as_slice() {
            [run] if run.state == super::run::State::UnderWay => Some(run.tails.position().to_string()),
            _ => None,
        }
    }
}

/// Returns the last component of a path, also of `.` and `a/..`.
fn last_name(path: &Path) -> String {
    let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    absolute.file_name().unwrap_or(absolute.as_os_str()).to_string_lossy().into_owned()
}

/// Returns short unique names: the shortest unique suffixes of the paths.
fn names(paths: &[PathBuf]) -> Vec<String> {
    let absolute: Vec<Vec<String>> = paths
        .iter()
        .map(|path| {
            let path = path.canonicalize().unwrap_or_else(|_| path.clone());
            path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect()
        })
        .collect();
    let name = |parts: &Vec<String>, count: usize| parts[parts.len().saturating_sub(count)..].join("/");
    let deepest = absolute.iter().map(Vec::len).max().unwrap_or_default();
    absolute
        .iter()
        .map(|parts| {
            let is_alone = |count: &usize| {
                let own = name(parts, *count);
                absolute.iter().filter(|other| name(other, *count) == own).count() == 1
            };
            name(parts, (1..deepest).find(is_alone).unwrap_or(deepest))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_runs_apart() {
        let paths = ["/x/a/run", "/x/b/run", "/x/c"].map(PathBuf::from);
        assert_eq!(names(&paths), ["a/run", "b/run", "c"]);
        let paths = ["/x/a/runs/r", "/x/b/runs/r"].map(PathBuf::from);
        assert_eq!(names(&paths), ["a/runs/r", "b/runs/r"]);
    }

    #[test]
    fn folders_stand_for_their_runs() {
        let place = tempfile::tempdir().expect("a folder");
        for run in ["one", "sweep/runs/a", "sweep/runs/b", "empty"] {
            std::fs::create_dir_all(place.path().join(run)).expect("a folder");
            if run != "empty" {
                std::fs::write(place.path().join(run).join("config.toml"), "").expect("writes");
            }
        }
        let collect = |path: &str| Report::collect(&[place.path().join(path)], &Options::default());
        assert_eq!(collect("sweep").expect("a sweep").runs.len(), 2);
        assert_eq!(collect("").expect("runs").runs.len(), 1);
        assert_eq!(collect("one").expect("a run").title, "one");
        assert!(matches!(collect("empty"), Err(ReportError::NoRun(_))));
        assert!(matches!(collect("gone"), Err(ReportError::Missing(_))));
        std::fs::write(place.path().join("sweep/results.json"), "{").expect("writes");
        assert!(collect("sweep").expect("a sweep").problems[0].contains("results.json: "));
    }
}

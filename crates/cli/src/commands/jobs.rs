//! `phalanx status`, `logs` and `cancel`: what became of runs that were submitted.

use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::error::CliError;
use super::interrupts::Interrupts;
use super::resolve::RUNS;
use phalanx_launch::cluster::{JobRecord, QueueEntry, Slurm};
use phalanx_run::format;

use crate::console::out;
use phalanx_run::{Links, RunError, RunFolder, Summary, read_metrics};

/// The interval at which a followed log is read.
const READ: Duration = Duration::from_millis(300);
/// After how many reads without anything new the queue is asked whether the job is over.
const QUIET: u32 = 10;

/// Show jobs: queue state and training progress.
#[derive(Debug, Args)]
pub(super) struct StatusArgs {
    /// Folders of runs that were submitted [default: all in runs].
    runs: Vec<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Print the output of a job.
#[derive(Debug, Args)]
pub(super) struct LogsArgs {
    /// The run's folder.
    run: PathBuf,
    /// Follow the output until the job ends. Ctrl-C stops following; the job continues.
    #[arg(long, short)]
    follow: bool,
    /// The log of this rank instead of what the job printed.
    #[arg(long)]
    rank: Option<usize>,
}

/// Cancel jobs. Ranks finish the current step and save a checkpoint.
#[derive(Debug, Args)]
pub(super) struct CancelArgs {
    /// Folders of runs that were submitted.
    #[arg(required = true)]
    runs: Vec<PathBuf>,
    /// Cancel only the jobs that have joined these runs (`submit --join`). Their ranks leave; the runs continue.
    #[arg(long)]
    joined: bool,
}

pub(super) fn status(args: &StatusArgs) -> Result<(), CliError> {
    let runs = if args.runs.is_empty() { submitted() } else { args.runs.clone() };
    if runs.is_empty() {
        return Err(CliError::Usage(format!("no run in {RUNS} was submitted")));
    }
    let mut rows = Vec::new();
    for run in &runs {
        let joining = JobRecord::joining(run).unwrap_or_default();
        let record = match JobRecord::read(run) {
            // What a launcher has started may be joined by jobs.
            Err(_) if !joining.is_empty() => None,
            read => Some(read?),
        };
        let queued = record.as_ref().map_or_else(|| Ok(Vec::new()), |record| Slurm.queued(record.id))?;
        if let Some(record) = record {
            of_job(&mut rows, run, &record, &queued)?;
        }
        for joining in joining {
            // Those that are over have left nothing to be told.
            for queued in Slurm.queued(joining.id)?.iter().take(1) {
                let mut told = row(run, &joining.id.to_string(), Some(queued));
                told[0] = format!("{} (joins)", told[0]);
                rows.push(told);
            }
        }
    }
    if args.json {
        let objects: Vec<Value> = rows.iter().map(|row| json_of(row)).collect();
        out(&serde_json::to_string_pretty(&objects).map_err(CliError::failed)?);
        return Ok(());
    }
    rows.insert(0, COLUMNS.map(str::to_owned).to_vec());
    format::columns(&rows).iter().for_each(|line| out(line.trim_end()));
    Ok(())
}

/// The columns of the table of jobs.
const COLUMNS: [&str; 8] = ["run", "job", "state", "where", "ran", "left", "step", "loss"];

/// Returns a row of the table as an object. Unknown values are null; steps and losses are numbers.
fn json_of(row: &[String]) -> Value {
    let value = |(name, text): (&&str, &String)| {
        let number = || text.parse::<f64>().ok().map(Value::from);
        let value = match (text.as_str(), *name) {
            ("–", _) => Value::Null,
            (_, "step") => text.parse::<u64>().map_or(Value::Null, Value::from),
            (_, "loss") => number().unwrap_or(Value::Null),
            (text, _) => text.into(),
        };
        ((*name).to_owned(), value)
    };
    Value::Object(COLUMNS.iter().zip(row).map(value).collect())
}

/// The lines of the job that trains a run, of an array one for each task.
fn of_job(
    rows: &mut Vec<Vec<String>>,
    run: &Path,
    record: &JobRecord,
    queued: &[QueueEntry],
) -> Result<(), CliError> {
    if !record.array {
        rows.push(row(run, &record.id.to_string(), queued.first()));
        return Ok(());
    }
    for task in tasks(run).map_err(CliError::failed)? {
        let id = format!("{}_{}", record.id, task.0);
        let of_it = queued.iter().find(|queued| queued.id == id);
        rows.push(row(&task.1, &id, of_it));
    }
    Ok(())
}

/// Runs in the usual place that were submitted.
fn submitted() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(RUNS).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut runs: Vec<PathBuf> = entries.filter(|run| JobRecord::path(run).is_file()).collect();
    runs.sort();
    runs
}

/// The runs of an array's tasks, with their numbers.
fn tasks(place: &Path) -> Result<Vec<(u64, PathBuf)>, RunError> {
    let entries = std::fs::read_dir(place).map_err(RunError::io("read", place))?;
    let number = |path: &PathBuf| path.file_name()?.to_str()?.strip_prefix("task-")?.parse::<u64>().ok();
    let of = |entry: std::fs::DirEntry| Some((number(&entry.path())?, entry.path()));
    let mut tasks: Vec<_> = entries.flatten().filter_map(of).collect();
    tasks.sort();
    Ok(tasks)
}

fn row(run: &Path, id: &str, queued: Option<&QueueEntry>) -> Vec<String> {
    let folder = RunFolder::open(run).ok();
    let line = folder.as_ref().and_then(|folder| read_metrics(&folder.metrics()).ok()?.pop());
    let summary = folder.as_ref().and_then(|folder| Summary::read(&folder.summary()).ok());
    let (state, place, ran, left) = match queued {
        Some(queued) => {
            (queued.state.to_lowercase(), queued.place.clone(), queued.elapsed.clone(), queued.left.clone())
        }
        // The queue has forgotten it; its folder knows how far it came.
        None => {
            let state =
                summary.map_or_else(|| "ended without a summary".to_owned(), |summary| summary.status);
            (state, "–".to_owned(), "–".to_owned(), "–".to_owned())
        }
    };
    let dash = || "–".to_owned();
    let step = line.as_ref().map_or_else(dash, |line| line.step().to_string());
    let loss = line.and_then(|line| line.number("loss")).map_or_else(dash, format::number);
    vec![run.display().to_string(), id.to_owned(), state, place, ran, left, step, loss]
}

pub(super) fn logs(args: &LogsArgs) -> Result<(), CliError> {
    let record = JobRecord::read(&args.run)?;
    let logs = args.run.join("logs");
    let path = match args.rank {
        Some(rank) => logs.join(format!("rank-{rank}.log")),
        None => logs.join(format!("slurm-{}.out", record.id)),
    };
    if record.array {
        return Err(CliError::Usage(format!(
            "{} is an array; the logs of its tasks are {}",
            args.run.display(),
            logs.join(format!("slurm-{}_N.out", record.id)).display()
        )));
    }
    let interrupts = Interrupts::listen()?;
    let mut read = 0;
    let mut quiet = 0;
    loop {
        let new = new_text(&path, &mut read).map_err(CliError::failed)?;
        if let Some(text) = &new {
            out(text.trim_end_matches('\n'));
        }
        quiet = if new.is_some() { 0 } else { quiet + 1 };
        if !args.follow || interrupts.count() > 0 {
            break;
        }
        if quiet >= QUIET {
            quiet = 0;
            if Slurm.queued(record.id)?.is_empty() {
                break;
            }
        }
        std::thread::sleep(READ);
    }
    if read == 0 && !args.follow {
        out(&format!("{} has nothing yet; see `status`", path.display()));
    }
    Ok(())
}

/// Whole lines that a file has got since it was read up to `read`; `None` if there are none, or no file yet.
fn new_text(path: &Path, read: &mut u64) -> Result<Option<String>, RunError> {
    let mut file = match Links::Refuse.open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(RunError::io("open", path))?,
    };
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(*read))
        .and_then(|_| file.read_to_end(&mut bytes))
        .map_err(RunError::io("read", path))?;
    let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') else { return Ok(None) };
    bytes.truncate(end + 1);
    *read += bytes.len() as u64;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

pub(super) fn cancel(args: &CancelArgs) -> Result<(), CliError> {
    for run in &args.runs {
        let records = match args.joined {
            true => JobRecord::joining(run)?,
            false => vec![JobRecord::read(run)?],
        };
        for record in records {
            if Slurm.queued(record.id)?.is_empty() {
                out(&format!("job {} of {} is over", record.id, run.display()));
                continue;
            }
            Slurm.cancel(record.id)?;
            out(&format!("job {} of {} is told to end", record.id, run.display()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn lines_are_read_once_and_whole() {
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("log");
        let mut read = 0;
        assert_eq!(new_text(&path, &mut read).expect("no file yet"), None);
        let mut file = std::fs::File::create(&path).expect("creates");
        file.write_all(b"one\ntw").expect("writes");
        assert_eq!(new_text(&path, &mut read).expect("reads").as_deref(), Some("one\n"));
        assert_eq!(new_text(&path, &mut read).expect("reads"), None);
        file.write_all(b"o\nthree\n").expect("writes");
        assert_eq!(new_text(&path, &mut read).expect("reads").as_deref(), Some("two\nthree\n"));
    }
}

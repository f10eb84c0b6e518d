//! `phalanx submit`: checks a training, creates its folder and queues it as a job of SLURM, or prints a manifest for Kubernetes.

mod job_args;
mod joining;
mod kubernetes;

use std::path::{Path, PathBuf};

use clap::Args;

use super::config_args::{ConfigArgs, ElasticArgs};
use super::error::CliError;
use super::resolve::{RUNS, check_utf8, configuration_of, task_of};
use crate::Program;
use crate::console::out;
use job_args::JobArgs;
use phalanx_config::{Config, Resolved};
use phalanx_launch::cluster::{ClusterError, JobRecord, Slurm, TASK, Work, tasks_of_array};
use phalanx_run::{RunError, RunFolder, timestamp, write_aside};
use phalanx_trainer::engine;
use toml::Value;

/// Submit a training to SLURM: check it, create its folder and job script, and queue it. A requeued job resumes its
/// run.
#[derive(Debug, Args)]
pub(super) struct SubmitArgs {
    #[command(flatten)]
    choice: ConfigArgs,
    /// The run's folder [default: runs/NAME-TIME].
    #[arg(long, value_name = "DIR", help_heading = "Job")]
    out: Option<PathBuf>,
    /// Resume the run in --out from its newest complete checkpoint.
    #[arg(long, requires = "out", help_heading = "Job")]
    resume: bool,
    /// Print the job script, or the manifest, without submitting it.
    #[arg(long, help_heading = "Job")]
    dry_run: bool,
    #[command(flatten)]
    size: ElasticArgs,
    #[command(flatten)]
    job: JobArgs,
    /// Submit ranks that join this running run. They leave it when this job ends.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["config", "out", "resume", "elastic", "array", "requeue", "kubernetes"])]
    join: Option<PathBuf>,
    #[command(flatten)]
    kubernetes: kubernetes::KubernetesArgs,
}

pub(super) fn run(program: &Program, args: &SubmitArgs) -> Result<(), CliError> {
    args.job.check()?;
    if let Some(out) = &args.out {
        check_utf8("--out", out)?;
    }
    if args.kubernetes.kubernetes {
        return kubernetes::show(program, args);
    }
    if let Some(run) = &args.join {
        return joining::submit(program, args, run);
    }
    let executable = std::env::current_exe().map_err(CliError::failed)?;
    let folders = runs(program, args)?;
    let (place, name) = (folders.place.clone(), folders.name.clone());
    let work = if folders.is_elastic { Work::Elastic } else { Work::Train };
    let script = args.job.of(work, name).script(&executable, &place)?;
    if args.dry_run {
        out(script.trim_end());
        return Ok(());
    }
    for (path, resolved) in &folders.new {
        let folder = RunFolder::create(Some(path), Path::new(RUNS), &resolved.name);
        resolved.write(&folder.map_err(CliError::failed)?.config()).map_err(CliError::failed)?;
    }
    // Frees the folder of a run that was never queued, so that the corrected command can use it.
    let submitted = submitted(&script, &place).inspect_err(|_| folders.give_up());
    let id = submitted?;
    let record = JobRecord {
        scheduler: "slurm".to_owned(),
        id,
        array: args.job.array.is_some(),
        submitted: timestamp(),
    };
    record.write(&place)?;
    let shown = place
        .strip_prefix(std::env::current_dir().unwrap_or_default())
        .unwrap_or(&place)
        .display()
        .to_string();
    out(&format!("job {id} trains {shown}"));
    out(&format!("  {0} status {shown}\n  {0} logs --follow {shown}\n  {0} cancel {shown}", program.name()));
    Ok(())
}

/// Writes a job's script into its folder and queues it: the job's number.
fn submitted(script: &str, place: &Path) -> Result<u64, CliError> {
    let written = place.join("job.sh");
    let logs = place.join("logs");
    std::fs::create_dir_all(&logs).map_err(RunError::io("create", &logs)).map_err(CliError::failed)?;
    write_aside(&written, script.as_bytes())
        .map_err(RunError::io("write", &written))
        .map_err(CliError::failed)?;
    Ok(Slurm.submit(&written)?)
}

impl SubmitArgs {
    /// Returns the configuration of the job's run with these keys, checked.
    fn configuration(&self, program: &Program, sets: Vec<String>) -> Result<Resolved, CliError> {
        let mut choice = self.choice.clone();
        choice.sets = sets;
        let mut resolved = choice.base(program, None)?;
        let option = format!("--nodes {} --ranks-per-node {}", self.job.nodes, self.job.ranks_per_node);
        resolved.set_value(&option, "train.ranks", Value::Integer(self.job.ranks() as i64))?;
        self.size.apply(&mut resolved, false)?;
        self.choice.apply(&mut resolved)?;
        resolved.validate()?;
        check(program, &resolved)?;
        self.job.check_devices(&resolved.config)?;
        Ok(resolved)
    }

    /// Returns the first of the given options that would change the configuration of an existing run.
    fn first_change(&self) -> Option<&'static str> {
        self.choice.first_given().or(self.size.first_given())
    }
}

/// The runs of a job and their folders.
struct Runs {
    /// The folder of the job: that of its run, or that with the runs of an array's tasks.
    place: PathBuf,
    name: String,
    /// Runs whose folders must be made.
    new: Vec<(PathBuf, Resolved)>,
    /// True if ranks may come and go.
    is_elastic: bool,
}

impl Runs {
    /// Frees the created folders for the next command.
    fn give_up(&self) {
        if !self.new.is_empty() {
            let _ = std::fs::remove_file(self.place.join("job.sh"));
        }
        for (path, _) in &self.new {
            // What went wrong before is what is told, whether this succeeds or not.
            let _ = RunFolder::open(path).map(|folder| folder.release_unless_started());
        }
    }
}

fn runs(program: &Program, args: &SubmitArgs) -> Result<Runs, CliError> {
    if args.resume {
        return resumed(program, args);
    }
    let absolute = |path: &Path| std::path::absolute(path).map_err(CliError::failed);
    let Some(array) = &args.job.array else {
        let resolved = args.configuration(program, args.choice.sets.clone())?;
        let place = absolute(&place_of(args, &resolved.name))?;
        let (name, is_elastic) = (resolved.name.clone(), resolved.config.elastic().is_some());
        return Ok(Runs { place: place.clone(), name, new: vec![(place, resolved)], is_elastic });
    };
    let mut sets = args.choice.sets.clone();
    if !sets.iter().any(|set| set.contains(TASK)) {
        sets.push(format!("train.seed={TASK}"));
    }
    let of_task = |task: u64| {
        let sets = sets.iter().map(|set| set.replace(TASK, &task.to_string())).collect();
        Ok((task, args.configuration(program, sets)?))
    };
    let tasks = tasks_of_array(array)?.into_iter().map(of_task).collect::<Result<Vec<_>, CliError>>()?;
    let name = tasks.first().map(|(_, resolved)| resolved.name.clone()).unwrap_or_default();
    let is_elastic = tasks.iter().any(|(_, resolved)| resolved.config.elastic().is_some());
    let place = absolute(&place_of(args, &name))?;
    let new = tasks.into_iter().map(|(task, resolved)| (place.join(format!("task-{task}")), resolved));
    Ok(Runs { new: new.collect(), place, name, is_elastic })
}

/// Returns the existing run that the job resumes.
fn resumed(program: &Program, args: &SubmitArgs) -> Result<Runs, CliError> {
    let place = args.out.as_deref().unwrap_or(Path::new(""));
    let folder = RunFolder::open(place).map_err(CliError::failed)?;
    if let Some(option) = args.first_change().or(args.job.array.is_some().then_some("--array")) {
        return Err(CliError::Usage(format!("--resume continues the run as it is; leave out {option}")));
    }
    let place = std::path::absolute(folder.path()).map_err(CliError::failed)?;
    let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let config = configuration_of(program, &folder)?.config;
    check_world(args, &config)?;
    args.job.check_devices(&config)?;
    Ok(Runs { place, name, new: Vec::new(), is_elastic: config.elastic().is_some() })
}

/// Refuses a number of ranks that an elastic run does not allow.
fn check_world(args: &SubmitArgs, config: &Config) -> Result<(), CliError> {
    match config.elastic().filter(|bounds| !bounds.contains(&args.job.ranks())) {
        Some(bounds) => Err(CliError::Usage(format!(
            "{} ranks are not from elastic.min = {} to elastic.max = {}",
            args.job.ranks(),
            bounds.start(),
            bounds.end()
        ))),
        None => Ok(()),
    }
}

fn place_of(args: &SubmitArgs, name: &str) -> PathBuf {
    args.out.clone().unwrap_or_else(|| Path::new(RUNS).join(format!("{name}-{}", timestamp())))
}

/// Refuses what ranks that a launcher has started cannot train, before it has waited in a queue.
fn check(program: &Program, resolved: &Resolved) -> Result<(), CliError> {
    let config = &resolved.config;
    let task = task_of(program, config)?;
    if let Some(first) = task.first_run(config) {
        let key = task.first_key().unwrap_or_default();
        return Err(CliError::Usage(format!(
            "{key} names no run; a job trains one run: submit {} before, and set {key}",
            first.preset
        )));
    }
    if engine::in_one_process(config) && config.train.ranks > 1 {
        return Err(CliError::Usage(format!(
            "train.strategy = {} has all ranks in one process, and a job has a process for each; take --strategy ddp, which gives \
             the same losses",
            config.train.strategy
        )));
    }
    Ok(())
}

impl From<ClusterError> for CliError {
    fn from(error: ClusterError) -> Self {
        match error {
            ClusterError::Array { .. } | ClusterError::Time(_) | ClusterError::NotSubmitted(_) => {
                Self::Usage(error.to_string())
            }
            error => Self::failed(error),
        }
    }
}

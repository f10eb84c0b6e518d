//! `phalanx submit`: checks a training, creates its folder and queues it as a job of SLURM, or prints a manifest for Kubernetes.

mod joining;
mod kubernetes;

use std::path::{Path, PathBuf};

use clap::Args;

use super::error::CliError;
use super::resolve::{RUNS, check_utf8, configuration_of, task_of};
use super::train_args::{TrainArgs, configuration};
use crate::Program;
use crate::console::out;
use phalanx_launch::cluster::{ClusterError, Job, JobRecord, Slurm, TASK, Work, tasks_of_array};
use phalanx_run::{RunError, RunFolder, timestamp, write_aside};
use phalanx_trainer::config::Resolved;
use phalanx_trainer::engine;

/// Submit a training to SLURM: check it, create its folder and job script, and queue it. A requeued job resumes its
/// run.
#[derive(Debug, Args)]
pub(super) struct SubmitArgs {
    #[command(flatten)]
    train: TrainArgs,
    /// The number of hosts.
    #[arg(long, default_value_t = 1)]
    nodes: usize,
    /// Ranks on each host.
    #[arg(long, default_value_t = 1)]
    ranks_per_node: usize,
    /// Cores of each rank [default: the cluster's].
    #[arg(long)]
    cpus_per_rank: Option<usize>,
    /// GPUs of each host.
    #[arg(long)]
    gpus_per_node: Option<usize>,
    /// The longest that the job may take: minutes, h:mm:ss or d-hh:mm:ss [default: the partition's].
    #[arg(long)]
    time: Option<String>,
    /// The partition [default: the cluster's].
    #[arg(long)]
    partition: Option<String>,
    /// The account that pays.
    #[arg(long)]
    account: Option<String>,
    /// Queue the job again if it was interrupted: by its time limit, by a signal, or by the cluster.
    #[arg(long)]
    requeue: bool,
    /// Tasks of an array, as in 0-3,7: a run for each, in which {task} in --set is its number; without it the task's number is
    /// the seed.
    #[arg(long)]
    array: Option<String>,
    /// Seconds before the end of the job's time at which the run is told to save.
    #[arg(long, default_value_t = 120)]
    warning: u64,
    /// Further options of sbatch, as in --sbatch=--constraint=a100; may be given several times.
    #[arg(long, value_name = "OPTION", allow_hyphen_values = true)]
    sbatch: Vec<String>,
    /// Submit ranks that join this running run. They leave it when this job ends.
    #[arg(long, value_name = "RUN", conflicts_with_all = ["config", "out", "resume", "elastic", "array", "requeue", "kubernetes"])]
    join: Option<PathBuf>,
    #[command(flatten)]
    kubernetes: kubernetes::KubernetesArgs,
}

pub(super) fn run(program: &Program, args: &SubmitArgs) -> Result<(), CliError> {
    check_options(args)?;
    if let Some(out) = &args.train.out {
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
    let script = args.job(work, name).script(&executable, &place)?;
    if args.train.dry_run {
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
    let record =
        JobRecord { scheduler: "slurm".to_owned(), id, array: args.array.is_some(), submitted: timestamp() };
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

/// Refuses options of `train` that a job cannot honour, each with its remedy.
fn check_options(args: &SubmitArgs) -> Result<(), CliError> {
    let train = &args.train;
    let refusals = [
        (args.nodes == 0 || args.ranks_per_node == 0, "--nodes and --ranks-per-node must be at least 1"),
        (train.world.ranks.is_some(), "--ranks is --nodes times --ranks-per-node here; leave it out"),
        (
            train.world.hosts.is_some(),
            "--hosts is for trainings that are started by ssh; a job gets its hosts from the cluster",
        ),
        (
            train.world.node.is_given(),
            "--nnodes and its options are for hosts that each start one process; a job takes --nodes and --ranks-per-node",
        ),
        (
            train.start.restart,
            "--restart: `train --restart` starts a run again; a job takes new runs, and --resume",
        ),
        (train.tui, "a job has no terminal for --tui; look at it with `watch` and its run's folder"),
        (
            train.interrupted_code > 0,
            "--interrupted-code is for schedulers that are to start a run again by themselves; a job is queued again by --requeue",
        ),
        (
            train.trace.is_some(),
            "--trace is for one start of a run, and a job may begin again; take `train --trace` in a job of your own",
        ),
    ];
    match refusals.into_iter().find(|(is_refused, _)| *is_refused) {
        Some((_, problem)) => Err(CliError::Usage(problem.to_owned())),
        None => Ok(()),
    }
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
    /// Returns the number of ranks on all hosts.
    fn ranks(&self) -> usize {
        self.nodes.saturating_mul(self.ranks_per_node)
    }

    /// Returns the job that is requested from SLURM.
    fn job(&self, work: Work, name: String) -> Job {
        Job {
            work,
            name,
            nodes: self.nodes,
            ranks_per_node: self.ranks_per_node,
            cpus_per_rank: self.cpus_per_rank,
            gpus_per_node: self.gpus_per_node,
            time: self.time.clone(),
            partition: self.partition.clone(),
            account: self.account.clone(),
            requeue: self.requeue,
            array: self.array.clone(),
            warning: self.warning,
            options: self.sbatch.clone(),
        }
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
    let train = &args.train;
    let absolute = |path: &Path| std::path::absolute(path).map_err(CliError::failed);
    if train.start.resume {
        let place = train
            .out
            .as_deref()
            .ok_or_else(|| CliError::Usage("--resume needs --out DIR here".to_owned()))?;
        let folder = RunFolder::open(place).map_err(CliError::failed)?;
        if let Some(option) = train.changes().or(args.array.is_some().then_some("--array")) {
            return Err(CliError::Usage(format!(
                "--resume goes on with the run as it is; leave out {option}"
            )));
        }
        let place = absolute(folder.path())?;
        let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let config = configuration_of(program, &folder)?.config;
        if let Some(bounds) = config.elastic().filter(|bounds| !bounds.contains(&args.ranks())) {
            return Err(CliError::Usage(format!(
                "{} ranks are not from elastic.min = {} to elastic.max = {}",
                args.ranks(),
                bounds.start(),
                bounds.end()
            )));
        }
        return Ok(Runs { place, name, new: Vec::new(), is_elastic: config.elastic().is_some() });
    }
    let resolved = |sets: Vec<String>| -> Result<Resolved, CliError> {
        let mut given = train.clone();
        given.sets = sets;
        given.world.ranks = u32::try_from(args.ranks()).ok();
        let resolved = configuration(program, &given, None)?;
        check(program, &resolved)?;
        Ok(resolved)
    };
    let Some(array) = &args.array else {
        let resolved = resolved(train.sets.clone())?;
        let place = absolute(&place_of(train, &resolved.name))?;
        let (name, is_elastic) = (resolved.name.clone(), resolved.config.elastic().is_some());
        return Ok(Runs { place: place.clone(), name, new: vec![(place, resolved)], is_elastic });
    };
    let mut sets = train.sets.clone();
    if !sets.iter().any(|set| set.contains(TASK)) {
        sets.push(format!("train.seed={TASK}"));
    }
    let of_task = |task: u64| {
        let sets = sets.iter().map(|set| set.replace(TASK, &task.to_string())).collect();
        Ok((task, resolved(sets)?))
    };
    let tasks = tasks_of_array(array)?.into_iter().map(of_task).collect::<Result<Vec<_>, CliError>>()?;
    let name = tasks.first().map(|(_, resolved)| resolved.name.clone()).unwrap_or_default();
    let is_elastic = tasks.iter().any(|(_, resolved)| resolved.config.elastic().is_some());
    let place = absolute(&place_of(train, &name))?;
    let new = tasks.into_iter().map(|(task, resolved)| (place.join(format!("task-{task}")), resolved));
    Ok(Runs { new: new.collect(), place, name, is_elastic })
}

fn place_of(train: &TrainArgs, name: &str) -> PathBuf {
    train.out.clone().unwrap_or_else(|| Path::new(RUNS).join(format!("{name}-{}", timestamp())))
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

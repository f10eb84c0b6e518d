//! `phalanx sweep` and `phalanx study`: many trainings, and what came of them in tables and pictures.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use phalanx_collectives::{Clock, CostModel, SimulatedLink};
use phalanx_sharding::{ClusterModel, Overlap};
use serde_json::{Value, json};

use super::error::CliError;
use super::interrupts::{Interrupts, announce};
use super::report::options;
use super::resolve::{RUNS, as_argument, check_utf8, set_data, task_of};
use crate::Program;
use phalanx_run::format;
use phalanx_trainer::config::Config;
use phalanx_trainer::config::Resolved;

use crate::console::{note, out};
use crate::sweep::{
    self, Conditions, Outcome, Results, Run, RunPlan, Runner, SweepFile, SweepFileError, TrainingEnd, Trials,
};
use phalanx_report::Report;
use phalanx_run::{Machine, write_aside};
use phalanx_trainer::engine;

/// Train all runs of a sweep, and make tables and pictures. Finished runs are not trained again, so the same command
/// continues an interrupted sweep.
#[derive(Debug, Args)]
pub(super) struct SweepArgs {
    /// The file: a preset, axes of keys and values, seeds (see docs/studies.md).
    #[arg(value_name = "FILE.toml")]
    file: PathBuf,
    #[command(flatten)]
    how: RunOptions,
}

/// Run a study that ships with the program: a sweep that answers a question. Without a name, list the studies.
#[derive(Debug, Args)]
pub(super) struct StudyArgs {
    /// The study.
    name: Option<String>,
    #[command(flatten)]
    how: RunOptions,
}

#[derive(Debug, Args)]
struct RunOptions {
    /// Fewer and shorter runs: minutes, to see what it looks like.
    #[arg(long)]
    quick: bool,
    /// Override a key of all runs. Keys that an axis varies stay (see `phalanx config show`).
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// The preset, or file, that all runs extend instead of the one that the sweep names.
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,
    /// Numbers of ranks, in place of those of the axes that vary them.
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    ranks: Vec<u32>,
    /// A network that is simulated: bandwidth and latency of each rank's link, as in comm.link.
    #[arg(long, value_name = "10Gbit,20us")]
    link: Option<String>,
    /// The images of all runs: shapes, cifar10=PATH, or folder=PATH.
    #[arg(long, value_name = "KIND=PATH")]
    data: Option<String>,
    /// Trainings at once, 0 = as many as there are cores for. Seconds and speeds are those of runs that share the machine.
    #[arg(long, default_value_t = 1)]
    parallel: usize,
    /// The folder of runs, tables and pictures [default: runs/NAME].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// List the runs without training.
    #[arg(long)]
    dry_run: bool,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(program: &Program, args: &SweepArgs) -> Result<(), CliError> {
    let read = std::fs::read_to_string(&args.file);
    let text =
        read.map_err(|error| CliError::Usage(format!("cannot read {}: {error}", args.file.display())))?;
    let file = SweepFile::parse(&args.file.display().to_string(), &text)?;
    let name = args.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    carry_out(program, &name, &file, &args.how)
}

pub(super) fn run_study(program: &Program, args: &StudyArgs) -> Result<(), CliError> {
    let Some(name) = &args.name else {
        return list_studies(program, args.how.json);
    };
    carry_out(program, name, &program.study_named(name)?, &args.how)
}

/// Prints the names of the studies with the questions that they answer.
fn list_studies(program: &Program, json: bool) -> Result<(), CliError> {
    let described = program.studies().map(|name| Ok((name, program.study_named(name)?.about)));
    let studies = described.collect::<Result<Vec<_>, CliError>>()?;
    if json {
        let object = |(name, about): &(&str, String)| json!({"name": name, "about": about});
        out(&Value::from_iter(studies.iter().map(object)).to_string());
        return Ok(());
    }
    studies.iter().for_each(|(name, about)| out(&format!("{name}: {about}")));
    Ok(())
}

impl From<SweepFileError> for CliError {
    fn from(error: SweepFileError) -> Self {
        Self::Usage(error.to_string())
    }
}

/// Trains the runs of a sweep, and writes tables and pictures.
fn carry_out(program: &Program, name: &str, file: &SweepFile, how: &RunOptions) -> Result<(), CliError> {
    let sweep = Sweep::new(program, name, file, how)?;
    if how.dry_run {
        sweep.list(how.json);
        return Ok(());
    }
    sweep.check_folder()?;
    let interrupts = Interrupts::listen()?;
    let ended = sweep.train(&interrupts)?;
    let outcomes = sweep.outcomes(program, &ended)?;
    sweep.write_results(program, &outcomes, how.json)?;
    if interrupts.count() > 0 {
        let message = "interrupted; the same command goes on".to_owned();
        return Err(CliError::Ended { message, code: interrupts.exit_code() });
    }
    let failed = outcomes.iter().filter(|outcome| matches!(outcome, Some(Err(_)))).count();
    match failed {
        0 => Ok(()),
        _ => Err(CliError::failed(format!(
            "{failed} of {} runs failed; the same command tries them again",
            outcomes.len()
        ))),
    }
}

/// A sweep whose runs are resolved and checked.
struct Sweep<'a> {
    name: &'a str,
    file: SweepFile,
    quick: bool,
    trials: Trials,
    /// The runs with their configurations.
    runs: Vec<(Run, Resolved)>,
    folder: PathBuf,
    executable: PathBuf,
    /// Runs that train at the same time.
    parallel: usize,
}

impl<'a> Sweep<'a> {
    fn new(program: &Program, name: &'a str, file: &SweepFile, how: &RunOptions) -> Result<Self, CliError> {
        let mut file = file.clone();
        if let Some(preset) = &how.preset {
            file.extend(preset);
        }
        if !how.ranks.is_empty() {
            file.vary_ranks(name, &how.ranks)?;
        }
        let mut sets = how.sets.clone();
        sets.extend(how.link.as_ref().map(|link| format!("comm.link={link}")));
        let trials = Trials::of(&file, &sets, how.quick);
        let configured = |run: &Run| -> Result<_, CliError> {
            let mut resolved = program.catalogue().resolve(Some(&run.extends), &run.sets)?;
            if let Some(data) = &how.data {
                set_data(&mut resolved, data)?;
            }
            resolved.validate()?;
            Ok((run.clone(), resolved))
        };
        let runs = trials.runs.iter().map(configured).collect::<Result<Vec<_>, CliError>>()?;
        let parallel = match how.parallel {
            0 => fitting(runs.iter().map(|(_, resolved)| &resolved.config), Machine::detect().cores),
            parallel => parallel,
        };
        let folder = how.out.clone().unwrap_or_else(|| Path::new(RUNS).join(name));
        check_utf8("--out", &folder)?;
        let folder = as_argument(&folder);
        let executable = std::env::current_exe().map_err(CliError::failed)?;
        Ok(Self { name, file, quick: how.quick, trials, runs, folder, executable, parallel })
    }

    fn runner(&self) -> Runner<'_> {
        Runner { program: self.executable.clone(), folder: &self.folder, parallel: self.parallel }
    }

    /// Prints the runs.
    fn list(&self, json: bool) {
        let runner = self.runner();
        if json {
            let object = |(run, resolved): &(Run, Resolved)| {
                let (ranks, finished) = (resolved.config.train.ranks, runner.is_finished(run));
                json!({"name": run.name, "ranks": ranks, "sets": run.sets, "predicted": run.predicted, "finished": finished})
            };
            out(&Value::from_iter(self.runs.iter().map(object)).to_string());
            return;
        }
        for (run, resolved) in &self.runs {
            let done = match (run.predicted, runner.is_finished(run)) {
                (true, _) => "  (predicted, not trained)",
                (false, true) => "  (finished)",
                (false, false) => "",
            };
            let ranks = resolved.config.train.ranks;
            out(&format!("{}: {ranks} ranks, {}{done}", run.name, run.sets.join(" ")));
        }
        out(&format!("{} runs in {}", self.runs.len(), self.folder.display()));
    }

    /// Refuses a folder that holds a run of other settings, and creates one that is missing.
    fn check_folder(&self) -> Result<(), CliError> {
        let runner = self.runner();
        if let Some((run, _)) = self.runs.iter().find(|(run, resolved)| runner.differs(run, resolved)) {
            let path = runner.folder_of(run);
            return Err(CliError::Usage(format!(
                "{} holds a run of other settings; choose another folder with --out, or remove it",
                path.display()
            )));
        }
        std::fs::create_dir_all(&self.folder).map_err(CliError::failed)
    }

    /// Trains the runs that are not finished.
    fn train(&self, interrupts: &Interrupts) -> Result<Vec<TrainingEnd>, CliError> {
        let count = self.runs.len();
        note(&format!("{}: {}", self.name, self.file.about));
        note(&format!("{count} runs in {}, {} at a time", self.folder.display(), self.parallel));
        let told = AtomicBool::new(false);
        let asked = || {
            let count = interrupts.count();
            if count > 0 && !told.swap(true, Ordering::Relaxed) {
                announce();
            }
            count
        };
        Ok(self.runner().run(&self.runs, &asked, &|at, ended| {
            let what = match ended {
                TrainingEnd::FinishedBefore => "was finished".to_owned(),
                TrainingEnd::Finished(time) => format!("finished in {}", format::duration(*time)),
                TrainingEnd::Failed(error) => format!("failed: {error}"),
                TrainingEnd::Stopped => "stopped".to_owned(),
            };
            note(&format!("[{}/{count}] {}: {what}", at + 1, self.runs[at].0.name));
        }))
    }

    /// Reads the outcomes of the runs, and adds predicted times where tables ask for them.
    fn outcomes(
        &self,
        program: &Program,
        ended: &[TrainingEnd],
    ) -> Result<Vec<Option<Result<Outcome, String>>>, CliError> {
        let runner = self.runner();
        let outcome = |((run, _), ended): (&(Run, _), &TrainingEnd)| match ended {
            TrainingEnd::Stopped => None,
            TrainingEnd::Failed(error) => Some(Err(error.clone())),
            TrainingEnd::FinishedBefore | TrainingEnd::Finished(_) => {
                let read = Outcome::read(&runner.folder_of(run), self.file.target.as_ref());
                Some(read.map_err(|error| error.to_string()))
            }
        };
        let mut outcomes: Vec<_> = self.runs.iter().zip(ended).map(outcome).collect();
        predict_steps(program, &self.trials, &self.runs, &mut outcomes)?;
        Ok(outcomes)
    }

    /// Writes tables, pictures and the page. Prints the tables, or JSON.
    fn write_results(
        &self,
        program: &Program,
        outcomes: &sweep::Outcomes,
        json: bool,
    ) -> Result<(), CliError> {
        let trained =
            || self.runs.iter().filter(|(run, _)| !run.predicted).map(|(_, resolved)| &resolved.config);
        let conditions = Conditions {
            machine: Machine::detect(),
            quick: self.quick,
            parallel: self.parallel,
            ranks: trained().map(|config| config.train.ranks).max().unwrap_or(1),
            simulated: trained().any(|config| config.comm.clock == Clock::Cpu),
        };
        let (name, file, trials) = (self.name, &self.file, &self.trials);
        let results = Results { name, file, trials, outcomes, conditions: &conditions };
        results.write(&self.folder).map_err(CliError::failed)?;
        write_page(program, &self.folder)?;
        if json {
            let written = std::fs::read_to_string(self.folder.join("results.json"));
            out(written.map_err(CliError::failed)?.trim_end());
            return Ok(());
        }
        for table in results.tables() {
            out(&format!("\n{}", table.title));
            format::columns(&table.words()).iter().for_each(|line| out(&format!("  {line}")));
            table.failures().iter().chain(&table.notes()).for_each(|note| out(&format!("  {note}")));
        }
        out("");
        out(&format!("tables and pictures in {}, all of it in report.html", self.folder.display()));
        Ok(())
    }
}

/// Makes the page of a sweep's folder.
fn write_page(program: &Program, folder: &Path) -> Result<(), CliError> {
    let report = Report::collect(&[folder.to_owned()], &options(program)).map_err(CliError::failed)?;
    write_aside(&folder.join("report.html"), report.html().as_bytes()).map_err(CliError::failed)
}

/// Adds what steps should take, to tables that ask for it.
fn predict_steps(
    program: &Program,
    trials: &Trials,
    runs: &[(Run, Resolved)],
    outcomes: &mut sweep::Outcomes,
) -> Result<(), CliError> {
    if trials.tables.iter().all(|table| table.predict.is_empty()) {
        return Ok(());
    }
    let plan = |(_, resolved): &(Run, Resolved)| -> Result<_, CliError> {
        let config = &resolved.config;
        let plan = engine::plan_memory(&task_of(program, config)?, config, &[config.train.strategy]);
        let plan = plan.map_err(CliError::failed)?.plans.into_iter().next();
        let costs = config.comm.simulated_costs().map_err(CliError::failed)?;
        // A single rank has no messages.
        let costs =
            costs.or_else(|| (config.train.ranks == 1).then(|| CostModel::over(&SimulatedLink::timeless())));
        Ok((plan, costs, config.comm.ranks_by_host(config.train.ranks)))
    };
    let plans = runs.iter().map(plan).collect::<Result<Vec<_>, CliError>>()?;
    for table in &trials.tables {
        sweep::predict(table, outcomes, |run| {
            let config = &runs[run].1.config;
            let (plan, costs, hosts) = &plans[run];
            let cluster = ClusterModel {
                costs: costs.as_ref()?,
                hosts,
                algorithm: config.comm.algorithm,
                overlaps: config.train.overlap != Overlap::Never,
                scattered: config.scattered_bytes(),
            };
            let share = config.train.global_batch as f64 / config.train.ranks.max(1) as f64;
            Some(RunPlan { plan: plan.clone()?, cluster, share, computes: computes_alike(&runs[run].1) })
        });
    }
    Ok(())
}

/// Returns a key of the computation for an image and a step: the settings without the number of images and ranks, and
/// without the strategy.
fn computes_alike(resolved: &Resolved) -> String {
    let mut config = resolved.config.clone();
    config.train.global_batch = 1;
    config.train.ranks = 1;
    config.comm = Config::default().comm;
    config.train.strategy = Config::default().train.strategy;
    format!("{config:?}")
}

/// Returns the number of runs that train at once, so that each of their threads has a core.
fn fitting<'a>(configs: impl Iterator<Item = &'a Config>, cores: usize) -> usize {
    let threads = configs.map(|config| config.world_size() * config.train.threads.max(1));
    (cores / threads.max().unwrap_or(1).max(1)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_runs_as_have_cores() {
        let of = |threads: usize| {
            let mut config = Config::default();
            (config.train.ranks, config.train.threads) = (2, threads);
            config
        };
        let (two, wide) = (of(1), of(3));
        assert_eq!(fitting([&two].into_iter(), 8), 4);
        assert_eq!(fitting([&two, &wide].into_iter(), 8), 1);
        assert_eq!(fitting([&wide].into_iter(), 2), 1, "there is always one");
    }
}

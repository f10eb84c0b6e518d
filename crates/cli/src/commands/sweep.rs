//! `phalanx sweep` and `phalanx study`: many trainings, and what came of them in tables and pictures.

mod planned;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use clap::Args;
use phalanx_collectives::{Clock, CostModel, SimulatedLink};
use phalanx_sharding::{ClusterModel, Overlap};
use serde_json::{Value, json};

use super::error::CliError;
use super::interrupts::{Interrupts, announce};
use super::report::options;
use super::resolve::{RUNS, as_argument, check_utf8, task_of};
use crate::Program;
use phalanx_config::Config;
use phalanx_config::Resolved;
use phalanx_run::format;

use crate::console::{note, out};
use crate::sweep::search::SearchRecord;
use crate::sweep::{
    self, Caller, Conditions, Outcome, Planned, PlannedRun, Results, Run, RunPlan, Runner, Schedule,
    SweepFile, SweepFileError, SweepFolder, SweepView, TrainingEnd, Trials,
};
use phalanx_report::Report;
use phalanx_run::{Machine, write_aside};
use phalanx_trainer::engine;
use planned::{Configuration, end_of_searches, plan, recorded};

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
    let mut sweep = Sweep::new(program, name, file, how)?;
    if how.dry_run {
        sweep.list(how.json);
        return Ok(());
    }
    sweep.check_folder()?;
    let interrupts = Interrupts::listen()?;
    let ends = sweep.train(&interrupts)?;
    let outcomes = sweep.outcomes(program, &ends.runs)?;
    sweep.write_results(program, &outcomes, how.json)?;
    if interrupts.count() > 0 {
        let message = "interrupted; the same command goes on".to_owned();
        return Err(CliError::Ended { message, code: interrupts.exit_code() });
    }
    if sweep.file.search.is_some() {
        return end_of_searches(&ends.failed_searches);
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

/// The ends of a sweep's runs.
struct Ends {
    runs: Vec<TrainingEnd>,
    /// The first error of each search of which every trial has failed.
    failed_searches: Vec<String>,
}

/// A sweep whose runs are resolved and checked.
struct Sweep<'a> {
    name: &'a str,
    file: SweepFile,
    quick: bool,
    trials: Trials,
    /// The runs with their configurations.
    runs: Vec<PlannedRun>,
    configuration: Configuration,
    /// The trials that an earlier call has drawn.
    record: SearchRecord,
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
        let folder = how.out.clone().unwrap_or_else(|| Path::new(RUNS).join(name));
        check_utf8("--out", &folder)?;
        let folder = as_argument(&folder);
        let mut trials = Trials::of(&file, &sets, how.quick);
        let record = recorded(&file, &mut trials, &folder)?;
        let catalogue = Arc::clone(program.catalogue());
        let configuration = Configuration { catalogue, data: how.data.clone() };
        let runs = plan(&configuration, &file, &trials.runs)?;
        let parallel = match how.parallel {
            0 => fitting(configs(&runs), Machine::detect().cores),
            parallel => parallel,
        };
        let executable = std::env::current_exe().map_err(CliError::failed)?;
        let quick = how.quick;
        Ok(Self { name, file, quick, trials, runs, configuration, record, folder, executable, parallel })
    }

    fn place(&self) -> SweepFolder<'_> {
        SweepFolder(&self.folder)
    }

    /// Prints the runs.
    fn list(&self, json: bool) {
        if json {
            let object = |PlannedRun { run, resolved }: &PlannedRun| {
                let ranks = resolved.as_ref().ok().map(|resolved| resolved.config.train.ranks);
                let finished = self.place().is_finished(run);
                json!({"name": run.name, "ranks": ranks, "sets": run.sets, "predicted": run.predicted, "finished": finished})
            };
            out(&Value::from_iter(self.runs.iter().map(object)).to_string());
            return;
        }
        for PlannedRun { run, resolved } in &self.runs {
            let done = match (run.predicted, self.place().is_finished(run)) {
                (true, _) => "  (predicted, not trained)",
                (false, true) => "  (finished)",
                (false, false) => "",
            };
            let ranks = match resolved {
                Ok(resolved) => format!("{} ranks", resolved.config.train.ranks),
                Err(error) => format!("cannot be trained: {error}"),
            };
            out(&format!("{}: {ranks}, {}{done}", run.name, run.sets.join(" ")));
        }
        let open = self.schedule().total() - self.runs.iter().filter(|run| !run.run.predicted).count();
        if open > 0 {
            out(&format!("{open} runs that the search will draw from the outcomes of these"));
        }
        out(&format!("{} runs in {}", self.runs.len() + open, self.folder.display()));
    }

    /// Refuses a folder that holds a run of other settings, and creates one that is missing.
    fn check_folder(&self) -> Result<(), CliError> {
        let differs = |planned: &&PlannedRun| {
            planned.resolved.as_ref().is_ok_and(|resolved| self.place().differs(&planned.run, resolved))
        };
        if let Some(planned) = self.runs.iter().find(differs) {
            let path = self.place().run(&planned.run);
            return Err(CliError::Usage(format!(
                "{} holds a run of other settings; choose another folder with --out, or remove it",
                path.display()
            )));
        }
        std::fs::create_dir_all(&self.folder).map_err(CliError::failed)
    }

    /// The order of the runs, and the trials that are drawn as earlier ones end.
    fn schedule(&self) -> Schedule<'_> {
        let (trials, runs, record) = (self.trials.clone(), self.runs.clone(), self.record.clone());
        let planned = Planned { trials, runs, record };
        Schedule::new(&self.file, self.place(), &self.configuration, self.parallel, planned)
    }

    /// Trains the runs that are not finished. Trials that are drawn join the sweep.
    fn train(&mut self, interrupts: &Interrupts) -> Result<Ends, CliError> {
        let schedule = self.schedule();
        let count = schedule.total();
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
        let ended = |at: usize, run: &Run, end: &TrainingEnd| {
            note(&format!("[{}/{count}] {}: {}", at + 1, run.name, words(end)));
        };
        let runner =
            Runner { program: self.executable.clone(), place: self.place(), parallel: self.parallel };
        let schedule = Mutex::new(schedule);
        let trained = runner.run(&schedule, Caller { interrupts: &asked, ended: &ended });
        let schedule = schedule.into_inner().unwrap_or_else(PoisonError::into_inner);
        let ended = schedule.finish();
        trained.map_err(CliError::failed)?;
        (self.trials, self.runs) = (ended.trials, ended.runs);
        Ok(Ends { runs: ended.ends, failed_searches: ended.failed_searches })
    }

    /// Reads the outcomes of the runs, and adds predicted times where tables ask for them.
    fn outcomes(
        &self,
        program: &Program,
        ended: &[TrainingEnd],
    ) -> Result<Vec<Option<Result<Outcome, String>>>, CliError> {
        let target = self.file.target.as_ref();
        let outcome = |(planned, end): (&PlannedRun, &TrainingEnd)| {
            let folder = self.place().run(&planned.run);
            let read = match end {
                TrainingEnd::Stopped => return None,
                TrainingEnd::Failed(error) => return Some(Err(error.clone())),
                TrainingEnd::Pruned(decision) => Outcome::read_pruned(&folder, decision.step, target),
                TrainingEnd::FinishedBefore | TrainingEnd::Finished(_) => Outcome::read(&folder, target),
            };
            Some(read.map_err(|error| error.to_string()))
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
        let trained = || configs(self.runs.iter().filter(|planned| !planned.run.predicted));
        let conditions = Conditions {
            machine: Machine::detect(),
            quick: self.quick,
            parallel: self.parallel,
            ranks: trained().map(|config| config.train.ranks).max().unwrap_or(1),
            simulated: trained().any(|config| config.comm.clock == Clock::Cpu),
        };
        let (command, folder, trials) = (program.name(), self.folder.as_path(), &self.trials);
        let view = SweepView { program: command, folder, trials, outcomes };
        let results = Results { name: self.name, file: &self.file, sweep: view, conditions: &conditions };
        results.write().map_err(CliError::failed)?;
        write_page(program, &self.folder)?;
        if json {
            let written = std::fs::read_to_string(self.folder.join("results.json"));
            out(written.map_err(CliError::failed)?.trim_end());
            return Ok(());
        }
        for result in results.tables() {
            let table = &result.table;
            out(&format!("\n{}", table.title));
            format::columns(&table.words()).iter().for_each(|line| out(&format!("  {line}")));
            table.failures().iter().chain(&table.notes()).for_each(|note| out(&format!("  {note}")));
            result.findings().iter().for_each(|line| out(&format!("  {line}")));
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
    runs: &[PlannedRun],
    outcomes: &mut sweep::Outcomes,
) -> Result<(), CliError> {
    if trials.tables.iter().all(|table| table.predict.is_empty()) {
        return Ok(());
    }
    let plan = |planned: &PlannedRun| -> Result<_, CliError> {
        let Ok(resolved) = &planned.resolved else { return Ok(None) };
        let config = &resolved.config;
        let plan = engine::plan_memory(&task_of(program, config)?, config, &[config.train.strategy]);
        let plan = plan.map_err(CliError::failed)?.plans.into_iter().next();
        let costs = config.comm.simulated_costs().map_err(CliError::failed)?;
        // A single rank has no messages.
        let costs =
            costs.or_else(|| (config.train.ranks == 1).then(|| CostModel::over(&SimulatedLink::timeless())));
        Ok(Some((plan, costs, config.comm.ranks_by_host(config.train.ranks))))
    };
    let plans = runs.iter().map(plan).collect::<Result<Vec<_>, CliError>>()?;
    for table in &trials.tables {
        sweep::predict(table, outcomes, |run| {
            let resolved = runs[run].resolved.as_ref().ok()?;
            let (config, (plan, costs, hosts)) = (&resolved.config, plans[run].as_ref()?);
            let cluster = ClusterModel {
                costs: costs.as_ref()?,
                hosts,
                algorithm: config.comm.algorithm,
                overlaps: config.train.overlap != Overlap::Never,
                scattered: config.scattered_bytes(),
            };
            let share = config.train.global_batch as f64 / config.train.ranks.max(1) as f64;
            Some(RunPlan { plan: plan.clone()?, cluster, share, computes: computes_alike(resolved) })
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

/// Returns the configurations of runs that can be trained.
fn configs<'a>(runs: impl IntoIterator<Item = &'a PlannedRun>) -> impl Iterator<Item = &'a Config> {
    runs.into_iter().filter_map(|planned| planned.resolved.as_ref().ok()).map(|resolved| &resolved.config)
}

/// Describes the end of a run.
fn words(end: &TrainingEnd) -> String {
    match end {
        TrainingEnd::FinishedBefore => "was finished".to_owned(),
        TrainingEnd::Finished(time) => format!("finished in {}", format::duration(*time)),
        TrainingEnd::Pruned(decision) => {
            format!("pruned at step {}, at {}", decision.step, format::number(decision.value))
        }
        TrainingEnd::Failed(error) => format!("failed: {error}"),
        TrainingEnd::Stopped => "stopped".to_owned(),
    }
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

//! `phalanx sweep` and `phalanx study`: many trainings, and what came of them in tables and pictures.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Args;
use serde_json::json;

use super::CliError;
use super::interrupts::{Interrupts, announce};
use super::train::{RUNS, set_data};
use crate::Program;
use crate::console::{format, out};
use crate::run::{Machine, write_aside};
use crate::sweep::{
    self, Ended, Filled, NUMBERS, Outcome, Run, Runner, STUDIES, SweepFile, SweepFileError, Trials,
};

/// Trains everything that a file asks for, and makes tables and pictures. What is finished is not trained again, so that the
/// same command goes on after an interruption.
#[derive(Debug, Args)]
pub(super) struct SweepArgs {
    /// The file: a preset, axes of keys and values, seeds (see docs/studies.md).
    #[arg(value_name = "FILE.toml")]
    file: PathBuf,
    #[command(flatten)]
    how: How,
}

/// Runs a study that ships with the program: a sweep that answers a question. Without a name, lists them.
#[derive(Debug, Args)]
pub(super) struct StudyArgs {
    /// The study.
    name: Option<String>,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, Args)]
struct How {
    /// Fewer and shorter runs: minutes, to see what it looks like.
    #[arg(long)]
    quick: bool,
    /// Overrides a key of all runs; what an axis varies stays as it is (see `phalanx config show`).
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// The images of all runs: shapes, cifar10=PATH, or folder=PATH.
    #[arg(long, value_name = "KIND=PATH")]
    data: Option<String>,
    /// Trainings at once. Seconds and speeds are those of runs that share the machine.
    #[arg(long, default_value_t = 1)]
    parallel: usize,
    /// The folder of runs, tables and pictures [default: runs/NAME].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Lists the runs, and trains nothing.
    #[arg(long)]
    dry_run: bool,
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
        for (name, _) in STUDIES {
            out(&format!("{name}: {}", sweep::study(name)?.about));
        }
        return Ok(());
    };
    carry_out(program, name, &sweep::study(name)?, &args.how)
}

impl From<SweepFileError> for CliError {
    fn from(error: SweepFileError) -> Self {
        Self::Usage(error.to_string())
    }
}

fn carry_out(program: &Program, name: &str, file: &SweepFile, how: &How) -> Result<(), CliError> {
    if how.parallel == 0 {
        return Err(CliError::Usage("--parallel 0: at least one training runs at a time".to_owned()));
    }
    let trials = Trials::of(file, &how.sets, how.quick);
    let configured = |run: &Run| -> Result<_, CliError> {
        let mut resolved = program.catalogue().resolve(Some(&file.extends), &run.sets)?;
        if let Some(data) = &how.data {
            set_data(&mut resolved, data)?;
        }
        resolved.validate()?;
        Ok((run.clone(), resolved))
    };
    let runs = trials.runs.iter().map(configured).collect::<Result<Vec<_>, CliError>>()?;
    let folder = how.out.clone().unwrap_or_else(|| Path::new(RUNS).join(name));
    let executable = std::env::current_exe().map_err(CliError::failed)?;
    let runner = Runner { program: executable, folder: &folder, parallel: how.parallel };
    if how.dry_run {
        for (run, resolved) in &runs {
            let done = if runner.is_finished(run) { "  (finished)" } else { "" };
            out(&format!(
                "{}: {} ranks, {}{done}",
                run.name,
                resolved.config.train.ranks,
                run.sets.join(" ")
            ));
        }
        out(&format!("{} runs in {}", runs.len(), folder.display()));
        return Ok(());
    }
    if let Some((run, _)) = runs.iter().find(|(run, resolved)| runner.differs(run, resolved)) {
        let path = runner.folder_of(run);
        return Err(CliError::Usage(format!(
            "{} holds a run of other settings; choose another folder with --out, or remove it",
            path.display()
        )));
    }
    std::fs::create_dir_all(&folder).map_err(CliError::failed)?;
    out(&format!("{name}: {}", file.about));
    out(&format!("{} runs in {}, {} at a time", runs.len(), folder.display(), how.parallel));
    let interrupts = Interrupts::listen()?;
    let told = AtomicBool::new(false);
    let asked = || {
        let count = interrupts.count();
        if count > 0 && !told.swap(true, Ordering::Relaxed) {
            announce();
        }
        count
    };
    let count = runs.len();
    let ended = runner.run(&runs, &asked, &|at, ended| {
        let what = match ended {
            Ended::Was => "was finished".to_owned(),
            Ended::Now(time) => format!("finished in {}", format::duration(*time)),
            Ended::Failed(error) => format!("failed: {error}"),
            Ended::Stopped => "stopped".to_owned(),
        };
        out(&format!("[{}/{count}] {}: {what}", at + 1, runs[at].0.name));
    });
    let outcome = |((run, _), ended): (&(Run, _), &Ended)| match ended {
        Ended::Stopped => None,
        Ended::Failed(error) => Some(Err(error.clone())),
        Ended::Was | Ended::Now(_) => {
            let read = Outcome::read(&runner.folder_of(run), file.target.as_ref());
            Some(read.map_err(|error| error.to_string()))
        }
    };
    let outcomes: Vec<_> = runs.iter().zip(&ended).map(outcome).collect();
    let report = Report { name, file, trials: &trials, outcomes: &outcomes, how };
    report.tell();
    report.write(&folder).map_err(CliError::failed)?;
    out(&format!("tables and pictures in {}", folder.display()));
    if interrupts.count() > 0 {
        let message = "interrupted; the same command goes on".to_owned();
        return Err(CliError::Ended { message, code: interrupts.exit_code() });
    }
    let failed = outcomes.iter().filter(|outcome| matches!(outcome, Some(Err(_)))).count();
    match failed {
        0 => Ok(()),
        _ => Err(CliError::failed(format!(
            "{failed} of {count} runs failed; the same command tries them again"
        ))),
    }
}

/// What came of a sweep.
struct Report<'a> {
    name: &'a str,
    file: &'a SweepFile,
    trials: &'a Trials,
    outcomes: &'a sweep::Outcomes,
    how: &'a How,
}

impl Report<'_> {
    fn tables(&self) -> impl Iterator<Item = Filled> {
        self.trials.tables.iter().map(|table| Filled::of(table, self.outcomes))
    }

    /// Prints the tables.
    fn tell(&self) {
        for table in self.tables() {
            out(&format!("\n{}", table.title));
            format::columns(&table.words()).iter().for_each(|line| out(&format!("  {line}")));
        }
        out("");
    }

    /// Writes `results.md`, `results.json`, and for each table `N.csv` and `N.svg`.
    fn write(&self, folder: &Path) -> std::io::Result<()> {
        let machine = Machine::detect();
        let mut text = format!("# {}\n\n{}\n\n", self.name, self.file.about);
        text.push_str(&self.preamble(&machine));
        let mut tables = Vec::new();
        for (at, (filled, table)) in self.tables().zip(&self.trials.tables).enumerate() {
            let number = at + 1;
            text.push_str(&filled.markdown());
            write_aside(&folder.join(format!("{number}.csv")), filled.csv().as_bytes())?;
            if let Some(svg) = sweep::curves(table, self.outcomes, self.file.target.as_ref()) {
                write_aside(&folder.join(format!("{number}.svg")), svg.as_bytes())?;
                text.push_str(&format!("\n![{}]({number}.svg)\n", filled.title));
            }
            text.push('\n');
            tables.push(filled.json());
        }
        let json =
            json!({ "study": self.name, "quick": self.how.quick, "machine": machine, "tables": tables });
        write_aside(&folder.join("results.json"), format!("{json:#}\n").as_bytes())?;
        write_aside(&folder.join("results.md"), text.as_bytes())
    }

    /// On what it was measured, how, and what the columns are.
    fn preamble(&self, machine: &Machine) -> String {
        let mut text = format!(
            "Measured on {} cores ({}), {} at a time; seeds {:?}.",
            machine.cores, machine.processor, self.how.parallel, self.file.seeds
        );
        let widest = self.ranks();
        if widest > machine.cores {
            text.push_str(&format!(
                " Runs of up to {widest} ranks shared these cores: seconds compare ways to wait, not computing."
            ));
        }
        if let Some(target) = &self.file.target {
            text.push_str(&format!(
                " Target: a training `{}` of {} as the mean of {} steps.",
                target.loss, target.below, target.window
            ));
        }
        text.push_str("\n\n");
        for (name, meaning) in NUMBERS {
            if self.trials.tables.iter().any(|table| table.columns.iter().any(|column| column == name)) {
                text.push_str(&format!("- *{}*: {meaning}\n", name.replace('_', " ")));
            }
        }
        text.push('\n');
        text
    }

    /// The most ranks of any run.
    fn ranks(&self) -> usize {
        let of = |run: &Run| {
            let set = run.sets.iter().rev().find_map(|set| set.strip_prefix("train.ranks="));
            set.and_then(|ranks| ranks.parse().ok())
        };
        self.trials.runs.iter().filter_map(of).max().unwrap_or(1)
    }
}

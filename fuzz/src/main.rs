//! `phalanx-fuzz`: drawn and damaged bytes for readers, for as long as one likes.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Parser;
use phalanx_fuzz::corpus::Corpus;
use phalanx_fuzz::run::{attempt, run};
use phalanx_fuzz::targets::{TARGETS, Target};
use phalanx_fuzz::{coverage, kept};

/// Gives drawn and damaged bytes to every reader of bytes from outside.
#[derive(Debug, Parser)]
struct Arguments {
    /// Readers; all if none is named
    targets: Vec<String>,
    /// For how long in all, shared alike
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Fixes what is drawn
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Where inputs are left that failed
    #[arg(long, default_value = "target/fuzz")]
    out: PathBuf,
    /// Where the inputs of readers are that are read first, and where a guided run keeps those that reach what none before did
    #[arg(long, value_name = "FOLDER")]
    corpus: Option<PathBuf>,
    /// Puts the shortest of what a guided run knows into the tree (`fuzz/corpus/READER.tar.gz`)
    #[arg(long)]
    keep: bool,
    /// Reads this file instead, once
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Lists the readers
    #[arg(long)]
    list: bool,
}

fn chosen(names: &[String]) -> Result<Vec<&'static Target>> {
    let named = |name: &String| {
        let known = || TARGETS.iter().map(|target| target.name).collect::<Vec<_>>().join(", ");
        TARGETS
            .iter()
            .find(|target| target.name == *name)
            .with_context(|| format!("no reader `{name}`; there are {}", known()))
    };
    if names.is_empty() { Ok(TARGETS.iter().collect()) } else { names.iter().map(named).collect() }
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let targets = chosen(&arguments.targets)?;
    if arguments.list {
        for target in targets {
            println!("{:<16} {}", target.name, target.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &arguments.input {
        let [target] = targets.as_slice() else { bail!("--input is read by one reader: name it") };
        let input = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let (problem, memory, took) = attempt(target, &input);
        println!(
            "{}: {memory} bytes of memory, {took:.1?}, {}",
            target.name,
            problem.as_deref().unwrap_or("sound")
        );
        return Ok(if problem.is_some() { ExitCode::FAILURE } else { ExitCode::SUCCESS });
    }
    let share = Duration::from_secs_f64(arguments.minutes * 60.0 / targets.len() as f64);
    if coverage::edges() > 0 {
        println!("guided by {} edges", coverage::edges());
    }
    if arguments.keep && (coverage::edges() == 0 || arguments.corpus.is_none()) {
        bail!("--keep goes with --guided: without it nothing is known of what inputs reach");
    }
    let mut failed = false;
    for target in targets {
        let until = Instant::now() + share;
        let folder = arguments.corpus.as_ref().map(|corpus| corpus.join(target.name));
        let mut corpus = Corpus::new(target, folder)?;
        let outcome = run(target, &mut corpus, arguments.seed, |_| Instant::now() >= until, 10)?;
        let reached = match corpus.reached() {
            0 => String::new(),
            reached => {
                let last = outcome.news.as_secs_f64() / 60.0;
                format!("{reached} reached by {} inputs, the last at {last:.1}, ", corpus.len())
            }
        };
        println!(
            "{:<16} {:>9} cases, {:>5.1} minutes of the processor, {reached}at most {:>4} MiB and {:>5} ms, {} failures",
            target.name,
            outcome.cases,
            outcome.processor.as_secs_f64() / 60.0,
            outcome.memory >> 20,
            outcome.longest.as_millis(),
            outcome.failures.len()
        );
        for failure in &outcome.failures {
            failed = true;
            let path = arguments.out.join(format!("{}-{}-{}", target.name, arguments.seed, failure.case));
            std::fs::create_dir_all(&arguments.out)?;
            std::fs::write(&path, &failure.input)?;
            println!("  {}: {}", path.display(), failure.problem);
        }
        if coverage::edges() > 0 {
            let known = corpus.minimise(|input| drop(attempt(target, input)))?;
            if arguments.keep {
                let (all, place) = (known.len(), kept::place(target.name));
                let kept = kept::write(&place, known)?;
                println!("  {}: {kept} of {all} inputs", place.display());
            }
        }
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

//! `phalanx find-lr`: a range test, which suggests a learning rate.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use phalanx_collectives::Launcher;
use phalanx_config::Resolved;
use phalanx_run::format::number;
use phalanx_run::{Line, RunFolder, Summary, aligned, read_whole_metrics, write_aside};
use phalanx_trainer::engine::{self, Task};
use serde_json::json;
use toml::Value;

use super::config_args::{ConfigArgs, ElasticArgs};
use super::error::CliError;
use super::hosts;
use super::local::LocalTraining;
use super::node_args::NodeArgs;
use super::process::Display;
use super::resolve::{RUNS, check_utf8, task_of};
use super::train_args::{ShowArgs, StartArgs, TrainArgs, WorldArgs, configuration};
use crate::Program;
use crate::console::{TaskProgress, out};
use crate::range_test::{LEAST_POINTS, RatePoint, RateSuggestion, picture, suggestion};

/// The steps of a test unless told otherwise.
const STEPS: u64 = 200;
/// The interval at which the progress is read.
const LOOK: Duration = Duration::from_millis(300);
/// The exit code of a test that a user has stopped, as of a program that Ctrl-C has ended.
const INTERRUPTED: u8 = 130;
/// The name of the picture in the folder of a test.
const PICTURE: &str = "rates.svg";

/// Suggest a learning rate: trains for some steps while the rate rises, and takes a third of that where the loss is lowest.
#[derive(Debug, Args)]
#[command(mut_arg("steps", |arg| arg.help("The number of steps, each with a higher rate [default: 200]").long_help(None)))]
#[command(mut_arg("epochs", |arg| arg.hide(true)))]
pub(super) struct FindLrArgs {
    #[command(flatten)]
    choice: ConfigArgs,
    /// The first learning rate.
    #[arg(long, value_name = "RATE", default_value = "1e-7", value_parser = rate)]
    from: f64,
    /// The last learning rate.
    #[arg(long, value_name = "RATE", default_value = "10", value_parser = rate)]
    to: f64,
    /// The number of ranks.
    #[arg(long)]
    ranks: Option<u32>,
    /// The folder of the test, with its picture and losses [default: runs/NAME-rates-TIME].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON: the suggested rate, the point of the lowest loss, and the smooth curve.
    #[arg(long)]
    json: bool,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| "expected a number above 0, such as 1e-5".to_owned())
}

pub(super) fn run(program: &Program, args: &FindLrArgs) -> Result<(), CliError> {
    if args.from >= args.to {
        return Err(CliError::Usage(format!("--from {} is not below --to {}", args.from, args.to)));
    }
    if let Some(launcher) = Launcher::of(&|name| std::env::var(name).ok()) {
        return Err(CliError::Usage(format!(
            "find-lr starts its ranks itself, and this process is one of a launcher's ({launcher})"
        )));
    }
    if let Some(out) = &args.out {
        check_utf8("--out", out)?;
    }
    let train = train_args(args);
    let wanted = configuration(program, &train, None)?;
    let task = task_of(program, &wanted.config)?;
    if let Some(first) = task.first_run(&wanted.config) {
        let key = task.first_key().unwrap_or_default();
        return Err(CliError::Usage(format!(
            "this training builds on a run of {}: train that first, and give --set {key}=ITS_FOLDER",
            first.preset
        )));
    }
    let resolved = range_test(&wanted, args)?;
    engine::rehearse(&task, &resolved.config).map_err(CliError::failed)?;
    let points = losses(program, &train, &task, resolved)?;
    let Tested { folder, points } = points;
    let found = suggestion(&points).map_err(|error| {
        CliError::failed(format!("{error} (the losses are in {})", folder.metrics().display()))
    })?;
    let path = folder.path().join(PICTURE);
    let title = format!("learning rates of {}", wanted.name);
    write_aside(&path, picture(&title, &points, &found).as_bytes())
        .map_err(|error| CliError::failed(format!("cannot write {}: {error}", path.display())))?;
    match args.json {
        true => out(&json(&found, &wanted, &path).to_string()),
        false => text(program, &found, &wanted, &path).iter().for_each(|line| out(line)),
    }
    Ok(())
}

/// The options of `train` that the test has.
fn train_args(args: &FindLrArgs) -> TrainArgs {
    TrainArgs {
        choice: args.choice.clone(),
        out: args.out.clone(),
        start: StartArgs { resume: false, restart: false, reset: None },
        world: WorldArgs {
            ranks: args.ranks,
            hosts: None,
            node: NodeArgs::default(),
            ssh: hosts::SSH.to_owned(),
            size: ElasticArgs::default(),
        },
        show: ShowArgs { tui: false, json: false, trace: None },
        dry_run: false,
        interrupted_code: 0,
    }
}

/// Returns the configuration of the test: that of the training, with a rate that rises, and without all that is done after steps.
fn range_test(wanted: &Resolved, args: &FindLrArgs) -> Result<Resolved, CliError> {
    let mut resolved = wanted.clone();
    resolved.name = format!("{}-rates", wanted.name);
    let steps = match wanted.config.train.stop_step {
        0 => STEPS,
        // The loss after the last step is not known.
        steps if steps <= LEAST_POINTS as u64 => {
            return Err(CliError::Usage(format!("--steps {steps}: a test needs more than {LEAST_POINTS}")));
        }
        steps => steps,
    };
    let (integer, none) = (|number: u64| Value::Integer(number as i64), Value::Integer(0));
    let keys = [
        ("optim.lr", Value::Float(args.to)),
        ("optim.base_batch", none.clone()),
        ("schedule.kind", Value::String("range-test".to_owned())),
        ("schedule.range_ratio", Value::Float(args.to / args.from)),
        ("schedule.warmup_steps", none.clone()),
        ("schedule.momentum", Value::Array(Vec::new())),
        ("train.steps", integer(steps)),
        ("train.tokens", none.clone()),
        ("train.stop_step", none.clone()),
        ("train.stop_epoch", none.clone()),
        ("train.patience", none.clone()),
        ("eval.enabled", Value::Boolean(false)),
        ("sample.every", none.clone()),
        ("quality.every", none),
        ("checkpoint.enabled", Value::Boolean(false)),
        ("checkpoint.best", Value::String(String::new())),
        ("log.every", Value::Integer(1)),
        ("watch.window", Value::Integer(0)),
    ];
    for (key, value) in keys {
        resolved.set_value("find-lr", key, value)?;
    }
    resolved.validate()?;
    Ok(resolved)
}

/// A test that was run.
struct Tested {
    folder: RunFolder,
    points: Vec<RatePoint>,
}

/// Trains the test, and returns each rate with the loss after it.
fn losses(program: &Program, train: &TrainArgs, task: &Task, resolved: Resolved) -> Result<Tested, CliError> {
    let locked = RunFolder::create_locked(train.out.as_deref(), Path::new(RUNS), &resolved.name)
        .map_err(CliError::failed)?;
    let folder = locked.folder.clone();
    let steps = resolved.config.train.steps as usize;
    let training = LocalTraining { program, args: train, task, by_host: None, display: Display::Quiet };
    let (ended, told) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let metrics = folder.metrics();
        scope.spawn(move || {
            let progress = TaskProgress::new("steps");
            while told.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
                let done = read_whole_metrics(&metrics).ok().and_then(|lines| Some(lines.last()?.step()));
                progress.set(done.unwrap_or_default() as usize, steps);
            }
            progress.finish();
        });
        let trained = training.run_in(locked, true, resolved);
        drop(ended);
        trained
    })?;
    if Summary::read(&folder.summary()).is_ok_and(|summary| summary.status == "interrupted") {
        let message =
            format!("stopped before its end; the losses so far are in {}", folder.metrics().display());
        return Err(CliError::Ended { message, code: INTERRUPTED });
    }
    let lines = read_whole_metrics(&folder.metrics()).map_err(CliError::failed)?;
    Ok(Tested { folder, points: points(&lines) })
}

/// The rate of each step with the loss after it, up to the first loss that has diverged: how many steps follow that one depends on when
/// the ranks hear of it.
fn points(lines: &[Line]) -> Vec<RatePoint> {
    let number = |line: &Line, name| line.number(name).unwrap_or(f64::NAN);
    let loss = |line: &Line| number(line, "loss");
    let first = lines.first().map_or(f64::NAN, loss);
    let end = lines.iter().position(|line| engine::has_diverged(first, loss(line)));
    let lines = &lines[..end.map_or(lines.len(), |end| end + 1)];
    let pairs = lines.windows(2);
    pairs.map(|pair| RatePoint { rate: number(&pair[0], "lr"), loss: loss(&pair[1]) }).collect()
}

/// Returns the value of `optim.lr` that gives a rate: another one if the configured rate is that of another batch.
fn configured(rate: f64, wanted: &Resolved) -> f64 {
    match wanted.config.optim.base_batch {
        0 => rate,
        base => rate * base as f64 / wanted.config.train.global_batch as f64,
    }
}

/// Returns a rate with two digits, as a key's value.
fn short(rate: f64) -> String {
    format!("{rate:.1e}")
}

/// The result as JSON.
fn json(found: &RateSuggestion, wanted: &Resolved, path: &Path) -> serde_json::Value {
    let point = |rate: f64, loss: f64| json!({ "rate": rate, "loss": loss });
    json!({
        "rate": found.rate,
        "optim.lr": configured(found.rate, wanted),
        "lowest": point(found.lowest.rate, found.lowest.loss),
        "curve": found.curve.iter().map(|at| point(at.rate, at.loss)).collect::<Vec<_>>(),
        "picture": path,
    })
}

/// The result as lines.
fn text(program: &Program, found: &RateSuggestion, wanted: &Resolved, path: &Path) -> Vec<String> {
    let point = |rate: f64, loss: f64| format!("{} (loss {})", short(rate), number(loss));
    let lr = short(configured(found.rate, wanted));
    let mut rows = vec![
        ("lowest loss".to_owned(), point(found.lowest.rate, found.lowest.loss)),
        ("suggested".to_owned(), format!("optim.lr = {lr}")),
        ("configured".to_owned(), format!("optim.lr = {}", wanted.config.optim.lr)),
        ("picture".to_owned(), path.display().to_string()),
    ];
    let name = program.name();
    rows.push(("next".to_owned(), format!("{name} train with the same options and --set optim.lr={lr}")));
    aligned(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_after_a_diverged_loss_do_not_count() {
        let line =
            |(at, loss): (usize, &f64)| Line::new(at as u64 + 1).with("lr", at as f64).with("loss", *loss);
        let lines: Vec<Line> = [2.0, 1.0, 5.0, 6.0, 1.0].iter().enumerate().map(line).collect();
        let expected = [RatePoint { rate: 0.0, loss: 1.0 }, RatePoint { rate: 1.0, loss: 5.0 }];
        for length in 3..=lines.len() {
            assert_eq!(points(&lines[..length]), expected, "of {length} steps");
        }
        assert!(points(&lines[..1]).is_empty() && points(&[]).is_empty());
    }
}

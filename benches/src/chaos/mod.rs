//! `cargo xtask chaos`: resumes randomly disturbed trainings until they finish. Ranks are killed, stopped, disconnected, limited,
//! added and removed; strangers connect; other processes try to train the same run; checkpoints are damaged.
//!
//! The seed determines all random choices. Every training has logical ranks, so it must end with the weights of the
//! undisturbed training. A failed attempt must name a cause. An attempt that misses the deadline is a failure.

mod attempt;
mod damage;
mod draws;
mod event;
mod flips;
mod limits;
mod processes;
mod running;
mod schedule;
mod strangers;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::Args;
use phalanx_checkpoint::{Checkpoint, Hashes};
use serde_json::json;

use attempt::{AttemptResult, Outcome};
use event::Kind;
use schedule::{Attempt, Schedule};

use crate::rounds::median;

/// Run small trainings under random schedules of failures.
#[derive(Debug, Args)]
pub(crate) struct ChaosArgs {
    /// Seed of all random choices
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of trainings
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    schedules: u64,
    /// Number of the first training, to repeat one
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Stop after the schedule that runs at this time
    #[arg(long)]
    minutes: Option<f64>,
    /// Seconds within which an attempt must end
    #[arg(long, default_value_t = 90.0)]
    deadline: f64,
    /// Instead of the trainings, flip this many bits, one at a time, over all files of checkpoints
    #[arg(long, value_name = "N", conflicts_with_all = ["schedules", "only", "keep_slow"])]
    flips: Option<u64>,
    /// Keep the folders of trainings that took more seconds than this to recover
    #[arg(long, value_name = "SECONDS")]
    keep_slow: Option<f64>,
    /// Draw only events of this kind
    #[arg(long, value_enum)]
    only: Option<Kind>,
    /// The folder of the trainings; successful ones are removed
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Also write the results to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The settings of all trainings: steps of a few milliseconds, and a checkpoint every two steps.
pub(crate) const TRAINING: &[&str] = &[
    "model.kind=mlp",
    "model.mlp_width=48",
    "model.mlp_depth=2",
    "model.image_size=16",
    "optim.kind=adamw",
    "train.global_batch=12",
    "train.threads=1",
    "train.steps=24",
    "train.logical_ranks=4",
    "train.ema=0.9",
    "train.clip_norm=1",
    "log.every=1",
    "log.usage_seconds=0",
    "data.images=60",
    "data.test_images=12",
    "eval.enabled=false",
    "sample.rows=1",
    "sample.columns=1",
    "checkpoint.every=2",
    "comm.timeout=8",
];

/// The sums over all schedules.
#[derive(Debug, Default)]
struct Totals {
    schedules: u64,
    ended_right: u64,
    attempts: u64,
    named_errors: u64,
    saved: u64,
    resumed: u64,
    /// Checkpoints that were damaged before they were resumed.
    damaged: u64,
    /// The number of events of each kind.
    events: BTreeMap<&'static str, u64>,
    /// Changes of the world during training.
    changes: u64,
    /// Seconds from an event to the next step, of resumed trainings (`resuming`) and of elastic ones that continued
    /// (`going_on`). Each has its schedule's number.
    resuming: Vec<(u64, f64)>,
    going_on: Vec<(u64, f64)>,
    failures: Vec<String>,
}

pub(crate) fn run(args: &ChaosArgs) -> Result<()> {
    let place = crate::program::folder(args.out.as_deref(), "chaos")?;
    let deadline = Duration::from_secs_f64(args.deadline);
    limits::raise_descriptors();
    let expected = undisturbed(&place, deadline)?;
    if let Some(flips) = args.flips {
        return flips::run(args, flips, &place, &expected);
    }
    let (begun, mut tally, mut kept) = (Instant::now(), Totals::default(), false);
    for number in args.first..args.first + args.schedules {
        if args.minutes.is_some_and(|minutes| begun.elapsed().as_secs_f64() > 60.0 * minutes) {
            println!("the time is up after {} schedules", tally.schedules);
            break;
        }
        let schedule = Schedule::draw(args.seed, number, args.only);
        tally.schedules += 1;
        let folder = place.join(format!("schedule-{number}"));
        std::fs::create_dir_all(&folder)?;
        match follow((number, &schedule), &folder, &expected, deadline, &mut tally) {
            Ok(()) => {
                tally.ended_right += 1;
                println!("{number:5}  right   {schedule}");
                let slow = |(other, seconds): &(u64, f64)| {
                    *other == number && args.keep_slow.is_some_and(|most| *seconds > most)
                };
                if tally.going_on.iter().any(slow) {
                    println!("       slow, kept in {}", folder.display());
                    kept = true;
                    continue;
                }
                std::fs::remove_dir_all(&folder)
                    .with_context(|| format!("cannot remove {}", folder.display()))?;
            }
            Err(error) => {
                println!("{number:5}  FAILED  {schedule}\n       {error:#}");
                tally.failures.push(format!("schedule {number}: {error:#}"));
            }
        }
    }
    tally.print(begun.elapsed());
    crate::write(args.json.as_deref(), &tally.json(args.seed))?;
    if !tally.failures.is_empty() {
        bail!("{} schedules failed; their folders are in {}", tally.failures.len(), place.display());
    }
    if kept {
        return Ok(());
    }
    std::fs::remove_dir_all(&place).with_context(|| format!("cannot remove {}", place.display()))
}

/// Returns the result of the undisturbed training on one rank.
fn undisturbed(place: &std::path::Path, deadline: Duration) -> Result<Hashes> {
    let folder = place.join("undisturbed");
    std::fs::create_dir_all(&folder)?;
    let attempt = Attempt { damage: None, ranks: 1, strategy: "ddp", elastic: None, events: Vec::new() };
    match attempt.run(&folder, 0, &[], deadline)?.outcome {
        Outcome::Finished => hashes(&folder),
        Outcome::Saved => bail!("the undisturbed training was interrupted"),
        Outcome::Failed { said } => bail!("the undisturbed training failed: {said}"),
    }
}

fn hashes(folder: &std::path::Path) -> Result<Hashes> {
    let (newest, damaged) = Checkpoint::newest(&folder.join("run/checkpoints"));
    if let Some(problem) = damaged.first() {
        bail!("a checkpoint is damaged: {problem}");
    }
    let newest = newest.context("there is no checkpoint")?;
    let computed = newest.computed_hashes()?;
    if computed != newest.hashes()? {
        bail!("the index of the last checkpoint has other hashes than its files");
    }
    Ok(computed)
}

/// Runs a schedule to the end of its training.
fn follow(
    (number, schedule): (u64, &Schedule),
    folder: &std::path::Path,
    expected: &Hashes,
    deadline: Duration,
    tally: &mut Totals,
) -> Result<()> {
    let mut since_event = None::<Instant>;
    for (at, attempt) in schedule.attempts.iter().enumerate() {
        tally.attempts += 1;
        tally.resumed += u64::from(at > 0);
        let done = attempt.run(folder, at, &schedule.settings, deadline);
        let AttemptResult { outcome, events, first_step, changes, damaged } =
            done.with_context(|| format!("attempt {}", at + 1))?;
        if let (Some(event), Some(first)) = (since_event.take(), first_step) {
            tally.resuming.push((number, first.saturating_duration_since(event).as_secs_f64()));
        }
        for (kind, _) in &events {
            *tally.events.entry(kind.name()).or_default() += 1;
        }
        tally.damaged += u64::from(damaged.is_some());
        tally.changes += changes.len() as u64;
        // A rank that came or left by agreement was not lost.
        let lost = changes.iter().filter(|change| !change.left.is_empty() && change.came.is_empty());
        tally.going_on.extend(lost.filter_map(|change| Some((number, change.seconds?))));
        match outcome {
            Outcome::Finished => {
                let found = hashes(folder)?;
                if found != *expected {
                    bail!("it ended in other bits: {found:?} in place of {expected:?}");
                }
                return Ok(());
            }
            Outcome::Saved => tally.saved += 1,
            Outcome::Failed { said } => {
                check_named(&said)?;
                tally.named_errors += 1;
                since_event = events.last().map(|(_, at)| *at);
            }
        }
    }
    bail!("the last attempt, to which nothing happened, has not ended well")
}

/// Checks that the messages at the end of an attempt name a cause.
fn check_named(said: &str) -> Result<()> {
    let line = said.lines().find(|line| line.contains("error: "));
    let Some(line) = line else { bail!("it ended without a named error: {said:?}") };
    let names = ["rank ", "connection", "checkpoint", "ranks "].iter().any(|word| line.contains(word));
    if line.contains("panicked") || !names {
        bail!("it ended without a named error: {said:?}");
    }
    Ok(())
}

fn only_seconds(of_schedules: &[(u64, f64)]) -> Vec<f64> {
    of_schedules.iter().map(|(_, seconds)| *seconds).collect()
}

impl Totals {
    fn print(&self, took: Duration) {
        let events = self.events.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>();
        println!("\nschedules               {:6}", self.schedules);
        println!("ended right             {:6}   the hashes of the undisturbed training", self.ended_right);
        println!("attempts                {:6}   {} of them resumed", self.attempts, self.resumed);
        println!(
            "ended by a named error  {:6}   {} more were asked to end, and saved",
            self.named_errors, self.saved
        );
        println!("events                  {:6}   {}", self.events.values().sum::<u64>(), events.join(", "));
        println!("damaged checkpoints     {:6}   and older ones used", self.damaged);
        println!("failed, or hung         {:6}", self.failures.len());
        println!("worlds that changed     {:6}   while training went on", self.changes);
        for (what, seconds) in [("going on", &self.going_on), ("resumed", &self.resuming)] {
            let Some((worst, of)) =
                seconds.iter().map(|(of, seconds)| (*seconds, of)).max_by(|a, b| a.0.total_cmp(&b.0))
            else {
                continue;
            };
            println!(
                "recovery, {what:13} {:6.2} s median, {worst:.2} s worst (schedule {of}) of {}: from a loss to the next step that is done",
                median(only_seconds(seconds)),
                seconds.len()
            );
        }
        println!("took                    {:6.0} s", took.as_secs_f64());
    }

    fn json(&self, seed: u64) -> serde_json::Value {
        json!({
            "seed": seed,
            "schedules": self.schedules,
            "ended_right": self.ended_right,
            "attempts": self.attempts,
            "resumed": self.resumed,
            "named_errors": self.named_errors,
            "damaged": self.damaged,
            "events": self.events,
            "saved": self.saved,
            "changes": self.changes,
            "seconds_to_resume": only_seconds(&self.resuming),
            "seconds_to_go_on": only_seconds(&self.going_on),
            "failures": self.failures,
        })
    }
}

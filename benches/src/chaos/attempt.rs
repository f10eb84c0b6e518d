//! One attempt at a training: started, disturbed, and watched to its end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use phalanx_checkpoint::Checkpoint;
use phalanx_run::{Line, Summary, WorldChange, read_metrics};

use super::event::{Event, Kind};
use super::running::{Newcomers, ProcessResults, Running};
use super::schedule::{Attempt, Schedule};
use crate::program::phalanx;

/// The interval between two polls of a training.
const LOOK: Duration = Duration::from_millis(3);

/// The delay of each step of an elastic training, in milliseconds. Without it the training ends before a rank joins.
const STEP_MS: u64 = 25;

/// The end of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Finished,
    /// All ranks left on request, after saving a checkpoint.
    Saved,
    /// The launcher failed, with this message.
    Failed {
        said: String,
    },
}

/// The result of an attempt.
#[derive(Debug)]
pub(crate) struct AttemptResult {
    pub(crate) outcome: Outcome,
    /// The disturbances before the end, with their times.
    pub(crate) events: Vec<(Kind, Instant)>,
    /// The end of the first step.
    pub(crate) first_step: Option<Instant>,
    /// The changes of the world that the summary lists.
    pub(crate) changes: Vec<WorldChange>,
    /// The file that was damaged before the attempt.
    pub(crate) damaged: Option<PathBuf>,
}

/// The steps and the disturbances of an attempt so far.
struct Timeline<'a> {
    /// The run's folder.
    run: &'a Path,
    begun: Instant,
    /// The step of the checkpoint that the attempt resumes.
    before: u64,
    /// True once the metrics contain no lines of steps after it.
    is_trimmed: bool,
    /// The steps taken.
    steps: u64,
    first_step: Option<Instant>,
    /// The time when the next event was due, without its delay.
    since: Option<Instant>,
    events: Vec<(Kind, Instant)>,
}

impl<'a> Timeline<'a> {
    fn begin(run: &'a Path, before: u64, resumes: bool) -> Self {
        let begun = Instant::now();
        let (steps, first_step, since, events) = (0, None, None, Vec::new());
        Self { run, begun, before, is_trimmed: !resumes, steps, first_step, since, events }
    }

    /// Reads the metrics.
    fn look(&mut self) {
        let step = last_step(self.run);
        self.is_trimmed = self.is_trimmed || step <= self.before;
        self.steps = if self.is_trimmed { step.saturating_sub(self.before) } else { 0 };
        if self.steps > 0 && self.first_step.is_none() {
            self.first_step = Some(Instant::now());
        }
    }

    /// Waits for the rest of an event's delay if it is due soon. Returns true at its instant.
    fn wait_for(&mut self, event: Event) -> bool {
        if self.since.is_none() && event.is_due(self.steps, || is_saving(self.run)) {
            self.since = Some(if event.is_before_the_first_step() { self.begun } else { Instant::now() });
        }
        let Some(from) = self.since else { return false };
        let wait = event.delay().saturating_sub(from.elapsed());
        if wait >= LOOK {
            return false;
        }
        std::thread::sleep(wait);
        true
    }

    fn happened(&mut self, kind: Kind) {
        self.events.push((kind, Instant::now()));
        self.since = None;
    }
}

/// Returns the last step in the metrics.
fn last_step(run: &Path) -> u64 {
    let lines = read_metrics(&run.join("metrics.jsonl")).unwrap_or_default();
    lines.last().map_or(0, Line::step)
}

/// Returns the step of the newest checkpoint.
fn newest_step(run: &Path) -> u64 {
    let (newest, _) = Checkpoint::newest(&run.join("checkpoints"));
    newest.map_or(0, |newest| newest.step())
}

/// Returns true while a checkpoint is being written.
fn is_saving(run: &Path) -> bool {
    let entries = std::fs::read_dir(run.join("checkpoints")).into_iter().flatten();
    entries.filter_map(Result::ok).any(|entry| entry.file_name().to_string_lossy().starts_with(".tmp-step-"))
}

impl Attempt {
    /// Runs the attempt in a folder, or resumes the earlier attempt there. `number` is its number in the schedule. Returns an error if it
    /// misses the deadline.
    pub(crate) fn run(
        &self,
        folder: &Path,
        number: usize,
        settings: &[String],
        deadline: Duration,
    ) -> Result<AttemptResult> {
        let run = std::path::absolute(folder.join("run"))?;
        let resumes = run.join("config.toml").is_file();
        // A first attempt that was killed early may have left a folder without a checkpoint.
        let _ = if resumes { Ok(()) } else { std::fs::remove_dir_all(&run) };
        let damaged = self.damage.map(|damage| damage.apply(&run.join("checkpoints"))).transpose()?.flatten();
        let before = if resumes { newest_step(&run) } else { 0 };
        let command = self.command(&run, resumes, settings)?;
        let mut running = Running::begin(command, &folder.join(format!("attempt-{number}")))?;
        let mut timeline = Timeline::begin(&run, before, resumes);
        let mut due = self.events.iter().copied().peekable();
        let ended = loop {
            if let Some(ended) = running.ended()? {
                break ended;
            }
            timeline.look();
            if timeline.begun.elapsed() > deadline {
                let (seconds, events) = (deadline.as_secs(), &timeline.events);
                bail!(
                    "it hangs: not all has ended within {seconds} s; step {}, events {events:?}",
                    last_step(&run)
                );
            }
            if let Some(event) = due.peek().copied()
                && timeline.wait_for(event)
                // An event needs a running rank.
                && running.disturb(event, &Newcomers { join: &|| join(&run), resume: &|| resume(&run) })?
            {
                timeline.happened(event.kind);
                due.next();
            }
            running.wake()?;
            std::thread::sleep(LOOK);
        };
        wait_for_leftovers(&run, deadline)?;
        self.conclude(&timeline, &ended, damaged)
    }

    /// Returns the result of the attempt, whose processes have ended.
    fn conclude(
        &self,
        timeline: &Timeline<'_>,
        ended: &ProcessResults,
        damaged: Option<PathBuf>,
    ) -> Result<AttemptResult> {
        let summary = Summary::read(&timeline.run.join("summary.json")).ok();
        for said in &ended.joined {
            super::check_named(said)?;
        }
        for said in &ended.writers {
            // It may have come when the first had ended, and then trains itself.
            if !said.contains("is being trained by process") {
                super::check_named(said).context("a second writer")?;
            }
        }
        let outcome = match &summary {
            // Joined ranks, or a second writer, may have continued without the launcher.
            Some(summary) if summary.status == "finished" => Outcome::Finished,
            _ if ended.is_well => Outcome::Saved,
            _ if ended.launcher_was_killed => {
                Outcome::Failed { said: "error: the launcher of all ranks was killed on purpose".to_owned() }
            }
            _ => Outcome::Failed { said: ended.said.clone() },
        };
        if outcome != Outcome::Finished && self.events.iter().all(|event| event.kind.is_harmless()) {
            bail!("it was not disturbed, and has not finished: {}", ended.said);
        }
        if let Some(path) = damaged.as_ref().filter(|_| outcome == Outcome::Finished) {
            check_fallback(path, ended)?;
        }
        let changes = summary.map(|summary| summary.changes).filter(|_| outcome == Outcome::Finished);
        let (events, first_step) = (timeline.events.clone(), timeline.first_step);
        Ok(AttemptResult { outcome, events, first_step, changes: changes.unwrap_or_default(), damaged })
    }

    fn command(&self, run: &Path, resumes: bool, settings: &[String]) -> Result<Command> {
        let mut command = phalanx()?;
        command.arg("train").arg(if resumes { "--resume" } else { "tiny" }).arg("--out").arg(run);
        command.args(["--ranks", &self.ranks.to_string(), "--strategy", self.strategy]);
        let lone = matches!(self.strategy, "zero1" | "zero2" | "fsdp");
        let delays: Vec<String> = (0..self.ranks).map(|rank| format!("rank={rank},ms={STEP_MS}")).collect();
        // Set in any case: a resumed run would keep the values of the attempt before.
        let (least, most, respawn, redundancy, delays) = match self.elastic {
            Some(replacements) => {
                (1, Schedule::MOST, replacements, usize::from(lone && self.ranks > 1), delays.join(";"))
            }
            None => (0, 0, 0, 0, String::new()),
        };
        let own = [
            format!("elastic.min={least}"),
            format!("elastic.max={most}"),
            format!("elastic.respawn={respawn}"),
            format!("elastic.redundancy={redundancy}"),
            format!("chaos.delay={delays}"),
        ];
        for set in super::TRAINING.iter().copied().chain(settings.iter().chain(&own).map(String::as_str)) {
            command.args(["--set", set]);
        }
        Ok(command)
    }
}

/// Checks that a training has named a damaged file of a checkpoint, or the checkpoint, and that it used an older one.
pub(super) fn check_fallback(path: &Path, ended: &ProcessResults) -> Result<()> {
    let name =
        |path: Option<&Path>| path.and_then(|path| path.file_name()?.to_str()).unwrap_or_default().to_owned();
    let (file, step) = (name(Some(path)), name(path.parent()));
    let is_named = |line: &str| line.contains(&step) && line.contains("an older checkpoint is used");
    if !ended.said.lines().any(is_named) {
        bail!(
            "{step}/{file} was damaged, and the training did not say that an older checkpoint is used: {}",
            ended.said
        );
    }
    Ok(())
}

/// Returns the command by which a rank joins a run.
fn join(run: &PathBuf) -> Result<Command> {
    let mut command = phalanx()?;
    command.arg("join").arg(run);
    Ok(command)
}

/// Returns the command by which another process resumes a run.
fn resume(run: &PathBuf) -> Result<Command> {
    let mut command = phalanx()?;
    command.args(["train", "--resume", "--out"]).arg(run).args(["--ranks", "1"]);
    Ok(command)
}

/// Waits until the ranks of a killed launcher have ended.
fn wait_for_leftovers(run: &Path, deadline: Duration) -> Result<()> {
    let run = run.display().to_string();
    let begun = Instant::now();
    loop {
        let there = std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok).any(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).split('\0').any(|word| word == run)
        });
        if !there {
            return Ok(());
        }
        if begun.elapsed() > deadline {
            bail!("ranks are left over {} s after their launcher has ended", deadline.as_secs());
        }
        std::thread::sleep(LOOK);
    }
}

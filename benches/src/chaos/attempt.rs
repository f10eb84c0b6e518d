//! One attempt at a training: started, disturbed, and watched to its end.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use phalanx_checkpoint::Checkpoint;
use phalanx_run::{Line, Summary, WorldChange, read_metrics};

use super::event::Kind;
use super::running::{ProcessResults, Running};
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
    /// Runs the attempt in a folder, or resumes the earlier attempt there. Returns an error if it misses the deadline.
    pub(crate) fn run(
        &self,
        folder: &Path,
        settings: &[String],
        deadline: Duration,
    ) -> Result<AttemptResult> {
        let run = std::path::absolute(folder.join("run"))?;
        let resumes = run.join("config.toml").is_file();
        // A first attempt that was killed early may have left a folder without a checkpoint.
        let _ = if resumes { Ok(()) } else { std::fs::remove_dir_all(&run) };
        let before = if resumes { newest_step(&run) } else { 0 };
        let begun = Instant::now();
        let mut running = Running::begin(self.command(&run, resumes, settings)?)?;
        let (mut first_step, mut due) = (None, self.events.iter().copied().peekable());
        let mut events = Vec::new();
        // The time when the next event was due, without its delay.
        let mut since = None::<Instant>;
        // Steps count from the resumed checkpoint. The metrics may still contain lines of later steps.
        let mut trimmed = !resumes;
        let ended = loop {
            if let Some(ended) = running.ended()? {
                break ended;
            }
            if begun.elapsed() > deadline {
                let (seconds, step) = (deadline.as_secs(), last_step(&run));
                bail!("it hangs: not all has ended within {seconds} s; step {step}, events {events:?}");
            }
            let step = last_step(&run);
            trimmed = trimmed || step <= before;
            let steps = if trimmed { step.saturating_sub(before) } else { 0 };
            if steps > 0 && first_step.is_none() {
                first_step = Some(Instant::now());
            }
            if let Some(event) = due.peek().copied() {
                if since.is_none() && event.is_due(steps, || is_saving(&run)) {
                    since = Some(if event.is_before_the_first_step() { begun } else { Instant::now() });
                }
                if let Some(from) = since
                    && let wait = event.delay().saturating_sub(from.elapsed())
                    && wait < LOOK
                {
                    std::thread::sleep(wait);
                    // An event needs a running rank.
                    if running.disturb(event, || join(&run))? {
                        events.push((event.kind, Instant::now()));
                        due.next();
                        since = None;
                    }
                }
            }
            running.wake()?;
            std::thread::sleep(LOOK);
        };
        wait_for_leftovers(&run, deadline)?;
        conclude(&run, ended, events, first_step)
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

/// Returns the result of an attempt whose processes have ended.
fn conclude(
    run: &Path,
    ended: ProcessResults,
    events: Vec<(Kind, Instant)>,
    first_step: Option<Instant>,
) -> Result<AttemptResult> {
    let summary = Summary::read(&run.join("summary.json")).ok();
    for said in &ended.joined {
        super::check_named(said)?;
    }
    let (well, said) = ended.launcher;
    let outcome = match (&summary, well) {
        // Joined ranks may have continued without the launcher.
        (Some(summary), _) if summary.status == "finished" => Outcome::Finished,
        (_, true) => Outcome::Saved,
        (_, false) if ended.launcher_was_killed => {
            Outcome::Failed { said: "error: the launcher of all ranks was killed on purpose".to_owned() }
        }
        (_, false) => Outcome::Failed { said },
    };
    let changes = summary.map(|summary| summary.changes).filter(|_| outcome == Outcome::Finished);
    Ok(AttemptResult { outcome, events, first_step, changes: changes.unwrap_or_default() })
}

/// Returns the command by which a rank joins a run.
fn join(run: &PathBuf) -> Result<Command> {
    let mut command = phalanx()?;
    command.arg("join").arg(run);
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

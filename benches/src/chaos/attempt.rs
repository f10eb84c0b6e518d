//! One attempt at a training: started, disturbed, and watched to its end.

use std::io::Read as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use phalanx_trainer::run::{Line, read_metrics};

use super::events::{Event, Kind};
use super::processes::{ranks_of, signal};
use super::relay::Relay;
use crate::program::phalanx;

/// How often a training is looked at.
const LOOK: Duration = Duration::from_millis(3);

/// What is to be run, and what is to happen to it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attempt<'a> {
    pub(crate) ranks: usize,
    pub(crate) strategy: &'static str,
    /// Whether it goes on from what an earlier attempt has left, if that has left anything.
    pub(crate) resumes: bool,
    pub(crate) event: Option<Event>,
    pub(crate) settings: &'a [String],
}

/// How an attempt has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    Finished,
    /// With what was said.
    Failed {
        said: String,
    },
}

/// What has become of an attempt.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) outcome: Outcome,
    /// When the event came to pass, if it did before the end.
    pub(crate) event: Option<Instant>,
    /// When the first step was done.
    pub(crate) first_step: Option<Instant>,
}

/// The processes of an attempt that were started here, killed when this is dropped.
struct Running {
    /// The launcher, or, where there is none, the ranks in order.
    children: Vec<Child>,
    has_launcher: bool,
    /// What each has said, once it has ended.
    said: Vec<std::thread::JoinHandle<String>>,
    relay: Option<Relay>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let ids: Vec<u32> = self.children.iter().map(Child::id).collect();
        for (_, rank) in ids.iter().filter(|_| self.has_launcher).flat_map(|id| ranks_of(*id)) {
            let _ = signal(rank, "KILL");
        }
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Running {
    fn add(&mut self, mut command: Command) -> Result<()> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start phalanx")?;
        let mut errors = child.stderr.take().context("the program has an error stream")?;
        self.said.push(std::thread::spawn(move || {
            let mut said = Vec::new();
            // What cannot be read is no message.
            let _ = errors.read_to_end(&mut said);
            String::from_utf8_lossy(&said).into_owned()
        }));
        self.children.push(child);
        Ok(())
    }

    /// The process of a rank, once it is there.
    fn rank(&self, rank: usize) -> Option<u32> {
        match self.has_launcher {
            true => ranks_of(self.children[0].id())
                .into_iter()
                .find(|(other, _)| *other == rank)
                .map(|(_, id)| id),
            false => self.children.get(rank).map(Child::id),
        }
    }

    /// How all have ended, if they have.
    fn ended(&mut self) -> Result<Option<Vec<ExitStatus>>> {
        let statuses = self.children.iter_mut().map(Child::try_wait).collect::<std::io::Result<Vec<_>>>();
        Ok(statuses.context("cannot wait for phalanx")?.into_iter().collect())
    }
}

/// The last step that has a line.
fn last_step(folder: &Path) -> u64 {
    let lines = read_metrics(&folder.join("run/metrics.jsonl")).unwrap_or_default();
    lines.last().map_or(0, Line::step)
}

/// Whether a checkpoint is being written.
fn is_saving(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder.join("run/checkpoints")).into_iter().flatten();
    entries.filter_map(Result::ok).any(|entry| entry.file_name().to_string_lossy().starts_with(".tmp-step-"))
}

impl Attempt<'_> {
    /// Runs it in a folder to its end; one that has not ended by the deadline is an error.
    pub(crate) fn run(&self, folder: &Path, deadline: Duration) -> Result<Done> {
        let resumes = self.resumes && folder.join("run/config.toml").is_file();
        // A first attempt that was killed at once may have left a folder that nothing can be resumed from.
        let _ = if resumes { Ok(()) } else { std::fs::remove_dir_all(folder.join("run")) };
        let before = if resumes { newest_step(folder) } else { 0 };
        let mut running = self.start(folder, resumes)?;
        let begun = Instant::now();
        let (mut event, mut first_step, mut goes_on) = (None, None, None::<(u32, Instant)>);
        // Steps count from where this attempt goes on; the metrics may still have lines of later ones for a while.
        let mut trimmed = !resumes;
        let statuses = loop {
            if let Some(statuses) = running.ended()? {
                break statuses;
            }
            if begun.elapsed() > deadline {
                bail!(
                    "it hangs: nothing ended within {} s; step {}, event {:?}",
                    deadline.as_secs(),
                    last_step(folder),
                    self.event
                );
            }
            let step = last_step(folder);
            trimmed = trimmed || step <= before;
            let steps = if trimmed { step.saturating_sub(before) } else { 0 };
            if steps > 0 && first_step.is_none() {
                first_step = Some(Instant::now());
            }
            if let (Some(due), None) = (self.event, event) {
                event = self.disturb(due, steps, begun, &running, folder)?;
                if let (Some(_), Kind::Stop, Some(rank)) = (event, due.kind, running.rank(due.rank)) {
                    goes_on = Some((rank, Instant::now() + Duration::from_secs_f64(due.lasts_ms / 1e3)));
                }
            }
            if let Some((rank, at)) = goes_on
                && Instant::now() >= at
            {
                signal(rank, "CONT")?;
                goes_on = None;
            }
            std::thread::sleep(LOOK);
        };
        let said: Vec<String> = running.said.drain(..).map(|said| said.join().unwrap_or_default()).collect();
        let was_killed = |at: usize| match (self.event, event) {
            (Some(Event { kind: Kind::Launcher, .. }), Some(_)) => running.has_launcher,
            (Some(Event { kind: Kind::Kill | Kind::Saving, rank, .. }), Some(_)) => {
                !running.has_launcher && rank == at
            }
            _ => false,
        };
        let outcome = if statuses.iter().all(ExitStatus::success) {
            Outcome::Finished
        } else {
            // Of whom was killed nothing is to be heard.
            let mut all: Vec<String> = (0..said.len())
                .filter(|at| !statuses[*at].success() && !was_killed(*at))
                .map(|at| said[at].clone())
                .collect();
            if (0..said.len()).any(was_killed) && all.is_empty() {
                all.push("error: rank 0's launcher was killed on purpose".to_owned());
            }
            Outcome::Failed { said: all.join("\n") }
        };
        self.wait_for_leftovers(folder, deadline)?;
        Ok(Done { outcome, event, first_step })
    }

    /// Ranks whose launcher was killed end by themselves; the next attempt begins when they have.
    fn wait_for_leftovers(&self, folder: &Path, deadline: Duration) -> Result<()> {
        let run = std::path::absolute(folder.join("run"))?.display().to_string();
        let begun = Instant::now();
        loop {
            let there =
                std::fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok).any(|entry| {
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

    /// Has the event come to pass if it is due: then when.
    fn disturb(
        &self,
        event: Event,
        steps: u64,
        begun: Instant,
        running: &Running,
        folder: &Path,
    ) -> Result<Option<Instant>> {
        if steps < event.steps || (event.kind == Kind::Saving && !is_saving(folder)) {
            return Ok(None);
        }
        let delay = Duration::from_secs_f64(event.ms / 1e3);
        if event.steps == 0 && event.kind != Kind::Saving {
            std::thread::sleep(delay.saturating_sub(begun.elapsed()));
        } else {
            std::thread::sleep(delay);
        }
        let target = match event.kind {
            Kind::Launcher => Some(running.children[0].id()),
            _ => running.rank(event.rank),
        };
        // Before its rank is there nothing can happen to it.
        let Some(target) = target else { return Ok(None) };
        match event.kind {
            Kind::Kill | Kind::Saving | Kind::Launcher => signal(target, "KILL")?,
            Kind::Stop => signal(target, "STOP")?,
            Kind::Cut => running.relay.as_ref().context("a cut has a relay")?.cut(),
        }
        Ok(Some(Instant::now()))
    }

    fn start(&self, folder: &Path, resumes: bool) -> Result<Running> {
        let run = std::path::absolute(folder.join("run"))?;
        let mut running = Running { children: Vec::new(), has_launcher: true, said: Vec::new(), relay: None };
        let command = || -> Result<Command> {
            let mut command = phalanx()?;
            command.arg("train");
            if resumes {
                command.arg("--resume");
            } else {
                command.arg("tiny");
            }
            command.arg("--out").arg(&run).args([
                "--ranks",
                &self.ranks.to_string(),
                "--strategy",
                self.strategy,
            ]);
            for set in super::TRAINING.iter().copied().chain(self.settings.iter().map(String::as_str)) {
                command.args(["--set", set]);
            }
            Ok(command)
        };
        if self.event.is_none_or(|event| event.kind != Kind::Cut) {
            running.add(command()?)?;
            return Ok(running);
        }
        running.has_launcher = false;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let relay = Relay::to(port)?;
        let cut = self.event.map_or(0, |event| event.rank);
        for rank in 0..self.ranks {
            let mut command = command()?;
            let port = if rank == cut { relay.port } else { port };
            command
                .env("RANK", rank.to_string())
                .env("WORLD_SIZE", self.ranks.to_string())
                .env("LOCAL_RANK", rank.to_string())
                .env("LOCAL_WORLD_SIZE", self.ranks.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.to_string());
            running.add(command)?;
        }
        running.relay = Some(relay);
        Ok(running)
    }
}

/// The step of the newest checkpoint, from which a run goes on.
fn newest_step(folder: &Path) -> u64 {
    let (newest, _) = phalanx_trainer::run::checkpoint::Checkpoint::newest(&folder.join("run/checkpoints"));
    newest.map_or(0, |newest| newest.step())
}

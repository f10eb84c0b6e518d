//! The running processes of an attempt.

use std::io::Read as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::event::{Event, Kind};
use super::processes::{cut, ranks_of, signal};

/// The launcher and the ranks that join. All are killed on drop.
pub(crate) struct Running {
    /// The processes, the launcher first.
    children: Vec<Child>,
    /// The error stream of each process.
    said: Vec<std::thread::JoinHandle<String>>,
    /// Processes that were killed or stopped on purpose.
    struck: Vec<u32>,
    /// Stopped processes, with the end of their stop.
    stopped: Vec<(u32, Instant)>,
}

/// The results of the processes of an attempt.
#[derive(Debug)]
pub(crate) struct ProcessResults {
    /// True if the launcher succeeded, and its error stream.
    pub(crate) launcher: (bool, String),
    /// True if the launcher was killed on purpose.
    pub(crate) launcher_was_killed: bool,
    /// Error streams of joined ranks that failed although they were not disturbed.
    pub(crate) joined: Vec<String>,
}

impl Drop for Running {
    fn drop(&mut self) {
        for process in self.living() {
            let _ = signal(process, "KILL");
        }
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Running {
    pub(crate) fn begin(launcher: Command) -> Result<Self> {
        let mut running =
            Self { children: Vec::new(), said: Vec::new(), struck: Vec::new(), stopped: Vec::new() };
        running.add(launcher)?;
        Ok(running)
    }

    fn add(&mut self, mut command: Command) -> Result<()> {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().context("cannot start phalanx")?;
        let mut errors = child.stderr.take().context("the program has an error stream")?;
        self.said.push(std::thread::spawn(move || {
            let mut said = Vec::new();
            // An unreadable line is not a message.
            let _ = errors.read_to_end(&mut said);
            String::from_utf8_lossy(&said).into_owned()
        }));
        self.children.push(child);
        Ok(())
    }

    /// The training processes: the launcher's by rank, then joined ones.
    fn living(&self) -> Vec<u32> {
        let launched = ranks_of(self.children[0].id()).into_iter().map(|(_, id)| id);
        launched.chain(self.children[1..].iter().map(Child::id)).collect()
    }

    /// Carries out an event. Returns false if its process does not exist.
    pub(crate) fn disturb(&mut self, event: Event, join: impl Fn() -> Result<Command>) -> Result<bool> {
        match event.kind {
            Kind::Join => self.add(join()?)?,
            Kind::Launcher => {
                self.struck.push(self.children[0].id());
                signal(self.children[0].id(), "KILL")?;
            }
            Kind::Kill | Kind::Saving | Kind::Stop | Kind::Cut | Kind::Leave => {
                let living = self.living();
                let Some(at) = event.rank.checked_rem(living.len()) else { return Ok(false) };
                let target = living[at];
                self.struck.push(target);
                match event.kind {
                    Kind::Stop => {
                        signal(target, "STOP")?;
                        self.stopped.push((target, Instant::now() + event.lasts()));
                    }
                    Kind::Cut => return cut(target),
                    Kind::Leave => signal(target, "TERM")?,
                    _ => signal(target, "KILL")?,
                }
            }
        }
        Ok(true)
    }

    /// Continues processes after the end of their stop.
    pub(crate) fn wake(&mut self) -> Result<()> {
        let now = Instant::now();
        for (process, _) in self.stopped.extract_if(.., |(_, at)| *at <= now) {
            signal(process, "CONT")?;
        }
        Ok(())
    }

    /// Returns the results once all processes have ended.
    pub(crate) fn ended(&mut self) -> Result<Option<ProcessResults>> {
        let statuses = self.children.iter_mut().map(Child::try_wait).collect::<std::io::Result<Vec<_>>>();
        let statuses: Option<Vec<ExitStatus>> =
            statuses.context("cannot wait for phalanx")?.into_iter().collect();
        let Some(statuses) = statuses else { return Ok(None) };
        let mut said: Vec<String> = self.said.drain(..).map(|said| said.join().unwrap_or_default()).collect();
        let spared = |at: usize| !self.struck.contains(&self.children[at].id());
        let joined = (1..said.len()).filter(|at| !statuses[*at].success() && spared(*at));
        let joined = joined.map(|at| said[at].clone()).collect();
        let launcher = (statuses[0].success(), std::mem::take(&mut said[0]));
        Ok(Some(ProcessResults { launcher, launcher_was_killed: !spared(0), joined }))
    }
}

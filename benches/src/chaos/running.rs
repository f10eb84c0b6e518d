//! The running processes of an attempt.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result};

use super::event::{Event, Kind};
use super::limits::{limit_descriptors, limit_files};
use super::processes::{cut, ranks_of, signal};
use super::strangers::Strangers;

/// The number of connections of strangers to each port.
const STRANGERS: usize = 300;

/// The purpose of a process of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Starts the ranks.
    Launcher,
    /// Joins the run as a rank.
    Joined,
    /// Resumes the run while another process trains it.
    Writer,
}

/// A process, and the file with its output and errors.
struct Started {
    child: Child,
    purpose: Purpose,
    output: PathBuf,
}

impl Started {
    /// The output and the errors of the process so far. An unreadable line is not a message.
    fn said(&self) -> String {
        std::fs::read(&self.output)
            .map_or_else(|_| String::new(), |said| String::from_utf8_lossy(&said).into_owned())
    }
}

/// The commands of processes that come during an attempt.
pub(crate) struct Newcomers<'a> {
    /// The command by which a rank joins.
    pub(crate) join: &'a dyn Fn() -> Result<Command>,
    /// The command by which another process resumes the run.
    pub(crate) resume: &'a dyn Fn() -> Result<Command>,
}

/// The launcher and the processes that came later. All are killed on drop.
pub(crate) struct Running {
    /// The launcher first.
    started: Vec<Started>,
    /// The folder of the files with outputs, and the start of their names.
    outputs: PathBuf,
    /// Processes that were killed, stopped or limited on purpose.
    struck: Vec<u32>,
    /// Stopped processes, with the end of their stop.
    stopped: Vec<(u32, Instant)>,
    /// Connections of strangers.
    strangers: Strangers,
}

/// The results of the processes of an attempt.
#[derive(Debug)]
pub(crate) struct ProcessResults {
    /// True if the launcher succeeded.
    pub(crate) is_well: bool,
    /// The output and the errors of the launcher.
    pub(crate) said: String,
    /// True if the launcher was killed on purpose.
    pub(crate) launcher_was_killed: bool,
    /// Messages of joined ranks that failed although they were not disturbed.
    pub(crate) joined: Vec<String>,
    /// Messages of second writers that failed.
    pub(crate) writers: Vec<String>,
}

impl Drop for Running {
    fn drop(&mut self) {
        for process in self.living() {
            let _ = signal(process, "KILL");
        }
        for Started { child, .. } in &mut self.started {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Running {
    /// Starts the launcher. Outputs go to files whose paths begin with `outputs`.
    pub(crate) fn begin(launcher: Command, outputs: &Path) -> Result<Self> {
        let mut running = Self {
            started: Vec::new(),
            outputs: outputs.to_owned(),
            struck: Vec::new(),
            stopped: Vec::new(),
            strangers: Strangers::default(),
        };
        running.add(launcher, Purpose::Launcher)?;
        Ok(running)
    }

    fn add(&mut self, mut command: Command, purpose: Purpose) -> Result<()> {
        let mut output = self.outputs.clone().into_os_string();
        output.push(format!("-{}.log", self.started.len()));
        let output = PathBuf::from(output);
        let file = File::create(&output).with_context(|| format!("cannot write {}", output.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().context("cannot start phalanx")?;
        self.started.push(Started { child, purpose, output });
        Ok(())
    }

    fn launcher(&self) -> u32 {
        self.started[0].child.id()
    }

    /// The training processes: the launcher's by rank, then joined ones.
    fn living(&self) -> Vec<u32> {
        let joined =
            self.started.iter().filter(|one| one.purpose == Purpose::Joined).map(|one| one.child.id());
        ranks_of(self.launcher()).into_iter().map(|(_, id)| id).chain(joined).collect()
    }

    /// Carries out an event. Returns false if its process does not exist.
    pub(crate) fn disturb(&mut self, event: Event, newcomers: &Newcomers<'_>) -> Result<bool> {
        match event.kind {
            Kind::Join => self.add((newcomers.join)()?, Purpose::Joined)?,
            Kind::Writer => self.add((newcomers.resume)()?, Purpose::Writer)?,
            Kind::Launcher => {
                self.struck.push(self.launcher());
                signal(self.launcher(), "KILL")?;
            }
            Kind::Strangers => {
                let processes: Vec<u32> = self.living().into_iter().chain([self.launcher()]).collect();
                return self.strangers.connect(&processes, STRANGERS);
            }
            _ => {
                let living = self.living();
                let Some(at) = event.rank.checked_rem(living.len()) else { return Ok(false) };
                return self.strike(event, living[at]);
            }
        }
        Ok(true)
    }

    /// Carries out an event that strikes one rank.
    fn strike(&mut self, event: Event, target: u32) -> Result<bool> {
        self.struck.push(target);
        match event.kind {
            Kind::Stop => {
                signal(target, "STOP")?;
                self.stopped.push((target, Instant::now() + event.lasts()));
            }
            Kind::Cut => return cut(target),
            Kind::Leave => signal(target, "TERM")?,
            Kind::Descriptors => {
                limit_descriptors(target, (8.0 * event.left) as u64)?;
                self.strangers.connect(&[target], STRANGERS)?;
            }
            Kind::Full => limit_files(target, (65_536.0 * event.left) as u64)?,
            _ => signal(target, "KILL")?,
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
        let statuses = self.started.iter_mut().map(|one| one.child.try_wait());
        let statuses: Option<Vec<ExitStatus>> = statuses
            .collect::<std::io::Result<Vec<_>>>()
            .context("cannot wait for phalanx")?
            .into_iter()
            .collect();
        let Some(statuses) = statuses else { return Ok(None) };
        let is_spared = |one: &Started| !self.struck.contains(&one.child.id());
        let failed = |purpose: Purpose| {
            let all = self.started.iter().zip(&statuses);
            let failed =
                all.filter(|(one, status)| one.purpose == purpose && !status.success() && is_spared(one));
            failed.map(|(one, _)| one.said()).collect::<Vec<_>>()
        };
        Ok(Some(ProcessResults {
            is_well: statuses[0].success(),
            said: self.started[0].said(),
            launcher_was_killed: !is_spared(&self.started[0]),
            joined: failed(Purpose::Joined),
            writers: failed(Purpose::Writer),
        }))
    }
}

//! Trains the runs of a sweep, each by a process of its own, and leaves out those that are finished.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::trials::Run;
use phalanx_run::{RunFolder, Summary, write_aside};
use phalanx_trainer::config::{Detail, Resolved};

/// The interval at which a run is polled.
const POLL: Duration = Duration::from_millis(20);

/// Starts the runs of a sweep.
#[derive(Debug)]
pub struct Runner<'a> {
    /// The program, which knows the command `train`.
    pub program: PathBuf,
    /// The folder of all runs.
    pub folder: &'a Path,
    /// The number of runs that train at once.
    pub parallel: usize,
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrainingEnd {
    /// It had finished before.
    FinishedBefore,
    /// It has finished now, after so long.
    Finished(Duration),
    /// It failed.
    Failed(String),
    /// It was asked to stop. It leaves a checkpoint if it saves any.
    Stopped,
}

impl Runner<'_> {
    /// The folder of a run.
    pub fn folder_of(&self, run: &Run) -> PathBuf {
        self.folder.join("runs").join(&run.name)
    }

    /// The file with a run's settings, as they were when it began.
    fn config_of(&self, run: &Run) -> PathBuf {
        self.folder.join("configs").join(format!("{}.toml", run.name))
    }

    /// Returns true if the folder of a run holds one of other settings.
    pub fn differs(&self, run: &Run, resolved: &Resolved) -> bool {
        let Ok(text) = std::fs::read_to_string(self.config_of(run)) else { return false };
        text != resolved.to_toml(Detail::Values)
    }

    /// Returns true if a run has finished.
    pub fn is_finished(&self, run: &Run) -> bool {
        let summary = RunFolder::open(&self.folder_of(run)).ok().map(|folder| folder.summary());
        let summary = summary.and_then(|path| Summary::read(&path).ok());
        summary.is_some_and(|summary| summary.status == "finished")
    }

    /// Trains all runs but those that are only predicted, and reports the end of each to `told`. `interrupts` counts the user's
    /// requests to end: at one, runs finish their steps; at two, they end at once.
    pub fn run(
        &self,
        runs: &[(Run, Resolved)],
        interrupts: &(dyn Fn() -> usize + Sync),
        told: &(dyn Fn(usize, &TrainingEnd) + Sync),
    ) -> Vec<TrainingEnd> {
        let next = AtomicUsize::new(0);
        let ended = Mutex::new(vec![TrainingEnd::Stopped; runs.len()]);
        std::thread::scope(|scope| {
            for _ in 0..self.parallel.clamp(1, runs.len().max(1)) {
                let next_run = || {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    runs.get(at).filter(|_| interrupts() == 0).map(|run| (at, run))
                };
                let train_next = |(at, (run, resolved)): (usize, &(Run, Resolved))| {
                    let Some(end) = self.train_unfinished(run, resolved, interrupts) else { return };
                    told(at, &end);
                    ended.lock().unwrap_or_else(PoisonError::into_inner)[at] = end;
                };
                scope.spawn(move || std::iter::from_fn(next_run).for_each(train_next));
            }
        });
        ended.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Trains a run unless it has finished before; `None` if it is only predicted.
    fn train_unfinished(
        &self,
        run: &Run,
        resolved: &Resolved,
        interrupts: &(dyn Fn() -> usize + Sync),
    ) -> Option<TrainingEnd> {
        (!run.predicted).then(|| match self.is_finished(run) {
            true => TrainingEnd::FinishedBefore,
            false => self.train(run, resolved, interrupts).unwrap_or_else(TrainingEnd::Failed),
        })
    }

    /// Trains one run, or continues it where it was stopped.
    fn train(
        &self,
        run: &Run,
        resolved: &Resolved,
        interrupts: &(dyn Fn() -> usize + Sync),
    ) -> Result<TrainingEnd, String> {
        let out = self.folder_of(run);
        let begun = Instant::now();
        let mut command = Command::new(&self.program);
        command.arg("train");
        match out.join("config.toml").is_file() {
            true => command.arg("--resume"),
            false => {
                let config = self.config_of(run);
                let made = config.parent().map_or(Ok(()), std::fs::create_dir_all);
                made.and_then(|()| write_aside(&config, resolved.to_toml(Detail::Values).as_bytes()))
                    .map_err(|error| format!("cannot write {}: {error}", config.display()))?;
                command.arg(config)
            }
        };
        command.arg("--out").arg(&out);
        let log = self.folder.join("runs").join(format!("{}.log", run.name));
        let made = log.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.map_err(|error| format!("cannot make the folder of {}: {error}", log.display()))?;
        let opened = std::fs::File::create(&log);
        let opened = opened.and_then(|file| Ok((file.try_clone()?, file)));
        let (output, errors) = opened.map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        // A terminal's Ctrl-C reaches this process, which tells the runs; they would hear it twice.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child =
            command.spawn().map_err(|error| format!("cannot start {}: {error}", self.program.display()))?;
        let mut child = RunProcess(child);
        let mut asked = 0;
        let status = loop {
            if let Some(status) =
                child.0.try_wait().map_err(|error| format!("cannot wait for it: {error}"))?
            {
                break status;
            }
            let interrupts = interrupts();
            while asked < interrupts.min(2) {
                child.interrupt();
                asked += 1;
            }
            std::thread::sleep(POLL);
        };
        if self.is_finished(run) {
            return Ok(TrainingEnd::Finished(begun.elapsed()));
        }
        if asked > 0 {
            return Ok(TrainingEnd::Stopped);
        }
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        let error = said.rsplit_once("error: ").map(|(_, error)| error.trim().to_owned());
        Err(error.unwrap_or_else(|| format!("{status}; its output is in {}", log.display())))
    }
}

/// A run's process. Dropping it kills the process.
struct RunProcess(Child);

impl RunProcess {
    /// Asks it to finish its step and leave; asked again, it leaves at once.
    fn interrupt(&mut self) {
        #[cfg(unix)]
        if let Some(pid) = rustix::process::Pid::from_raw(self.0.id() as i32) {
            // A process that has ended needs no signal.
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::INT);
        }
        #[cfg(not(unix))]
        let _ = self.0.kill();
    }
}

impl Drop for RunProcess {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

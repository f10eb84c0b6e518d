//! Trains the runs of a sweep, each by a process of its own, and leaves out those that are finished.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::place::SweepFolder;
use super::schedule::{Job, Next, Schedule, TrainingEnd};
use super::trials::Run;
use super::watch::PruneWatch;
use phalanx_config::{Detail, Resolved};
use phalanx_run::{RunError, write_aside};

/// The interval at which a run is polled.
const POLL: Duration = Duration::from_millis(20);

/// Starts the runs of a sweep.
#[derive(Debug)]
pub struct Runner<'a> {
    /// The program, which knows the command `train`.
    pub program: PathBuf,
    /// The folder of the sweep.
    pub place: SweepFolder<'a>,
    /// The number of runs that train at once.
    pub parallel: usize,
}

/// The caller of [`Runner::run`].
#[derive(Clone, Copy)]
pub struct Caller<'a> {
    /// Counts the user's requests to end: at one, runs finish their steps; at two, they end at once.
    pub interrupts: &'a (dyn Fn() -> usize + Sync),
    /// Is told the end of each run, by its number.
    pub ended: &'a (dyn Fn(usize, &Run, &TrainingEnd) + Sync),
}

impl std::fmt::Debug for Caller<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").finish_non_exhaustive()
    }
}

impl Runner<'_> {
    /// Trains all runs of a schedule.
    ///
    /// # Errors
    /// If the record of a search's trials cannot be written. The runs that train then are finished first.
    pub fn run(&self, schedule: &Mutex<Schedule<'_>>, caller: Caller<'_>) -> Result<(), RunError> {
        let failed = Mutex::new(None);
        std::thread::scope(|scope| {
            for _ in 0..self.parallel.max(1) {
                scope.spawn(|| {
                    let is_over = || (caller.interrupts)() > 0 || locked(&failed).is_some();
                    if let Err(error) = self.work(schedule, caller, &is_over) {
                        *locked(&failed) = Some(error);
                    }
                });
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Trains one run after the other until all have begun, or `is_over`.
    fn work(
        &self,
        schedule: &Mutex<Schedule<'_>>,
        caller: Caller<'_>,
        is_over: &dyn Fn() -> bool,
    ) -> Result<(), RunError> {
        while !is_over() {
            let next = locked(schedule).next_job()?;
            match next {
                Next::Done => break,
                Next::Wait => std::thread::sleep(POLL),
                Next::Train(mut job) => {
                    let end = self.end_of(&mut job, caller);
                    (caller.ended)(job.at, &job.run, &end);
                    locked(schedule).end(job.at, end)?;
                }
            }
        }
        Ok(())
    }

    /// Trains a run unless it has ended before.
    fn end_of(&self, job: &mut Job, caller: Caller<'_>) -> TrainingEnd {
        if let Some(end) = &job.ended {
            return end.clone();
        }
        let folder = self.place.run(&job.run);
        let pruned =
            |watch: &mut Option<PruneWatch>| watch.as_mut()?.decide(&folder).map(TrainingEnd::Pruned);
        if let Some(end) = pruned(&mut job.watch) {
            return end;
        }
        if self.place.is_finished(&job.run) {
            return TrainingEnd::FinishedBefore;
        }
        let end = match &job.resolved {
            Err(error) => Err(error.clone()),
            Ok(resolved) => self.train(&job.run, resolved, caller, &mut job.watch),
        };
        match end {
            // A run may end before it reads the request to stop. The decision is that of its values.
            Ok(end @ TrainingEnd::Finished(_)) => pruned(&mut job.watch).unwrap_or(end),
            Ok(end) => end,
            Err(error) => TrainingEnd::Failed(error),
        }
    }

    /// Trains one run, or continues it where it was stopped.
    fn train(
        &self,
        run: &Run,
        resolved: &Resolved,
        caller: Caller<'_>,
        watch: &mut Option<PruneWatch>,
    ) -> Result<TrainingEnd, String> {
        let begun = Instant::now();
        let out = self.place.run(run);
        let log = self.place.log(run);
        let mut child = RunProcess(self.start(run, resolved, &log)?);
        let mut asked = 0;
        let status = loop {
            if let Some(status) = child.ended()? {
                break status;
            }
            let interrupts = (caller.interrupts)();
            while asked < interrupts.min(2) {
                child.interrupt();
                asked += 1;
            }
            watch.iter_mut().for_each(|watch| watch.poll(&out));
            std::thread::sleep(POLL);
        };
        if self.place.is_finished(run) {
            return Ok(TrainingEnd::Finished(begun.elapsed()));
        }
        if let Some(decision) = watch.as_ref().and_then(PruneWatch::stopped) {
            return Ok(TrainingEnd::Pruned(decision));
        }
        if asked > 0 {
            return Ok(TrainingEnd::Stopped);
        }
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        let error = said.rsplit_once("error: ").map(|(_, error)| error.trim().to_owned());
        Err(error.unwrap_or_else(|| format!("{status}; its output is in {}", log.display())))
    }

    /// Starts the process of a run, whose output goes to `log`.
    fn start(&self, run: &Run, resolved: &Resolved, log: &Path) -> Result<Child, String> {
        let out = self.place.run(run);
        let mut command = Command::new(&self.program);
        command.arg("train");
        match out.join("config.toml").is_file() {
            true => command.arg("--resume"),
            false => {
                let config = self.place.config(run);
                let made = config.parent().map_or(Ok(()), std::fs::create_dir_all);
                made.and_then(|()| write_aside(&config, resolved.to_toml(Detail::Values).as_bytes()))
                    .map_err(|error| format!("cannot write {}: {error}", config.display()))?;
                command.arg(config)
            }
        };
        command.arg("--out").arg(&out);
        let made = log.parent().map_or(Ok(()), std::fs::create_dir_all);
        made.map_err(|error| format!("cannot make the folder of {}: {error}", log.display()))?;
        let opened = std::fs::File::create(log);
        let opened = opened.and_then(|file| Ok((file.try_clone()?, file)));
        let (output, errors) = opened.map_err(|error| format!("cannot write {}: {error}", log.display()))?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        // A terminal's Ctrl-C reaches this process, which tells the runs; they would hear it twice.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.spawn().map_err(|error| format!("cannot start {}: {error}", self.program.display()))
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A run's process. Dropping it kills the process.
struct RunProcess(Child);

impl RunProcess {
    /// Returns the status of a process that has ended.
    fn ended(&mut self) -> Result<Option<ExitStatus>, String> {
        self.0.try_wait().map_err(|error| format!("cannot wait for it: {error}"))
    }

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

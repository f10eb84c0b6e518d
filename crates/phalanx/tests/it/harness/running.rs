//! Trainings in the background.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use phalanx_run::{Line, RunActivity, RunState, Summary};

use super::place::Place;
use super::processes::{PATIENCE, ended, ranks_of, signal, wait_until};
use super::results;

/// Processes that train in one run. They are killed when this is dropped.
///
/// Their output goes to files, so that they never wait for a reader.
pub(crate) struct Running {
    /// The run's folder.
    pub(crate) run: PathBuf,
    outputs: tempfile::TempDir,
    processes: Vec<(Child, PathBuf)>,
}

/// The end of a process.
#[derive(Debug)]
pub(crate) struct End {
    /// The exit code; `None` after a signal.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Drop for Running {
    fn drop(&mut self) {
        for (process, _) in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

impl Running {
    /// Starts a command that trains in the folder `run` of a place.
    pub(crate) fn start(place: &Place, line: &str) -> Self {
        Self::spawn(place.path("run"), place.command(line))
    }

    /// Starts a command that trains in the folder `run`.
    pub(crate) fn spawn(run: PathBuf, command: Command) -> Self {
        let outputs = tempfile::tempdir().expect("a folder");
        let mut running = Self { run, outputs, processes: Vec::new() };
        running.add(command);
        running
    }

    /// Starts one more process of the run.
    pub(crate) fn add(&mut self, mut command: Command) {
        let output = self.outputs.path().join(format!("{}.output", self.processes.len()));
        command.stdout(File::create(&output).expect("creates"));
        command.stderr(File::create(output.with_extension("errors")).expect("creates"));
        self.processes.push((command.spawn().expect("the program starts"), output));
    }

    /// Starts one more process, which joins the run.
    pub(crate) fn join(&mut self, place: &Place) {
        self.add(place.command(&format!("join {}", self.run.display())));
    }

    /// The first process, as a rule the launcher.
    pub(crate) fn launcher(&mut self) -> &mut Child {
        &mut self.processes[0].0
    }

    /// The process with this number in the order of their start.
    pub(crate) fn process(&mut self, number: usize) -> &mut Child {
        &mut self.processes[number].0
    }

    /// The processes that the launcher has started as ranks and that live, in order.
    pub(crate) fn ranks(&self) -> Vec<u32> {
        ranks_of(&self.processes[0].0)
    }

    /// Sends a signal, as `-INT`, to the launcher.
    pub(crate) fn signal(&self, name: &str) {
        signal(name, self.processes[0].0.id());
    }

    /// The lines of metrics.
    pub(crate) fn lines(&self) -> Vec<Line> {
        results::lines(&self.run)
    }

    /// The last step of the metrics.
    pub(crate) fn step(&self) -> u64 {
        results::step(&self.run)
    }

    /// The state that the run has written last.
    pub(crate) fn state(&self) -> Option<RunState> {
        RunState::read(&self.run.join("state.json")).ok()
    }

    /// Returns true if the run's state has this activity.
    pub(crate) fn is(&self, doing: RunActivity) -> bool {
        self.state().is_some_and(|state| state.doing == doing)
    }

    /// The number of ranks that train, by the run's state.
    pub(crate) fn size(&self) -> usize {
        self.state().map_or(0, |state| state.world_size)
    }

    /// The steps of the checkpoints.
    pub(crate) fn saved(&self) -> Vec<u64> {
        results::saved(&self.run)
    }

    /// Waits until the metrics have reached a step.
    pub(crate) fn wait_for_step(&mut self, step: u64) {
        self.wait_for(&format!("step {step}"), |run| run.step() >= step);
    }

    /// Waits until something holds while the first process runs.
    pub(crate) fn wait_for(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let run = self.run.clone();
        let report = || results::logs(&run);
        wait_until(what, report, || {
            if holds(self) {
                return true;
            }
            let status = self.processes[0].0.try_wait().expect("a child of this process");
            // A run that ends between the two looks may have reached it all the same.
            let holds = status.is_some() && holds(self);
            if let Some(status) = status.filter(|_| !holds) {
                let output = printed(&self.processes[0].1);
                panic!("the run ended before {what}: {status:?}\n{output}{}", report());
            }
            holds
        });
    }

    /// Waits for the end of all processes, in the order of their start.
    pub(crate) fn end_all(mut self) -> Vec<End> {
        let end = |(process, output): (Child, PathBuf)| {
            let ended = ended(process, PATIENCE);
            End {
                code: ended.status.code(),
                stdout: read(&output),
                stderr: read(&output.with_extension("errors")),
            }
        };
        std::mem::take(&mut self.processes).into_iter().map(end).collect()
    }

    /// Waits for the end. Processes that have joined must succeed. Returns that of the first.
    pub(crate) fn end(self) -> End {
        let run = self.run.clone();
        let mut ends = self.end_all();
        for joined in &ends[1..] {
            assert_eq!(joined.code, Some(0), "{}\n{}", joined.stderr, results::logs(&run));
        }
        ends.swap_remove(0)
    }

    /// Waits for the end, which must be a success. Returns the run's summary.
    pub(crate) fn succeed(self) -> Summary {
        let run = self.run.clone();
        let end = self.end();
        assert_eq!(end.code, Some(0), "{}\n{}", end.both(), results::logs(&run));
        results::summary(&run)
    }

    /// Waits for the end, which must be a failure. Returns the standard error.
    pub(crate) fn fail(self) -> String {
        let end = self.end();
        assert_ne!(end.code, Some(0), "{}", end.both());
        end.stderr
    }
}

impl End {
    /// The standard output and standard error.
    pub(crate) fn both(&self) -> String {
        format!("{}\n{}", self.stdout, self.stderr)
    }
}

fn read(path: &Path) -> String {
    String::from_utf8_lossy(&fs::read(path).expect("reads")).into_owned()
}

fn printed(output: &Path) -> String {
    format!("{}\n{}\n", read(output), read(&output.with_extension("errors")))
}

//! Writes checkpoints on background threads while training continues.
//!
//! All ranks start to save after the same step. Rank 0 creates a hidden folder, and each rank copies its part and writes it there on a
//! thread. A rank that has written notifies rank 0 over the control plane ([`Saver::poll`]). When all have, a thread of rank 0 adds the
//! index and renames the folder into place. A rank that cannot write stops all ranks. The end of the run, and the next checkpoint, wait
//! until the checkpoint is complete ([`Saver::settle`]); there all ranks learn of errors.

use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};

use crate::engine::distributed::{Distributed, StopReason};
use crate::engine::error::TrainError;
use phalanx_checkpoint::{Checkpoint, CheckpointError, NewFile, Retention, StagingFolder};
use phalanx_config::Config;
use phalanx_run::RunFolder;

/// The notice that a rank has written its part. It carries the ticket of the folder.
const WRITTEN: &str = "checkpoint written";

/// A checkpoint that is complete.
pub(in crate::engine) struct Saved {
    pub(in crate::engine) step: u64,
    pub(in crate::engine) path: PathBuf,
    /// The time that it paused training.
    pub(in crate::engine) stalled: Duration,
}

/// Writes checkpoints, one at a time.
pub(in crate::engine) struct Saver {
    checkpoints: PathBuf,
    retention: Retention,
    asynchronous: bool,
    pending: Option<Pending>,
    /// The folder of a checkpoint that is given up.
    interrupted: Option<StagingFolder>,
    /// The time that all checkpoints have paused training.
    stalled: Duration,
}

/// A checkpoint that is not complete.
struct Pending {
    staging: StagingFolder,
    /// The entries of the index, on rank 0.
    state: Map<String, Value>,
    stage: Stage,
    stalled: Duration,
    /// True if this rank has notified rank 0.
    notified: bool,
    /// The number of ranks that have written, on rank 0.
    written: usize,
    /// True if the checkpoint was returned as complete.
    reported: bool,
}

/// The progress of this rank.
enum Stage {
    Writing(Work<()>),
    Written,
    Completing(Work<Checkpoint>),
    Complete(Checkpoint),
    Failed(CheckpointError),
}

/// Work on a thread.
type Work<T> = JoinHandle<Result<T, CheckpointError>>;

impl Saver {
    /// Creates the saver of a run.
    pub(in crate::engine) fn new(folder: &RunFolder, config: &Config) -> Self {
        Self {
            checkpoints: folder.checkpoints(),
            retention: config.checkpoint.keep.into(),
            asynchronous: config.checkpoint.asynchronous,
            pending: None,
            interrupted: None,
            stalled: Duration::ZERO,
        }
    }

    /// Sets the rule for old checkpoints, which counts when the next checkpoint is complete.
    pub(in crate::engine) fn set_retention(&mut self, retention: Retention) {
        self.retention = retention;
    }

    /// The time that checkpoints have paused training.
    pub(in crate::engine) fn stalled(&self) -> Duration {
        self.stalled
    }

    /// Starts to save after `step`, if it is `wanted` on rank 0. `parts` copies this rank's files and the entries of the index. A
    /// synchronous checkpoint is complete on return. Returns the checkpoints that have become complete, on rank 0. All ranks call this
    /// together.
    pub(in crate::engine) fn begin(
        &mut self,
        distributed: &Distributed,
        step: u64,
        wanted: bool,
        parts: impl FnOnce() -> Result<(Vec<NewFile>, Map<String, Value>), TrainError>,
    ) -> Result<Vec<Saved>, TrainError> {
        let begun = Instant::now();
        let mut complete = Vec::from_iter(self.settle(distributed)?);
        if let Some((staging, failed)) = self.agree(distributed, step, wanted)? {
            // Gathering parameters needs all ranks, also one that cannot write.
            let (files, state) = parts()?;
            let stage = match failed {
                None => self.write(staging.clone(), distributed.rank(), files),
                Some(error) => Stage::Failed(error),
            };
            let (stalled, notified, written, reported) = (begun.elapsed(), false, 0, false);
            self.pending = Some(Pending { staging, state, stage, stalled, notified, written, reported });
            if !self.asynchronous {
                let saved = self.settle(distributed)?;
                complete.extend(saved.map(|saved| Saved { stalled: begun.elapsed(), ..saved }));
            }
        }
        self.stalled += begun.elapsed();
        Ok(complete)
    }

    /// Creates the folder on rank 0 and opens it on all ranks. Returns it with the error of this rank; `None` if rank 0 does not want the
    /// checkpoint or has a complete one of this step.
    fn agree(
        &self,
        distributed: &Distributed,
        step: u64,
        wanted: bool,
    ) -> Result<Option<(StagingFolder, Option<CheckpointError>)>, TrainError> {
        let first = distributed.rank() == 0;
        // Microseconds since 1970 fit into the 53 bits that a sum of f64 keeps.
        let ticket = || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
            (now as u64) & ((1 << 53) - 1)
        };
        // The ticket of the folder, and 1 if nothing is to be saved.
        let mut answer = [0.0; 2];
        let mut made = None;
        if first {
            if !wanted || Checkpoint::exists(&self.checkpoints, step) {
                answer[1] = 1.0;
            } else {
                let ticket = ticket();
                answer[0] = ticket as f64;
                made = Some(StagingFolder::create(&self.checkpoints, step, ticket));
            }
        }
        distributed.exchange().sum(&mut answer)?;
        if answer[1] > 0.0 {
            return Ok(None);
        }
        let ticket = answer[0] as u64;
        let staging = match made {
            Some(made) => made,
            None => StagingFolder::join(&self.checkpoints, step, ticket, distributed.rank()),
        };
        Ok(Some(match staging {
            Ok(staging) => (staging, None),
            Err(error) => (StagingFolder::at(&self.checkpoints, step, ticket), Some(error)),
        }))
    }

    /// Writes this rank's files, on a thread if saving is asynchronous.
    fn write(&self, staging: StagingFolder, rank: usize, files: Vec<NewFile>) -> Stage {
        if files.is_empty() || !self.asynchronous {
            return match staging.write(rank, files) {
                Ok(()) => Stage::Written,
                Err(error) => Stage::Failed(error),
            };
        }
        match on_thread(&staging.clone(), move || staging.write(rank, files)) {
            Ok(work) => Stage::Writing(work),
            Err(error) => Stage::Failed(error),
        }
    }

    /// Advances saving between two steps, without waiting: notifies rank 0 when this rank has written, or stops all ranks if it cannot.
    /// Returns the checkpoint on rank 0 once it is complete.
    pub(in crate::engine) fn poll(&mut self, distributed: &Distributed) -> Result<Option<Saved>, TrainError> {
        let Some(pending) = &mut self.pending else { return Ok(None) };
        let (job, first) = (distributed.job(), distributed.rank() == 0);
        pending.advance(false);
        match &pending.stage {
            Stage::Written if !pending.notified => {
                pending.notified = true;
                if first {
                    pending.written += 1;
                } else {
                    job.post(WRITTEN, &pending.staging.ticket().to_le_bytes())?;
                }
            }
            Stage::Failed(_) => job.request_stop(&StopReason::Saving)?,
            Stage::Complete(_) => return Ok(pending.report()),
            _ => {}
        }
        while let Some(notice) = job.poll(WRITTEN)? {
            // Notices of a folder that was given up do not count.
            pending.written += usize::from(notice.payload == pending.staging.ticket().to_le_bytes());
        }
        if first && pending.written == distributed.size() && matches!(pending.stage, Stage::Written) {
            let (staging, ranks) = (pending.staging.clone(), distributed.size());
            let (state, retention) = (std::mem::take(&mut pending.state), self.retention.clone());
            let commit = move || staging.commit(ranks, state, retention);
            pending.stage = match on_thread(&pending.staging, commit) {
                Ok(work) => Stage::Completing(work),
                Err(error) => Stage::Failed(error),
            };
        }
        Ok(None)
    }

    /// Waits until the current checkpoint is complete and returns it on rank 0. All ranks call this together.
    ///
    /// # Errors
    /// On all ranks, if one could not write.
    pub(in crate::engine) fn settle(
        &mut self,
        distributed: &Distributed,
    ) -> Result<Option<Saved>, TrainError> {
        let Some(pending) = &mut self.pending else { return Ok(None) };
        pending.advance(true);
        if any_failed(distributed, pending)? {
            return Err(self.fail(distributed));
        }
        if distributed.rank() == 0 && matches!(pending.stage, Stage::Written) {
            let state = std::mem::take(&mut pending.state);
            let retention = self.retention.clone();
            pending.stage = match pending.staging.commit(distributed.size(), state, retention) {
                Ok(checkpoint) => Stage::Complete(checkpoint),
                Err(error) => Stage::Failed(error),
            };
        }
        if any_failed(distributed, pending)? {
            return Err(self.fail(distributed));
        }
        Ok(self.pending.take().and_then(|mut pending| pending.report()))
    }

    /// Gives up the current checkpoint, whose parts may be missing after a loss. Returns its step if it is not complete, or, on ranks
    /// other than 0, may not be. All ranks that write it call this before any continues.
    pub(in crate::engine) fn interrupt(&mut self) -> Option<u64> {
        let mut pending = self.pending.take()?;
        pending.advance(true);
        match pending.stage {
            Stage::Complete(_) => None,
            // The lost rank 0 has completed it.
            _ if Checkpoint::exists(&self.checkpoints, pending.staging.step()) => None,
            _ => {
                self.interrupted = Some(pending.staging.clone());
                Some(pending.staging.step())
            }
        }
    }

    /// Removes incomplete checkpoints on rank 0, once no rank writes them: that of [`Saver::interrupt`], and those of a lost rank 0.
    pub(in crate::engine) fn clear(&mut self, first: bool) {
        if let Some(staging) = self.interrupted.take().filter(|_| first) {
            staging.abandon();
        }
        if first {
            StagingFolder::clear(&self.checkpoints);
        }
    }

    /// Gives up the checkpoint on all ranks and returns the error.
    fn fail(&mut self, distributed: &Distributed) -> TrainError {
        let Some(mut pending) = self.pending.take() else {
            return TrainError::Setup("a checkpoint failed that was not begun".to_owned());
        };
        pending.advance(true);
        let own = match &pending.stage {
            Stage::Failed(error) => error.to_string(),
            _ => String::new(),
        };
        // No rank writes any more once all are here.
        let all = match distributed.exchange().gather_text(&own) {
            Ok(all) => all,
            Err(error) => return error,
        };
        if distributed.rank() == 0 {
            pending.staging.abandon();
        }
        if let Stage::Failed(error) = pending.stage {
            return error.into();
        }
        let first = all.into_iter().enumerate().find(|(_, problem)| !problem.is_empty());
        let (rank, problem) = first.unwrap_or_default();
        CheckpointError::Elsewhere { rank, problem }.into()
    }
}

impl Pending {
    /// Returns the checkpoint the first time after it has become complete.
    fn report(&mut self) -> Option<Saved> {
        let Stage::Complete(checkpoint) = &self.stage else { return None };
        let was_reported = std::mem::replace(&mut self.reported, true);
        let (step, path) = (checkpoint.step(), checkpoint.folder().to_owned());
        (!was_reported).then_some(Saved { step, path, stalled: self.stalled })
    }

    /// Takes the result of the thread, if it has ended or `wait` is set.
    fn advance(&mut self, wait: bool) {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Written) {
            Stage::Writing(work) if wait || work.is_finished() => match join(&self.staging, work) {
                Ok(()) => Stage::Written,
                Err(error) => Stage::Failed(error),
            },
            Stage::Completing(work) if wait || work.is_finished() => match join(&self.staging, work) {
                Ok(checkpoint) => Stage::Complete(checkpoint),
                Err(error) => Stage::Failed(error),
            },
            stage => stage,
        };
    }
}

/// True if any rank has failed. All ranks call this together.
fn any_failed(distributed: &Distributed, pending: &Pending) -> Result<bool, TrainError> {
    Ok(distributed.exchange().sum_of(f64::from(u8::from(matches!(pending.stage, Stage::Failed(_)))))? > 0.0)
}

fn on_thread<T: Send + 'static>(
    staging: &StagingFolder,
    work: impl FnOnce() -> Result<T, CheckpointError> + Send + 'static,
) -> Result<Work<T>, CheckpointError> {
    let thread = std::thread::Builder::new().name("phalanx-checkpoint".to_owned());
    let span = tracing::trace_span!(target: "phalanx_trace::saving", "write a checkpoint");
    thread.spawn(move || span.in_scope(work)).map_err(|source| staging.failed("start a thread for", source))
}

fn join<T>(staging: &StagingFolder, work: Work<T>) -> Result<T, CheckpointError> {
    // The panic hook has reported it, and ends the process under a supervisor.
    let panicked = |_| staging.failed("write", std::io::Error::other("the writing thread panicked"));
    work.join().map_err(panicked)?
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use candle_core::{Device, Tensor};
    use phalanx_collectives::threads;

    use super::*;
    use phalanx_checkpoint::NewPiece;

    /// A rank's file of a tensor `w` with two elements for each rank.
    fn files(name: String, rank: usize, ranks: usize) -> Vec<NewFile> {
        let values = Tensor::new(&[rank as f32, 0.5], &Device::Cpu).expect("a tensor");
        let (kind, shape, key) = ("model".to_owned(), vec![2 * ranks], "model.w".to_owned());
        let region = (2 * rank..2 * rank + 2).into();
        let piece = NewPiece { kind, name: "w".to_owned(), shape, region, key, values };
        vec![NewFile { name, pieces: vec![piece] }]
    }

    /// Runs `work` as each of three ranks, with a saver into the folder that `at` names for the rank.
    fn on_ranks<R: Send + 'static>(
        at: impl Fn(usize) -> PathBuf,
        asynchronous: bool,
        work: impl Fn(&Distributed, &mut Saver) -> R + Copy + Send + 'static,
    ) -> Vec<R> {
        let run = |(rank, communicator)| {
            let (checkpoints, stalled) = (at(rank), Duration::ZERO);
            std::thread::spawn(move || {
                let retention = Retention::from(2);
                let mut saver =
                    Saver { checkpoints, retention, asynchronous, pending: None, interrupted: None, stalled };
                let distributed = Distributed::among(communicator).expect("threads have a control plane");
                work(&distributed, &mut saver)
            })
        };
        let running: Vec<_> = threads(3).expect("threads").into_iter().enumerate().map(run).collect();
        running.into_iter().map(|rank| rank.join().expect("no panic")).collect()
    }

    fn entries(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).expect("lists").filter_map(Result::ok);
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_checkpoint_becomes_complete_while_steps_go_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_owned();
        let done = on_ranks(
            |_| path.clone(),
            true,
            |distributed, saver| {
                let parts = || {
                    let name = format!("rank-{}.safetensors", distributed.rank());
                    Ok((
                        files(name, distributed.rank(), 3),
                        Map::from_iter([("epoch".to_owned(), Value::from(1))]),
                    ))
                };
                assert!(
                    saver.begin(distributed, 5, true, parts).expect("begins").is_empty(),
                    "nothing is complete yet"
                );
                // Steps, at whose end ranks meet; all leave after the one in which rank 0 gets the report.
                for _ in 0..1_000_000 {
                    let saved = saver.poll(distributed).expect("writes").map(|saved| saved.step);
                    let reported = f64::from(u8::from(saved.is_some()));
                    if distributed.exchange().sum_of(reported).expect("all are here") > 0.0 {
                        // It was reported, and is not reported again.
                        assert!(saver.settle(distributed).expect("complete").is_none());
                        return saved;
                    }
                }
                panic!("never complete")
            },
        );
        assert_eq!(done, [Some(5), None, None]);
        assert_eq!(entries(folder.path()), ["latest", "step-00000005"]);
        let checkpoint = Checkpoint::open(&folder.path().join("step-00000005")).expect("complete");
        assert_eq!(checkpoint.state()["epoch"], Value::from(1));
        let whole = checkpoint.reader().read("model", "w").map(|whole| whole.to_vec1::<f32>().expect("f32"));
        assert_eq!(whole.expect("reads"), [0.0, 0.5, 1.0, 0.5, 2.0, 0.5]);
        // The same step again: there is one, and nothing is written.
        let again = on_ranks(
            |_| path.clone(),
            true,
            |distributed, saver| {
                let parts = || Err(TrainError::Setup("no parts are needed".to_owned()));
                saver.begin(distributed, 5, true, parts).expect("nothing to do").len()
                    + usize::from(saver.pending.is_some())
            },
        );
        assert_eq!(again, [0, 0, 0]);
    }

    #[test]
    fn the_next_checkpoint_waits_for_the_one_before() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_owned();
        let done = on_ranks(
            |_| path.clone(),
            true,
            |distributed, saver| {
                let mut complete = Vec::new();
                for step in 1..=4 {
                    let name = format!("rank-{}.safetensors", distributed.rank());
                    let parts = || Ok((files(name, distributed.rank(), 3), Map::new()));
                    complete.extend(saver.begin(distributed, step, true, parts).expect("begins"));
                }
                complete.extend(saver.settle(distributed).expect("writes"));
                complete.iter().map(|saved| saved.step).collect::<Vec<_>>()
            },
        );
        assert_eq!(done, [vec![1, 2, 3, 4], vec![], vec![]]);
        assert_eq!(entries(folder.path()), ["latest", "step-00000003", "step-00000004"]);
    }

    #[test]
    fn only_checkpoints_that_rank_0_wants_are_saved() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().to_owned();
        let begun = on_ranks(
            |_| path.clone(),
            true,
            |distributed, saver| {
                let parts = || Err(TrainError::Setup("no parts are needed".to_owned()));
                // The others do not know yet.
                let wanted = distributed.rank() > 0;
                saver.begin(distributed, 1, wanted, parts).expect("nothing to do").len()
                    + usize::from(saver.pending.is_some())
            },
        );
        assert_eq!(begun, [0, 0, 0]);
        assert!(entries(folder.path()).is_empty());
    }

    #[test]
    fn a_rank_that_cannot_write_is_named_on_all_ranks() {
        for asynchronous in [true, false] {
            for waits in [true, false] {
                let folder = tempfile::tempdir().expect("a folder");
                let path = folder.path().to_owned();
                let said = on_ranks(
                    |_| path.clone(),
                    asynchronous,
                    move |distributed, saver| {
                        let begin = |saver: &mut Saver, step: u64, name: String| {
                            saver.begin(distributed, step, true, || {
                                Ok((files(name, distributed.rank(), 3), Map::new()))
                            })
                        };
                        begin(saver, 1, format!("rank-{}.safetensors", distributed.rank())).expect("writes");
                        // Rank 1 writes into a folder that is not there.
                        let name = if distributed.rank() == 1 {
                            "no/where.safetensors".to_owned()
                        } else {
                            "a".to_owned()
                        };
                        let begun = begin(saver, 2, format!("{}{name}", ["", "", "b"][distributed.rank()]));
                        let failed = match (begun, waits) {
                            (Err(error), _) => error,
                            (Ok(_), true) => {
                                saver.settle(distributed).map(drop).expect_err("rank 1 cannot write")
                            }
                            (Ok(_), false) => {
                                let mut point = 0;
                                while distributed.job().begin(point).expect("goes on").is_none() {
                                    saver.poll(distributed).expect("says it by stopping all");
                                    distributed.exchange().sum_of(0.0).expect("all are here");
                                    point += 1;
                                }
                                saver.settle(distributed).map(drop).expect_err("rank 1 cannot write")
                            }
                        };
                        (failed.to_string(), failed.is_consequence())
                    },
                );
                let own = "checkpoint of step 2: cannot write ";
                for (rank, (message, consequence)) in said.iter().enumerate() {
                    assert!(
                        message.contains(own) && message.contains("no/where.safetensors: No such"),
                        "{message}"
                    );
                    assert_eq!(message.starts_with("rank 1: "), rank != 1, "{message}");
                    assert_eq!(*consequence, rank != 1);
                }
                assert_eq!(entries(folder.path()), ["latest", "step-00000001"]);
            }
        }
    }

    #[test]
    fn a_folder_that_is_not_shared_is_reported() {
        let (shared, other) =
            (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let (here, there) = (shared.path().to_owned(), other.path().to_owned());
        let at = |rank| if rank == 2 { there.clone() } else { here.clone() };
        let said = on_ranks(at, false, |distributed, saver| {
            let parts =
                || Ok((files(format!("rank-{}", distributed.rank()), distributed.rank(), 3), Map::new()));
            saver
                .begin(distributed, 1, true, parts)
                .map(drop)
                .expect_err("rank 2 sees another folder")
                .to_string()
        });
        for message in said {
            assert!(message.contains("rank 2 does not see ") && message.contains("must share"), "{message}");
        }
        assert!(entries(shared.path()).is_empty() && entries(other.path()).is_empty());
    }
}

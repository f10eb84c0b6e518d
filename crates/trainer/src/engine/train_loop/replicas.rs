//! All ranks of a run as threads of this process.

use std::panic::{AssertUnwindSafe, catch_unwind};

use phalanx_collectives::{CommError, Communicator, threads, threads_over};

use super::train::train;
use crate::engine::distributed::World;
use crate::engine::error::TrainError;
use crate::engine::observer::{NoopObserver, Observer};
use crate::engine::training::Task;
use phalanx_config::Resolved;
use phalanx_run::RunFolder;
use phalanx_run::{REPLICA_THREAD, StopFlag};

/// The failure that ended the replicas of a run: that of the lowest rank that failed by itself.
#[derive(Debug, thiserror::Error)]
#[error("rank {rank} failed: {error}")]
pub struct ReplicaFailure {
    /// The rank.
    pub rank: usize,
    /// The failure.
    #[source]
    pub error: Box<TrainError>,
}

/// Trains with all `train.ranks` ranks and servers as threads of this process, under any strategy. Rank 0, which `observer` observes,
/// runs on this thread. Otherwise as [`train`].
///
/// A rank that fails or panics ends the others.
///
/// # Errors
/// [`ReplicaFailure`].
pub fn train_replicas(
    task: &Task,
    folder: &RunFolder,
    resolved: &Resolved,
    stop: &StopFlag,
    observer: Box<dyn Observer>,
) -> Result<(), ReplicaFailure> {
    let one = |comm: Communicator, observer| {
        train(task, folder, resolved, &World::thread(comm), stop, observer).map(drop)
    };
    let ranks = resolved.config.world_size();
    let failed = |error: CommError| ReplicaFailure { rank: 0, error: Box::new(error.into()) };
    let comms = match resolved.config.comm.simulated().map_err(failed)? {
        None => threads(ranks),
        Some(link) => threads_over(ranks, link),
    };
    together(comms.map_err(failed)?, |comm| one(comm, observer), |comm| one(comm, Box::new(NoopObserver)))
}

/// Runs `first` as rank 0 on this thread and `other` as each other rank on its own thread. Waits for all.
fn together(
    comms: Vec<Communicator>,
    first: impl FnOnce(Communicator) -> Result<(), TrainError>,
    other: impl Fn(Communicator) -> Result<(), TrainError> + Sync,
) -> Result<(), ReplicaFailure> {
    let failed = |rank, error: TrainError| ReplicaFailure { rank, error: Box::new(error) };
    let outcomes = std::thread::scope(|scope| {
        let mut comms = comms.into_iter();
        let own = comms.next();
        let mut running = Vec::new();
        for comm in comms {
            let (rank, giving_up, other) = (comm.rank(), comm.clone(), &other);
            let thread = std::thread::Builder::new().name(format!("{REPLICA_THREAD}{rank}"));
            let thread = thread.spawn_scoped(scope, move || caught(comm, other)).map_err(|error| {
                let error = TrainError::Setup(format!("cannot start a thread: {error}"));
                giving_up.abort(&error.to_string());
                error
            });
            running.push((rank, thread));
        }
        let own = own.map(|comm| (0, caught(comm, first)));
        let others = running.into_iter().map(|(rank, thread)| {
            let outcome = thread
                .and_then(|thread| thread.join().unwrap_or_else(|panic| Err(TrainError::panicked(&*panic))));
            (rank, outcome)
        });
        own.into_iter().chain(others).collect::<Vec<_>>()
    });
    let mut failures = outcomes.into_iter().filter_map(|(rank, outcome)| Some(failed(rank, outcome.err()?)));
    let Some(mut reported) = failures.next() else { return Ok(()) };
    for failure in failures {
        if reported.error.is_consequence() && !failure.error.is_consequence() {
            reported = failure;
        }
    }
    Err(reported)
}

/// Runs a rank. A panic becomes its error and aborts the others.
fn caught(
    comm: Communicator,
    work: impl FnOnce(Communicator) -> Result<(), TrainError>,
) -> Result<(), TrainError> {
    let giving_up = comm.clone();
    // State that a panic leaves half done is not used again: the whole run ends.
    catch_unwind(AssertUnwindSafe(|| work(comm))).unwrap_or_else(|panic| {
        let error = TrainError::panicked(&*panic);
        giving_up.abort(&error.to_string());
        Err(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failure_of_one_rank_ends_all() {
        let wait = |comm: Communicator| Ok(comm.barrier("never all here")?);
        assert!(together(threads(3).expect("threads"), wait, wait).is_ok());
        for culprit in 0..3 {
            let panics = |comm: Communicator| {
                assert!(comm.rank() != culprit, "the batch is gone");
                wait(comm)
            };
            let failure =
                together(threads(3).expect("threads"), panics, panics).expect_err("a rank has panicked");
            let reported = failure.to_string();
            assert!(
                reported.starts_with(&format!("rank {culprit} failed: panicked: the batch is gone")),
                "{reported}"
            );
            let fails = |comm: Communicator| match comm.rank() == culprit {
                true => {
                    comm.abort("no such image");
                    Err(TrainError::Setup("no such image".to_owned()))
                }
                false => wait(comm),
            };
            let failure =
                together(threads(3).expect("threads"), fails, fails).expect_err("a rank has failed");
            assert_eq!(failure.to_string(), format!("rank {culprit} failed: no such image"));
        }
    }
}

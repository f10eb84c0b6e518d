//! Communicators of some of a communicator's ranks.

use std::sync::atomic::Ordering;

use super::{AlgorithmChoice, Communicator};
#[cfg(feature = "nccl")]
use crate::engine::Backend;
use crate::engine::ExitActions;
use crate::error::{CommError, Result};
use crate::operation::Algorithm;

impl Communicator {
    /// Returns a communicator of the ranks with the same colour, ordered by key and then by rank. Every rank calls this at the same
    /// place. A rank without a colour gets none.
    ///
    /// Parts have their own links and communication thread, so operations on different parts do not wait for each other. A failure
    /// in one breaks the world. Errors name ranks by their numbers in the world.
    /// A rank leaves the world when it has dropped the world's communicator and all parts of it.
    ///
    /// # Errors
    /// The error of the world.
    pub fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Self>> {
        let own = [colour.map_or(-1, i64::from), key];
        let all = self.all_gather(&own)?;
        let of_rank = |rank: usize| (all[2 * rank], all[2 * rank + 1]);
        // Each rank without a colour forms a group of its own.
        let mut ranks: Vec<usize> = (0..self.world_size()).collect();
        ranks.sort_by_key(|rank| (of_rank(*rank), *rank));
        let groups: Vec<Vec<usize>> = ranks
            .chunk_by(|a, b| of_rank(*a).0 == of_rank(*b).0 && of_rank(*a).0 >= 0)
            .map(<[usize]>::to_vec)
            .collect();
        let number = self.inner.splits.fetch_add(1, Ordering::Relaxed);
        let engine = self.inline(|engine, _| engine.split(&groups, number))?;
        if colour.is_none() {
            return Ok(None);
        }
        let own = groups.iter().find(|group| group.contains(&self.rank()));
        let host = self.hosts()[self.rank()];
        let before = |rank: &&usize| self.hosts()[**rank] == host && **rank != self.rank();
        let local = own
            .map_or(0, |group| group.iter().take_while(|rank| **rank != self.rank()).filter(before).count());
        let ending = self.outlives(engine.ending());
        let prefer = match self.choice {
            AlgorithmChoice::Prefer(algorithm) => algorithm,
            AlgorithmChoice::Only(_) => Algorithm::Auto,
        };
        let part = Self::start(engine, local, prefer, ending);
        Ok(Some(part.map_err(|error| CommError::Buffer(format!("cannot start a thread: {error}")))?))
    }

    /// Returns the exit actions of a part of this communicator. The part keeps this one open.
    pub(crate) fn outlives(&self, ending: ExitActions) -> ExitActions {
        ExitActions { _whole: Some(self.inner.clone()), ..ending }
    }
}

#[cfg(feature = "nccl")]
impl Communicator {
    /// Runs a function with this crate's own engine, after the operations issued before.
    pub(crate) fn with_backend<R>(
        &self,
        operation: &'static str,
        run: impl FnOnce(&mut Backend) -> Result<R>,
    ) -> Result<R> {
        self.inline(|engine, _| match engine.backend() {
            Some(backend) => run(backend),
            None => {
                let problem = "this communicator does not stand on one of this crate's own".to_owned();
                Err(CommError::Argument { operation, problem })
            }
        })
    }

    /// Returns this crate's own engine among the same ranks, with its own links. Every rank calls this right after a collective
    /// operation, so that all are at the same one.
    pub(crate) fn backend_twin(&self, operation: &'static str) -> Result<Backend> {
        let number = self.inner.splits.fetch_add(1, Ordering::Relaxed);
        let all = [(0..self.world_size()).collect()];
        self.with_backend(operation, |backend| backend.part(&all, number))
    }
}

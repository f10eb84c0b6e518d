//! Making communicators: of threads, and of some of a communicator's ranks.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Communicator, Ending, Wish};
use crate::algorithms::Algorithm;
use crate::engine::{Native, Shared};
use crate::error::{CommError, Result};
use crate::failure::Cause;
use crate::transport::local;
use crate::world::{Control, DEFAULT_OP_TIMEOUT, Nursery, Origin, Watched};

impl Ending {
    /// That of rank `rank` of the world.
    pub(crate) fn of_world(control: &Arc<Control>, rank: usize) -> Self {
        let leaving = control.clone();
        Self { leave: Some(Box::new(move || leaving.leave())), ..Self::of_part(control, rank) }
    }

    fn of_part(control: &Arc<Control>, rank: usize) -> Self {
        let control = control.clone();
        let abort = move |reason: &str| control.report(rank, Cause::Aborted(rank, reason.to_owned()));
        Self { abort: Box::new(abort), leave: None }
    }
}

impl Communicator {
    /// A communicator for the ranks that give the same colour, numbered by key and, among equal keys, by rank. Every rank
    /// calls this at the same place; one that gives no colour gets none.
    ///
    /// Parts have links and a communication thread of their own, so that operations on different parts need not wait for
    /// each other. A failure in one is a failure of the world, whose numbers errors name ranks by.
    ///
    /// # Errors
    /// That of the world.
    pub fn split(&self, colour: Option<u32>, key: i64) -> Result<Option<Self>> {
        let own = [colour.map_or(-1, i64::from), key];
        let all = self.all_gather(&own)?;
        let of_rank = |rank: usize| (all[2 * rank], all[2 * rank + 1]);
        // Ranks without a colour are left over, each by itself, so that every rank has a group.
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
        let ending = engine.ending();
        let prefer = match self.wish {
            Wish::Prefer(algorithm) => algorithm,
            Wish::Only(_) => Algorithm::Auto,
        };
        let part = Self::start(engine, local, prefer, ending);
        Ok(Some(part.map_err(|error| CommError::Buffer(format!("cannot start a thread: {error}")))?))
    }
}

#[cfg(feature = "nccl")]
impl Communicator {
    /// Runs something with this crate's own engine, after what was issued before.
    pub(crate) fn with_native<R>(
        &self,
        operation: &'static str,
        run: impl FnOnce(&mut Native) -> Result<R>,
    ) -> Result<R> {
        self.inline(|engine, _| match engine.native() {
            Some(native) => run(native),
            None => {
                let problem = "this communicator does not stand on one of this crate's own".to_owned();
                Err(CommError::Argument { operation, problem })
            }
        })
    }

    /// This crate's own engine among the same ranks, with links of its own. Every rank calls this right after a collective
    /// operation, so that all are at the same one.
    pub(crate) fn native_twin(&self, operation: &'static str) -> Result<Native> {
        let number = self.inner.splits.fetch_add(1, Ordering::Relaxed);
        let all = [(0..self.world_size()).collect()];
        self.with_native(operation, |native| crate::world::split(native, &all, number))
    }
}

impl Native {
    /// How a communicator of some of the ranks gives up.
    pub(crate) fn ending_of_part(&self) -> Ending {
        Ending::of_part(&self.shared.control, self.members[self.rank])
    }
}

/// The communicators of a world of threads in this process, rank 0 first. Each may be moved to a thread of its
/// own.
///
/// # Errors
/// If the system refuses threads.
pub fn threads(world_size: usize) -> Result<Vec<Communicator>> {
    let watched: Vec<Watched> = (0..world_size).map(|_| Watched::default()).collect();
    let failures: Vec<_> = watched.iter().map(|rank| rank.failure.clone()).collect();
    let timeout = DEFAULT_OP_TIMEOUT;
    let control = Arc::new(Control::local(watched.clone()));
    let links = local::world(&failures, timeout);
    let memories = crate::shared::of_threads(world_size);
    let nursery = Arc::new(Nursery { failures, timeout, new: std::sync::Mutex::default() });
    links
        .into_iter()
        .zip(memories)
        .zip(watched)
        .enumerate()
        .map(|(rank, ((links, memory), Watched { failure, recorder }))| {
            let (control, origin) = (control.clone(), Origin::Threads(nursery.clone()));
            let ending = Ending::of_world(&control, rank);
            let shared = Shared { failure, control, recorder, timeout, origin, dump: None };
            let mut native = Native::new(rank, 0, (0..world_size).collect(), links, shared);
            native.hosts.fill(0);
            native.host_memory = memory;
            Communicator::start(Box::new(native), rank, Algorithm::Auto, ending)
                .map_err(|error| CommError::Buffer(format!("cannot start a thread: {error}")))
        })
        .collect()
}

//! Virtual ranks of one rank that take turns: each has its own thread, and one thread runs at a time.
//!
//! A shard runs until it needs values of other shards, such as the statistics of a synchronised batch norm. It stores
//! its part and the next shard runs. When all parts are stored, the first shard continues with the result. Independent
//! shards run one after the other. The order is the same in every run.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::parallel::ParallelStrategy;
use crate::{Result, ShardingError};

/// The stack size of a shard's thread, equal to that of a main thread.
const STACK: usize = 8 << 20;

/// A meeting of a rank's shards: the values given so far, or its result.
#[derive(Debug)]
enum Meeting {
    /// The values so far, by shard.
    Open(BTreeMap<usize, Vec<f64>>),
    /// The result, and the number of shards that have not read it yet.
    Joined(Arc<Vec<f64>>, usize),
}

#[derive(Debug, Default)]
struct State {
    /// The shard that has its turn, among the rank's shards.
    turn: usize,
    /// True for each shard of the rank that has finished.
    finished: Vec<bool>,
    /// The first shard that failed. The others then end.
    failed: Option<usize>,
    /// The number of consecutive turns without progress.
    idle: usize,
    /// The meetings under way, by group and number of the meeting.
    meetings: BTreeMap<(usize, u64), Meeting>,
}

/// The shards of one rank, of which one runs at a time.
#[derive(Debug)]
pub struct VirtualRankTurns {
    own: Range<usize>,
    /// Each strategy is notified of every turn, so that it keeps the gradients of shards apart.
    strategies: Vec<Arc<dyn ParallelStrategy>>,
    state: Mutex<State>,
    changed: Condvar,
}

impl VirtualRankTurns {
    /// Creates the turns of the shards `own` for one step under `strategies`.
    pub fn new(own: Range<usize>, strategies: Vec<Arc<dyn ParallelStrategy>>) -> Arc<Self> {
        let state = State { finished: vec![false; own.len()], ..State::default() };
        Arc::new(Self { own, strategies, state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Returns the rank's shards.
    pub fn own(&self) -> Range<usize> {
        self.own.clone()
    }

    /// Runs `work` for each of the rank's shards, one at a time, and returns the results in order. Of several errors the first counts.
    ///
    /// # Errors
    /// Errors of `work` and of the strategies, and if the system refuses a thread.
    ///
    /// # Panics
    /// If `work` does.
    pub fn run<R: Send, E: From<ShardingError> + Send>(
        &self,
        work: impl Fn(usize) -> Result<R, E> + Sync,
    ) -> Result<Vec<R>, E> {
        if self.own.len() == 1 {
            self.take_up(0)?;
            return Ok(vec![work(self.own.start)?]);
        }
        let span = tracing::Span::current();
        let (work, span) = (&work, &span);
        std::thread::scope(|scope| {
            let mut threads = Vec::with_capacity(self.own.len());
            for (at, shard) in self.own().enumerate() {
                let run = move || {
                    let _inside = span.enter();
                    let mut leaving = FinishGuard { turns: self, at, well: false };
                    let result = self.wait(at, |_| Some(())).map_err(E::from).and_then(|()| work(shard));
                    leaving.well = result.is_ok();
                    result
                };
                let builder = std::thread::Builder::new().name(format!("shard-{shard}")).stack_size(STACK);
                match builder.spawn_scoped(scope, run) {
                    Ok(thread) => threads.push(thread),
                    Err(_) => {
                        drop(FinishGuard { turns: self, at, well: false });
                        return Err(
                            ShardingError::Step("the system refuses a thread for a logical rank").into()
                        );
                    }
                }
            }
            let joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            let mut results: Vec<_> = joined
                .map(|joined| joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect();
            let failed = self.state().failed.filter(|failed| results[*failed].is_err());
            match failed {
                Some(failed) => results.swap_remove(failed).map(|_| Vec::new()),
                None => results.into_iter().collect(),
            }
        })
    }

    /// Tells the strategies whether more micro-batches of a shard follow the next one.
    ///
    /// # Errors
    /// Errors of the strategies.
    pub fn micro_batch(&self, shard: usize, more: bool) -> Result<()> {
        let at = shard - self.own.start;
        self.strategies.iter().try_for_each(|strategy| strategy.virtual_rank_turn(at, Some(more)))
    }

    /// Gives `part` of shard `shard` to meeting `number` of `group`, waits for the parts of the rank's other `members`, and
    /// returns the result of `join`. One shard calls `join` for all, with the parts in order of shards.
    pub(super) fn meet(
        &self,
        (group, number): (usize, u64),
        (shard, members): (usize, Range<usize>),
        part: Vec<f64>,
        join: impl FnOnce(Vec<Vec<f64>>) -> Result<Vec<f64>>,
    ) -> Result<Arc<Vec<f64>>> {
        if members.len() == 1 {
            return Ok(Arc::new(join(vec![part])?));
        }
        let (at, key) = (shard - self.own.start, (group, number));
        let mut state = self.state();
        let open = state.meetings.entry(key).or_insert_with(|| Meeting::Open(BTreeMap::new()));
        let Meeting::Open(parts) = open else {
            return Err(ShardingError::Step("logical ranks do not meet at the same places"));
        };
        parts.insert(shard, part);
        if parts.len() == members.len() {
            let parts = std::mem::take(parts).into_values().collect();
            // No other shard of this rank runs at this time.
            drop(state);
            let result = Arc::new(join(parts)?);
            self.state().meetings.insert(key, Meeting::Joined(result.clone(), members.len() - 1));
            self.pass_on(at, Some(members.start - self.own.start));
            // The other shards continue first, in order.
            self.wait(at, |_| Some(()))?;
            return Ok(result);
        }
        drop(state);
        self.pass_on(at, None);
        self.wait(at, |state| match state.meetings.get_mut(&key) {
            Some(Meeting::Joined(result, left)) => {
                let result = result.clone();
                *left -= 1;
                if *left == 0 {
                    state.meetings.remove(&key);
                }
                Some(result)
            }
            _ => None,
        })
    }

    /// Waits for a shard's turn and condition while the other shards run.
    fn wait<R>(&self, at: usize, mut ready: impl FnMut(&mut State) -> Option<R>) -> Result<R> {
        let mut state = self.state();
        loop {
            if state.failed.is_some() {
                return Err(ShardingError::Step("another logical rank of this rank has failed"));
            }
            if state.turn == at {
                if let Some(result) = ready(&mut state) {
                    state.idle = 0;
                    drop(state);
                    self.take_up(at)?;
                    return Ok(result);
                }
                state.idle += 1;
                if state.idle > self.own.len() {
                    return Err(ShardingError::Step("logical ranks wait for each other at different places"));
                }
                self.turn_to_next(&mut state, at);
                continue;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Passes the turn to the shard `to`, or to the next unfinished one.
    fn pass_on(&self, at: usize, to: Option<usize>) {
        let mut state = self.state();
        match to {
            Some(to) => {
                state.turn = to;
                self.changed.notify_all();
            }
            None => self.turn_to_next(&mut state, at),
        }
    }

    /// Passes the turn to the next shard that has not finished.
    fn turn_to_next(&self, state: &mut State, at: usize) {
        let shards = self.own.len();
        let next = (1..=shards).map(|more| (at + more) % shards).find(|next| !state.finished[*next]);
        state.turn = next.unwrap_or(at);
        self.changed.notify_all();
    }

    /// Tells the strategies that a shard has its turn.
    fn take_up(&self, at: usize) -> Result<()> {
        self.strategies.iter().try_for_each(|strategy| strategy.virtual_rank_turn(at, None))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Marks a shard as finished when dropped, and passes the turn on. Unless `well` is true, the shard has failed.
struct FinishGuard<'a> {
    turns: &'a VirtualRankTurns,
    at: usize,
    well: bool,
}

impl Drop for FinishGuard<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        state.finished[self.at] = true;
        if !self.well {
            state.failed.get_or_insert(self.at);
        }
        if state.turn == self.at {
            self.turns.turn_to_next(&mut state, self.at);
        } else {
            self.turns.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_shard_runs_at_a_time_and_meetings_have_all_parts() {
        let turns = VirtualRankTurns::new(3..6, Vec::new());
        let seen = Mutex::new(Vec::new());
        let meet = |shard: usize, group, number, members: Range<usize>| {
            turns.meet(
                (group, number),
                (shard, members),
                vec![shard as f64 + 10.0 * number as f64],
                |parts| {
                    seen.lock().expect("no panic").push(100);
                    Ok(parts.concat())
                },
            )
        };
        let given = turns.run(|shard| {
            for number in 0..2 {
                seen.lock().expect("no panic").push(shard);
                let all = meet(shard, 0, number, 3..6)?;
                assert_eq!(**all, [3.0, 4.0, 5.0].map(|shard| shard + 10.0 * number as f64));
            }
            // The last has no part of the second group.
            if shard < 5 {
                assert_eq!(meet(shard, 1, 0, 3..5)?.len(), 2);
            }
            seen.lock().expect("no panic").push(shard);
            Ok::<_, ShardingError>(shard)
        });
        assert_eq!(given.expect("all go well"), [3, 4, 5]);
        let seen = seen.into_inner().expect("no panic");
        assert_eq!(seen, [3, 4, 5, 100, 3, 4, 5, 100, 100, 3, 4, 5], "{seen:?}");
    }

    #[test]
    fn a_failed_shard_ends_the_waiting_of_the_others() {
        let turns = VirtualRankTurns::new(0..3, Vec::new());
        let failed = turns.run(|shard| match shard {
            1 => Err(ShardingError::Mesh("on purpose".to_owned())),
            _ => Ok(turns.meet((0, 0), (shard, 0..3), Vec::new(), |_| Ok(Vec::new()))?.len()),
        });
        assert_eq!(failed.expect_err("one fails").to_string(), "mesh: on purpose");
        let apart = VirtualRankTurns::new(0..2, Vec::new());
        let apart = apart.run(|shard| {
            Ok::<_, ShardingError>(
                apart.meet((shard, 0), (shard, 0..2), Vec::new(), |_| Ok(Vec::new()))?.len(),
            )
        });
        assert!(apart.expect_err("they never meet").to_string().contains("at different places"));
        let alone = VirtualRankTurns::new(7..8, Vec::new());
        assert_eq!(alone.run(Ok::<_, ShardingError>).expect("goes well"), [7]);
    }
}

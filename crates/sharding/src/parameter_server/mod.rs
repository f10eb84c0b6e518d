//! Parameter servers: workers push gradients and pull parameters, servers hold and update them, and one bound says who waits.
//!
//! ```text
//!  worker                       server (some elements of every bucket)
//!  begin     ◄──── values ───── answers a pull once the worker is at most s steps ahead of the slowest
//!  forward        (by bucket, each waited for by the block that uses it first)
//!  backward  ───── push ──────► keeps a bucket's gradients, while backward goes on
//!  update    ───── commit ────► optimizer on its elements, version + 1, clock of the worker + 1
//!            ───── pull ──────► (the next step's values come while the worker reads its next batch)
//! ```
//!
//! | row | a worker waits | one change for |
//! |---|---|---|
//! | `ps-bsp` | for all | the sum of all workers' gradients, added in the order of workers |
//! | `ps-ssp` | while it is more than `staleness` steps ahead of the slowest (Ho et al. 2013) | each worker's gradients |
//! | `ps-asp` | never | each worker's gradients |
//!
//! Gradients are used as they are: where losses are divided by the batch of all, a round of pushes moves parameters as far as
//! one step of `ps-bsp` does, at one learning rate. A pull of what the worker has already costs a header.
//!
//! (Li et al. 2014.)

mod server;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use phalanx_collectives::{CommError, CommStats, Communicator};
use phalanx_tensor::{Array, FlatParam, HookResult, Listener, ParamStore, ProcessGroup};

use self::server::{Server, TO_SERVER, TO_WORKER, range};
use crate::buffer::{InPlace, with_singles};
use crate::mesh::part;
use crate::message::{Kind, Message};
use crate::parallel::{
    ParallelStrategy, Rule, Saved, ShardRole, StateBytes, Step, StepToken, SyncStats, whole,
};
use crate::replica::Replica;
use crate::strategy::{Layout, ServerPace, Strategy, Synchrony};
use crate::synchrony::SyncOptions;
use crate::{Result, ShardingError};

/// What a worker says before a version: that it has none.
const NOTHING: u64 = u64::MAX;

/// A worker, with a server on its own process. See the rows `ps-bsp`, `ps-ssp` and `ps-asp`.
///
/// Give it the optimizer by [`ParallelStrategy::serve`] before the first step, and end steps by [`Step::finish_by`]. What it shows
/// between [`ParallelStrategy::unshard`] and [`ParallelStrategy::reshard`] is what the servers hold once all that was pushed is
/// used.
#[derive(Debug)]
pub struct ParameterServer {
    replica: Replica,
    strategy: Strategy,
    together: bool,
    options: SyncOptions,
    server: Arc<Server>,
    /// Messages, of a communicator of their own.
    mail: Communicator,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    steps: u64,
    /// Steps begun, those given up included.
    attempt: u64,
    /// Buckets that were pushed in this attempt.
    pushed: Vec<bool>,
    /// By server: the version of what this rank has.
    known: Vec<u64>,
    coming: Option<Coming>,
    waited: Duration,
    bytes_sent: u64,
    bytes_received: u64,
    loaded: Option<Vec<(String, Vec<f32>)>>,
}

/// Values on their way.
#[derive(Debug)]
struct Coming {
    /// By bucket: servers whose values have not come.
    missing: Vec<usize>,
    /// Servers that have not answered at all.
    silent: usize,
}

impl ParameterServer {
    /// Wraps a model, as [`crate::DataParallel::new`] does, with a server on every rank.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] if the row is another, options do not fit, or parameters are not f32 on the host;
    /// [`ShardingError::ModelsDiffer`]; and those of communication.
    pub fn new(
        store: &ParamStore,
        comm: Communicator,
        strategy: Strategy,
        options: SyncOptions,
    ) -> Result<Arc<Self>> {
        let Synchrony::Servers(pace) = strategy.synchrony else {
            return Err(ShardingError::strategy(strategy.name, "has no servers"));
        };
        options.check(&strategy)?;
        let together = pace == ServerPace::Together;
        let mail = part(&comm, 0)?;
        let replica = Replica::new(store, comm, strategy.name)?;
        let (rank, ranks) = (mail.rank(), mail.world_size());
        let pace = (options.bound(pace), together);
        let both = (mail.clone(), replica.comm.clone());
        let server = Server::new(&replica.params, (rank, ranks, ranks), pace, options.clone(), both)?;
        let state = State { known: vec![NOTHING; ranks], ..State::default() };
        let this = Self { replica, strategy, together, options, server, mail, state: Mutex::new(state) };
        this.broadcast_state(store)?;
        this.server.start()?;
        Ok(Arc::new(this))
    }

    /// Begins a step with gradients of zero.
    ///
    /// # Errors
    /// [`ShardingError::Step`] if there is one under way.
    pub fn begin_step(&self) -> Result<Step<'_>> {
        Step::begin(self)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn servers(&self) -> usize {
        self.replica.ranks()
    }

    /// Says something to all servers.
    fn tell(&self, state: &mut State, message: &Message) -> Result<()> {
        for server in 0..self.servers() {
            state.bytes_sent += message.send(&self.mail, server, TO_SERVER)?;
        }
        Ok(())
    }

    /// Sends a bucket's gradients to the servers that have its elements.
    fn push(&self, state: &mut State, at: usize) -> Result<()> {
        let param = &self.replica.params[at];
        let Some(grads) = param.grads()? else { return Ok(()) };
        for server in 0..self.servers() {
            let part = grads.narrow(range(param.len(), server, self.servers()))?;
            let about = (Kind::Push, state.attempt, at);
            let sent = with_singles(&part, |part| {
                Message::send_values(&self.mail, server, TO_SERVER, about, part)
            })??;
            state.bytes_sent += sent;
        }
        state.pushed[at] = true;
        Ok(())
    }

    /// Sends what was not sent while backward ran.
    fn push_rest(&self, state: &mut State) -> Result<()> {
        let rest: Vec<usize> =
            self.replica.trainable().map(|(at, _)| at).filter(|at| !state.pushed[*at]).collect();
        for at in rest.into_iter().rev() {
            if !self.replica.params[at].has_grads() {
                // A rank without samples takes part with zeros.
                drop(self.replica.params[at].begin_reduce(false)?);
                self.replica.params[at].end_reduce(true)?;
            }
            self.push(state, at)?;
        }
        Ok(())
    }

    /// Asks all servers for values.
    fn ask(&self, state: &mut State, kind: Kind) -> Result<()> {
        for server in 0..self.servers() {
            let number = if kind == Kind::Pull { state.known[server] } else { 0 };
            state.bytes_sent += Message::of(kind, number).send(&self.mail, server, TO_SERVER)?;
        }
        let missing = self.replica.params.iter().map(|param| usize::from(param.trainable()) * self.servers());
        state.coming = Some(Coming { missing: missing.collect(), silent: self.servers() });
        Ok(())
    }

    /// The step has ended: the values of the next one are asked for, unless that is to wait until it begins.
    fn end_step(&self, state: &mut State) -> Result<()> {
        state.steps += 1;
        if self.options.pull_ahead { self.ask(state, Kind::Pull) } else { Ok(()) }
    }

    /// The next answer of a server, however long it takes as long as the world is sound.
    fn answer(&self, state: &mut State) -> Result<(usize, Message)> {
        let begun = Instant::now();
        let (server, bytes) = loop {
            match self.mail.recv_any(TO_WORKER) {
                Ok(message) => break message,
                Err(CommError::NoMessage { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        };
        state.waited += begun.elapsed();
        state.bytes_received += if server == self.mail.rank() { 0 } else { bytes.len() as u64 };
        Ok((server, Message::read(&bytes)?))
    }

    /// Waits until the values of these buckets are here.
    fn receive(&self, state: &mut State, wanted: impl Fn(usize) -> bool) -> Result<()> {
        loop {
            let Some(coming) = &mut state.coming else { return Ok(()) };
            if coming.missing.iter().all(|missing| *missing == 0) {
                state.coming = None;
                return Ok(());
            }
            if !coming.missing.iter().enumerate().any(|(at, missing)| *missing > 0 && wanted(at)) {
                return Ok(());
            }
            let (server, message) = self.answer(state)?;
            let Some(coming) = &mut state.coming else { return Ok(()) };
            match message.kind {
                Kind::Unchanged => {
                    coming.silent -= 1;
                    coming.missing.iter_mut().for_each(|missing| *missing = missing.saturating_sub(1));
                }
                Kind::Values => {
                    let at = message.bucket;
                    let wrong =
                        || ShardingError::state(self.strategy.name, format!("values of no bucket: {at}"));
                    let param = self.replica.params.get(at).ok_or_else(wrong)?;
                    let part = range(param.len(), server, self.servers());
                    if part.len() != message.values.len() {
                        return Err(wrong());
                    }
                    self.replica.with_values(at, |values| values[part].copy_from_slice(&message.values))?;
                    coming.missing[at] = coming.missing[at].saturating_sub(1);
                    state.known[server] = message.number;
                }
                other => {
                    let problem = format!("server {server} says {other:?} where it owes values");
                    return Err(ShardingError::state(self.strategy.name, problem));
                }
            }
        }
    }

    /// Waits until all that this and every other worker have pushed is used. Every rank calls this at the same place.
    fn quiesce(&self, state: &mut State) -> Result<()> {
        self.receive(state, |_| true)?;
        self.tell(state, &Message::of(Kind::Fence, 0))?;
        for _ in 0..self.servers() {
            let (server, message) = self.answer(state)?;
            if message.kind != Kind::Done {
                let problem =
                    format!("server {server} says {:?} where it was asked whether it is done", message.kind);
                return Err(ShardingError::state(self.strategy.name, problem));
            }
        }
        Ok(self.replica.comm.barrier("parameter servers")?)
    }

    /// Brings what the servers hold into this rank's parameters.
    fn read(&self, state: &mut State) -> Result<()> {
        self.ask(state, Kind::Read)?;
        self.receive(state, |_| true)
    }
}

impl Drop for ParameterServer {
    /// Servers end when all workers have left.
    fn drop(&mut self) {
        let state = &mut *self.state();
        // Of a world that is broken nobody waits for this.
        let _ = self.tell(state, &Message::of(Kind::Leave, 0));
    }
}

impl Listener for ParameterServer {
    fn before_forward(&self, block: &str) -> HookResult {
        let state = &mut *self.state();
        if state.coming.is_some() {
            let params = &self.replica.params;
            // What is in no block may be used at any time.
            self.receive(state, |at| params[at].is_outside() || params[at].blocks().any(|of| of == block))?;
        }
        Ok(())
    }

    fn gradients_ready(&self, param: &FlatParam) -> HookResult {
        let Some(at) = self.replica.complete(param)? else { return Ok(()) };
        if !self.options.push_late || self.together {
            self.push(&mut self.state(), at)?;
        }
        Ok(())
    }
}

impl ParallelStrategy for ParameterServer {
    fn name(&self) -> &'static str {
        self.strategy.name
    }

    fn params(&self) -> &[FlatParam] {
        self.server.params()
    }

    fn gradients(&self) -> &[FlatParam] {
        if self.together { self.server.params() } else { &self.replica.params }
    }

    fn begin(&self, _: &StepToken) -> Result<()> {
        self.replica.begin()?;
        let state = &mut *self.state();
        state.attempt += 1;
        state.pushed = vec![false; self.replica.params.len()];
        if state.coming.is_none() {
            self.ask(state, Kind::Pull)?;
        }
        // What is in no block may be used at any time.
        let params = &self.replica.params;
        self.receive(state, |at| params[at].is_outside())
    }

    fn micro_batch(&self, _: &StepToken, more: bool) {
        self.replica.micro_batch(more);
    }

    fn reduce(&self, _: &StepToken) -> Result<()> {
        let state = &mut *self.state();
        // A rank that ran nothing forward still has what it asked for.
        self.receive(state, |_| true)?;
        if !self.together {
            return Ok(());
        }
        self.push_rest(state)?;
        let pushed = Message::of(Kind::Pushed, state.attempt);
        self.tell(state, &pushed)?;
        let begun = Instant::now();
        self.server.wait_for_sum(state.attempt)?;
        state.waited += begun.elapsed();
        Ok(())
    }

    fn end(&self, _: &StepToken, completed: bool) {
        if !completed {
            let state = &mut *self.state();
            let drop = Message::of(Kind::Drop, state.attempt);
            // A world that is broken says so elsewhere.
            let _ = self.tell(state, &drop);
        }
        self.replica.end(completed);
    }

    fn update_by(&self, rule: &Rule, learning_rate: f64) -> Result<()> {
        // Whoever has given no rule before gives this one.
        self.server.serve(rule)?;
        let state = &mut *self.state();
        if !self.together {
            self.push_rest(state)?;
        }
        let commit = Message { rate: learning_rate, ..Message::of(Kind::Commit, state.attempt) };
        self.tell(state, &commit)?;
        self.end_step(state)
    }

    fn update(&self, change: &mut dyn FnMut(&[FlatParam]) -> phalanx_tensor::Result<()>) -> Result<()> {
        let state = &mut *self.state();
        if self.replica.is_open() {
            if !self.together {
                let problem = "has servers that update for each push; give them the optimizer by `serve`, and end steps by \
                    `update_by`";
                return Err(ShardingError::strategy(self.strategy.name, problem));
            }
            // All gradients are summed, and nobody changes the values before all workers have ended the step.
            change(self.server.params())?;
            let commit = Message { rate: f64::NAN, ..Message::of(Kind::Commit, state.attempt) };
            self.tell(state, &commit)?;
            return self.end_step(state);
        }
        self.quiesce(state)?;
        self.server.change(change)?;
        self.replica.comm.barrier("parameter servers")?;
        self.read(state)
    }

    fn sum_owned(&self, sums: &Array) -> Result<()> {
        if self.together && self.replica.ranks() > 1 {
            let sum = phalanx_collectives::ReduceOp::Sum;
            self.replica.comm.all_reduce(&mut InPlace::of(sums)?, sum)?;
        }
        Ok(())
    }

    fn sum(&self, values: &mut [f64]) -> Result<()> {
        self.replica.sum(values)
    }

    fn batch_group(&self, _: usize) -> Result<Arc<dyn ProcessGroup>> {
        Ok(self.replica.group())
    }

    fn unshard(&self) -> Result<()> {
        let state = &mut *self.state();
        self.quiesce(state)?;
        if self.replica.keep_aside()? {
            let known = state.known.clone();
            self.read(state)?;
            // What this rank computes with comes back, and is what a pull is compared to.
            state.known = known;
            // Nobody goes on to the next step before all have read.
            self.replica.comm.barrier("values of parameter servers")?;
        }
        Ok(())
    }

    fn reshard(&self) -> Result<()> {
        self.replica.show_own()
    }

    fn broadcast_state(&self, store: &ParamStore) -> Result<()> {
        let state = &mut *self.state();
        self.receive(state, |_| true)?;
        self.replica.broadcast_params()?;
        self.replica.broadcast_buffers(store)?;
        let (mut version, mut clocks) = self.server.clocks();
        if let Some(loaded) = state.loaded.take() {
            let mut saved = Saved::new(self.strategy.name, loaded);
            let numbers = saved.whole("clock")?;
            let short = || ShardingError::state(self.strategy.name, "`clock` is cut off");
            let (first, rest) = numbers.split_at_checked(2).ok_or_else(short)?;
            (state.steps, version, clocks) = (first[0], first[1], rest.to_vec());
        }
        self.server.fill(version, &clocks, |at| self.replica.values(at))?;
        state.known.fill(NOTHING);
        Ok(self.replica.comm.barrier("parameter servers")?)
    }

    fn broadcast_buffers(&self, store: &ParamStore) -> Result<()> {
        self.replica.broadcast_buffers(store)
    }

    fn role(&self) -> ShardRole {
        let (shard, shards) = (self.replica.comm.rank(), self.replica.ranks());
        ShardRole { shard, shards, replica: 0, parameters: Layout::Replicated, optimizer: Layout::Sharded }
    }

    fn bytes(&self) -> StateBytes {
        let [parameters, gradients] = self.replica.held();
        let synchrony = self.server.bytes() + self.replica.kept_bytes();
        StateBytes { parameters, gradients, synchrony, ..StateBytes::default() }
    }

    fn stats(&self) -> CommStats {
        let state = self.state();
        let mail = CommStats {
            bytes_sent: state.bytes_sent + self.server.bytes_sent(),
            bytes_received: state.bytes_received,
            seconds_exposed: state.waited.as_secs_f64(),
            seconds_busy: state.waited.as_secs_f64(),
            ..CommStats::default()
        };
        self.replica.comm.stats() + mail
    }

    fn serve(&self, rule: &Rule) -> Result<()> {
        self.server.serve(rule)
    }

    fn is_lockstep(&self) -> bool {
        false
    }

    fn keeps_copies(&self) -> bool {
        true
    }

    fn sync_stats(&self) -> SyncStats {
        let state = self.state();
        let (staleness, leads, spread) =
            self.server.look(|store| (store.staleness().clone(), store.leads().clone(), store.spread()));
        SyncStats {
            staleness,
            leads,
            spread,
            waited: state.waited,
            meetings: state.steps,
            ..SyncStats::default()
        }
    }

    fn own_state(&self) -> Result<Vec<(String, Vec<f32>)>> {
        let state = &mut *self.state();
        self.quiesce(state)?;
        let (version, clocks) = self.server.clocks();
        // Nobody goes on to the next step before all have looked.
        self.replica.comm.barrier("clocks of parameter servers")?;
        let numbers: Vec<u64> = [state.steps, version].into_iter().chain(clocks).collect();
        Ok(vec![("clock".to_owned(), whole(&numbers))])
    }

    fn load_own_state(&self, state: Vec<(String, Vec<f32>)>) -> Result<()> {
        self.state().loaded = Some(state).filter(|state| !state.is_empty());
        Ok(())
    }
}

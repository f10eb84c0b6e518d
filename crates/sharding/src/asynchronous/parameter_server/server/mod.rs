//! A server: its elements of every bucket, their optimizer state, and the store that admits workers.

mod answers;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use candle_core::{Device, Tensor};
use phalanx_collectives::{CommError, CommStats, Communicator};
use phalanx_tensor::{FlatStorage, ParamBucket, ParamState};

use crate::asynchronous::message::{Kind, Message};
use crate::asynchronous::parameter_server::encoded::{Encoding, RoundedValues};
use crate::asynchronous::parameter_server::places::{Places, TO_SERVER, TO_WORKER};
use crate::parallel::{SharedUpdate, apply};
use crate::synchrony::{Act, RequestQueues, SyncOptions, VersionedStore};
use crate::{Result, ShardingError};
use phalanx_codecs::buffer::with_singles;

/// The interval at which a waiting thread checks that the world is intact.
const LOOK: Duration = Duration::from_millis(100);

/// One server. Its thread handles the workers' messages. Its own rank may access it between steps.
#[derive(Debug)]
pub(super) struct Server {
    /// The elements of each bucket that this server has.
    server_params: Vec<ParamBucket>,
    workers: usize,
    /// True if its rank only serves.
    apart: bool,
    /// True if the gradients of all workers make one change.
    together: bool,
    options: SyncOptions,
    encoding: Encoding,
    mail: Communicator,
    state: Mutex<ServerState>,
    changed: Condvar,
}

/// The effect of a worker's message.
enum Applied {
    /// The message alone was handled.
    Message,
    /// The change of all workers was made: waiting messages can be handled.
    Change,
    /// The last worker has left.
    LastLeave,
}

/// A request of a worker that may have to wait.
#[derive(Debug)]
struct PendingRequest(Message);

#[derive(Debug)]
struct ServerState {
    store: VersionedStore<()>,
    waiting: RequestQueues<PendingRequest>,
    rule: Option<SharedUpdate>,
    workers: Vec<WorkerRecord>,
    /// True if this rank itself has ended the step. It clips the sum.
    agreed: bool,
    /// The attempt whose gradients are summed.
    summed: Option<u64>,
    /// The last pulled version, if values are sent rounded.
    rounded: Option<RoundedValues>,
    bytes_sent: u64,
    /// The part of them that answered pulls.
    bytes_answered: u64,
    failed: Option<String>,
    /// True if later messages are ignored.
    closed: bool,
}

/// The state of one worker on a server.
#[derive(Debug, Clone, Default)]
struct WorkerRecord {
    /// The gradients of the current attempt, by bucket.
    pushed: Vec<Option<Vec<f32>>>,
    /// The last attempt whose gradients were all pushed.
    complete: Option<u64>,
    /// Its ended step.
    committed: Option<StepEnd>,
    /// A message that has to wait, and all messages since.
    waiting: Vec<Message>,
    /// The values that it pulled, by bucket, if stale gradients are corrected.
    pulled: Vec<Vec<f32>>,
    /// The number of changes that it will repeat, which were made before a rank was lost.
    repeated: u64,
    /// True if it has left.
    left: bool,
}

/// An ended step of a worker.
#[derive(Debug, Clone, Copy)]
struct StepEnd {
    rate: f64,
    /// True if buckets that are trained later were frozen in it.
    is_frozen: bool,
}

impl StepEnd {
    fn of(message: &Message) -> Self {
        Self { rate: message.rate, is_frozen: message.bucket > 0 }
    }
}

impl ServerState {
    /// Discards the gradients of an attempt that a worker has cancelled.
    fn forget_attempt(&mut self, from: usize, attempt: u64) {
        self.workers[from].pushed.fill(None);
        self.workers[from].complete = None;
        if self.summed == Some(attempt) {
            self.summed = None;
        }
    }
}

impl Server {
    /// Makes a server of these elements for the workers of `places`, without values.
    pub(super) fn new(
        server_params: &[ParamBucket],
        places: Places,
        (bound, together): (Option<u64>, bool),
        (options, encoding): (SyncOptions, Encoding),
        mail: Communicator,
    ) -> Arc<Self> {
        let (buckets, workers) = (server_params.len(), places.workers);
        let state = ServerState {
            store: VersionedStore::new((), workers, bound),
            waiting: RequestQueues::new(workers),
            rule: None,
            workers: vec![WorkerRecord { pushed: vec![None; buckets], ..WorkerRecord::default() }; workers],
            agreed: !(places.are_apart() && together),
            summed: None,
            rounded: None,
            bytes_sent: 0,
            bytes_answered: 0,
            failed: None,
            closed: false,
        };
        let (changed, state) = (Condvar::new(), Mutex::new(state));
        let (server_params, apart) = (server_params.to_vec(), places.are_apart());
        Arc::new(Self { server_params, workers, apart, together, options, encoding, mail, state, changed })
    }

    /// Starts the thread that handles the workers' messages until all have left or the world breaks.
    pub(super) fn start(self: &Arc<Self>) -> Result<()> {
        let server = self.clone();
        let name = format!("phalanx-server-{}", self.mail.rank());
        let spawned = std::thread::Builder::new().name(name).spawn(move || server.run());
        spawned
            .map(drop)
            .map_err(|error| ShardingError::Mesh(format!("cannot start a server's thread: {error}")))
    }

    /// Serves until all workers have left. After a panic the workers are told, so that they do not wait.
    fn run(&self) {
        let served = catch_unwind(AssertUnwindSafe(|| self.listen()));
        if served.is_err() {
            self.fail(&ShardingError::state("parameter server", "its thread has panicked"), true);
        }
    }

    fn listen(&self) {
        loop {
            match self.mail.recv_any(TO_SERVER) {
                Err(CommError::NoMessage { .. }) => {}
                Err(error) => return self.fail(&error.into(), false),
                Ok((worker, bytes)) => {
                    match Message::read(&bytes).and_then(|message| self.hear(worker, message)) {
                        Ok(true) => return,
                        Ok(false) => {}
                        Err(error) => return self.fail(&error, true),
                    }
                }
            }
        }
    }

    /// Records the error that ended this server, and tells the other ranks that it will send nothing more.
    fn fail(&self, error: &ShardingError, tell: bool) {
        let rank = self.mail.rank();
        let reason = format!("the parameter server on rank {rank} failed: {error}");
        self.state().failed = Some(reason.clone());
        self.changed.notify_all();
        if tell {
            self.mail.abort(&reason);
        }
    }

    fn state(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the values by bucket, a saved version, and the workers' clocks. Each worker gives its clock, and its number
    /// in the saved clocks if it was in them. Returns for each worker the number of steps that are used already.
    pub(super) fn fill(
        &self,
        (version, before): (u64, &[u64]),
        workers: &[(u64, Option<usize>)],
        values: &[Vec<f32>],
    ) -> Result<Vec<u64>> {
        let mut state = self.state();
        for (server_param, own) in
            self.server_params.iter().zip(values).filter(|(server_param, _)| server_param.trainable())
        {
            match (server_param.state(), server_param.owned_values()?) {
                (ParamState::Absent, _) | (_, None) => server_param.fill_shard(flat(own.clone())?)?,
                (_, Some(values)) => with_singles(&values, |values| values.copy_from_slice(own))?,
            }
        }
        let clocks: Vec<u64> = workers.iter().map(|(clock, _)| *clock).collect();
        for (record, (clock, was)) in state.workers.iter_mut().zip(workers) {
            let made = was.and_then(|was| before.get(was)).copied().unwrap_or(*clock);
            record.repeated = made.saturating_sub(*clock);
        }
        state.store.restore(version, &clocks);
        state.rounded = None;
        self.changed.notify_all();
        Ok(state.workers.iter().map(|worker| worker.repeated).collect())
    }

    /// Ignores later messages and applies `change` to the elements. Returns the version and the workers' clocks, which
    /// count used steps that workers still have to repeat.
    pub(super) fn close(
        &self,
        change: &mut dyn FnMut(&[ParamBucket]) -> phalanx_tensor::Result<()>,
    ) -> Result<(u64, Vec<u64>)> {
        let mut state = self.state();
        state.closed = true;
        change(&self.server_params)?;
        let clocks = state.store.clocks().all().iter().zip(&state.workers);
        Ok((state.store.version(), clocks.map(|(clock, worker)| clock + worker.repeated).collect()))
    }

    /// Waits until all workers have ended `steps` steps.
    pub(super) fn wait_for_clocks(&self, steps: u64) -> Result<()> {
        self.wait(|state| state.store.clocks().slowest() >= steps).map(drop)
    }

    /// Records that this serving rank has ended the step, so that the sum may be used.
    pub(super) fn agree(&self) -> Result<()> {
        let mut state = self.state();
        state.agreed = true;
        self.change_together(&mut state)?;
        drop(state);
        self.hear_again()
    }

    /// Sets the optimizer.
    pub(super) fn set_optimizer(&self, rule: &SharedUpdate) -> Result<()> {
        let first = self.state().rule.replace(rule.clone()).is_none();
        if first {
            // Earlier messages wait for the optimizer.
            Message::of(Kind::Ready, 0).send(&self.mail, self.mail.rank(), TO_SERVER)?;
        }
        Ok(())
    }

    /// Waits until the gradients of an attempt are summed.
    pub(super) fn wait_for_sum(&self, attempt: u64) -> Result<()> {
        self.wait(|state| state.summed == Some(attempt)).map(drop)
    }

    fn wait(&self, holds: impl Fn(&ServerState) -> bool) -> Result<MutexGuard<'_, ServerState>> {
        let mut state = self.state();
        while !holds(&state) {
            if let Some(reason) = &state.failed {
                self.mail.check()?;
                return Err(ShardingError::state("parameter server", reason.clone()));
            }
            state = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state)
    }

    /// Changes the values outside of a step, while no worker has a pending request.
    pub(super) fn change(
        &self,
        change: &mut dyn FnMut(&[ParamBucket]) -> phalanx_tensor::Result<()>,
    ) -> Result<()> {
        let mut state = self.state();
        state.rounded = None;
        state.store.change(|()| change(&self.server_params))?;
        Ok(())
    }

    /// Returns the version of the values and the workers' clocks.
    pub(super) fn clocks(&self) -> (u64, Vec<u64>) {
        let state = self.state();
        (state.store.version(), state.store.clocks().all().to_vec())
    }

    /// Calls `look` with the store.
    pub(super) fn look<R>(&self, look: impl FnOnce(&VersionedStore<()>) -> R) -> R {
        look(&self.state().store)
    }

    /// Returns the bytes of values, gradients, copies for corrections, and rounded values.
    pub(super) fn bytes(&self) -> u64 {
        let state = self.state();
        let held: usize = self
            .server_params
            .iter()
            .map(|server_param| server_param.held_bytes().iter().sum::<usize>())
            .sum();
        let pushed = state.workers.iter().flat_map(|worker| &worker.pushed).flatten().map(Vec::len);
        let pulled = state.workers.iter().flat_map(|worker| &worker.pulled).map(Vec::len);
        let (pushed, pulled) = (pushed.sum::<usize>(), pulled.sum::<usize>());
        (held + 4 * (pushed + pulled)) as u64 + state.rounded.as_ref().map_or(0, RoundedValues::bytes)
    }

    /// The bytes that were sent.
    pub(super) fn stats(&self) -> CommStats {
        let ServerState { bytes_sent, bytes_answered, .. } = *self.state();
        CommStats { bytes_sent, bytes_answered, ..CommStats::default() }
    }

    /// Handles a worker's message. Returns true if the last worker has left.
    pub(super) fn hear(&self, from: usize, message: Message) -> Result<bool> {
        let mut state = self.state();
        if state.closed {
            return Ok(true);
        }
        if message.kind == Kind::Ready {
            drop(state);
            return self.hear_again().map(|()| false);
        }
        if from >= self.workers {
            return Err(ShardingError::state("parameter server", format!("rank {from} is no worker")));
        }
        if self.must_wait(&state, from, message.kind) {
            state.workers[from].waiting.push(message);
            return Ok(false);
        }
        match self.apply(&mut state, from, message)? {
            Applied::Message => Ok(false),
            Applied::Change => {
                drop(state);
                self.hear_again().map(|()| false)
            }
            Applied::LastLeave => Ok(true),
        }
    }

    /// True if a worker's message must wait: until the change of all workers is made, without an optimizer, or behind an earlier message.
    fn must_wait(&self, state: &ServerState, from: usize, kind: Kind) -> bool {
        let asks = matches!(kind, Kind::Pull | Kind::Read | Kind::Fence);
        let early = kind == Kind::Commit && !self.together && state.rule.is_none();
        early || state.workers[from].committed.is_some() && asks || !state.workers[from].waiting.is_empty()
    }

    /// Applies a worker's message to the state.
    fn apply(&self, state: &mut ServerState, from: usize, message: Message) -> Result<Applied> {
        match message.kind {
            Kind::Push | Kind::PushCoded => self.take_gradients(state, from, message)?,
            Kind::Pushed => {
                state.workers[from].complete = Some(message.number);
                self.sum(state)?;
            }
            Kind::Drop => state.forget_attempt(from, message.number),
            Kind::Commit if self.together => {
                state.workers[from].committed = Some(StepEnd::of(&message));
                self.change_together(state)?;
                if state.workers[from].committed.is_none() {
                    return Ok(Applied::Change);
                }
            }
            Kind::Commit => {
                state.waiting.arrive(from, Act::Push, PendingRequest(message));
                self.answer(state)?;
            }
            Kind::Pull => {
                state.waiting.arrive(from, Act::Pull, PendingRequest(message));
                self.answer(state)?;
            }
            Kind::Read => {
                let version = state.store.version();
                self.send_values(state, from, version)?;
            }
            Kind::Fence => {
                state.bytes_sent += Message::of(Kind::Done, 0).send(&self.mail, from, TO_WORKER)?;
            }
            Kind::Leave => {
                state.workers[from].left = true;
                if state.workers.iter().all(|worker| worker.left) {
                    return Ok(Applied::LastLeave);
                }
            }
            other => {
                let problem = format!("rank {from} says {other:?} to a server");
                return Err(ShardingError::state("parameter server", problem));
            }
        }
        Ok(Applied::Message)
    }

    /// Keeps a worker's gradients of a bucket until they are used.
    fn take_gradients(&self, state: &mut ServerState, from: usize, message: Message) -> Result<()> {
        let bucket = message.bucket;
        let server_param = self.server_params.get(bucket).ok_or_else(|| {
            ShardingError::state("parameter server", format!("gradients of no bucket: {bucket}"))
        })?;
        state.workers[from].pushed[bucket] =
            Some(self.encoding.numbers(message, server_param.owned().len())?);
        Ok(())
    }

    /// Handles the messages that had to wait.
    fn hear_again(&self) -> Result<()> {
        let take = |worker: &mut WorkerRecord| std::mem::take(&mut worker.waiting);
        let waiting: Vec<Vec<Message>> = self.state().workers.iter_mut().map(take).collect();
        for (worker, messages) in waiting.into_iter().enumerate() {
            for message in messages {
                self.hear(worker, message)?;
            }
        }
        Ok(())
    }

    /// Sums the gradients of an attempt in the order of workers, once all have pushed them.
    fn sum(&self, state: &mut ServerState) -> Result<()> {
        if !self.together {
            return Ok(());
        }
        let Some(attempt) = state.workers[0].complete else { return Ok(()) };
        if state.workers.iter().any(|worker| worker.complete != Some(attempt)) {
            return Ok(());
        }
        for (at, server_param) in
            self.server_params.iter().enumerate().filter(|(_, server_param)| server_param.trainable())
        {
            let mut parts = state.workers.iter_mut().filter_map(|worker| worker.pushed[at].take());
            let mut sum = parts.next().unwrap_or_else(|| vec![0.0; server_param.owned().len()]);
            for part in parts {
                sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
            }
            server_param.set_owned_grads(flat(sum)?)?;
        }
        state.workers.iter_mut().for_each(|worker| worker.complete = None);
        state.summed = Some(attempt);
        self.changed.notify_all();
        Ok(())
    }

    /// Updates the values by the sum, once all workers have ended the step.
    fn change_together(&self, state: &mut ServerState) -> Result<()> {
        if !state.agreed || state.workers.iter().any(|worker| worker.committed.is_none()) {
            return Ok(());
        }
        let Some(step) = state.workers[0].committed else { return Ok(()) };
        // A rate of NaN: this rank's worker has changed the values itself.
        if step.rate.is_nan() {
            state.store.push_together(|()| ());
        } else {
            let rule = state.rule.clone();
            let rule = rule.ok_or_else(|| ShardingError::state("parameter server", "it has no optimizer"))?;
            self.follow_freeze(step);
            state.store.push_together(|()| apply(&rule, &self.server_params, step.rate))?;
        }
        self.server_params.iter().for_each(ParamBucket::zero_grads);
        state.workers.iter_mut().for_each(|worker| worker.committed = None);
        state.agreed = !self.apart;
        state.summed = None;
        self.changed.notify_all();
        Ok(())
    }

    /// Freezes or unfreezes the server's parameters as they were in a worker's step. The worker may have unfrozen its own since.
    fn follow_freeze(&self, step: StepEnd) {
        self.server_params.iter().for_each(|server_param| server_param.set_frozen(step.is_frozen));
    }

    /// Handles all admitted requests.
    fn answer(&self, state: &mut ServerState) -> Result<()> {
        loop {
            let ServerState { waiting, store, .. } = &mut *state;
            let Some((worker, act, PendingRequest(message))) = waiting.next(store.clocks()) else {
                return Ok(());
            };
            match act {
                Act::Pull => self.answer_pull(state, worker, message.number)?,
                Act::Push => self.change_by(state, worker, StepEnd::of(&message))?,
            }
        }
    }

    /// Updates the values by the gradients of one worker.
    fn change_by(&self, state: &mut ServerState, worker: usize, step: StepEnd) -> Result<()> {
        let rule = state.rule.clone();
        let rule = rule.ok_or_else(|| ShardingError::state("parameter server", "it has no optimizer"))?;
        if state.workers[worker].repeated > 0 {
            state.workers[worker].repeated -= 1;
            state.workers[worker].pushed.fill(None);
            state.store.push(worker, |(), _| ());
            self.changed.notify_all();
            return Ok(());
        }
        self.follow_freeze(step);
        let rate = step.rate;
        let ServerState { store, workers, .. } = &mut *state;
        let WorkerRecord { pushed, pulled, .. } = &mut workers[worker];
        let (options, server_params) = (&self.options, &self.server_params);
        let changed = store.push(worker, |(), met| {
            for (at, server_param) in
                server_params.iter().enumerate().filter(|(_, server_param)| server_param.trainable())
            {
                let mut gradient = pushed[at].take().unwrap_or_else(|| vec![0.0; server_param.owned().len()]);
                if let (true, Some(values)) = (options.compensation > 0.0, server_param.owned_values()?) {
                    let factor = options.compensation as f32;
                    with_singles(&values, |values| correct(&mut gradient, values, pulled.get(at), factor))?;
                }
                server_param.set_owned_grads(flat(gradient)?)?;
            }
            let rate = if options.damp { rate / met.staleness().max(1) as f64 } else { rate };
            apply(&rule, server_params, rate).map_err(ShardingError::from)
        });
        changed.1?;
        self.server_params.iter().for_each(ParamBucket::zero_grads);
        state.workers[worker].complete = None;
        self.changed.notify_all();
        Ok(())
    }
}

/// Corrects a stale gradient to g + λ·g²·(w − w_old), a first-order estimate of the gradient at the current values.
fn correct(gradient: &mut [f32], values: &[f32], old: Option<&Vec<f32>>, factor: f32) {
    let Some(old) = old else { return };
    for ((g, value), old) in gradient.iter_mut().zip(values).zip(old) {
        *g += factor * *g * *g * (value - old);
    }
}

fn flat(values: Vec<f32>) -> Result<FlatStorage> {
    let len = values.len();
    Ok(FlatStorage::new(Tensor::from_vec(values, len, &Device::Cpu)?)?)
}

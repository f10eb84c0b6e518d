//! Parameter servers: workers push gradients and pull parameters, servers hold and update them, and a staleness bound
//! decides which workers wait.
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
//! Gradients are used as they are: where losses are divided by the batch of all, a round of pushes moves parameters as
//! far as one step of `ps-bsp` does, at one learning rate. A pull of values that the worker has already costs a header.
//!
//! Gradients may be encoded: a worker encodes each server's part of a bucket on a background thread, and keeps the residual
//! once the step was used. Values may be rounded: each server rounds each version once, and updates its exact values.
//!
//! Servers run on the host, also if workers compute on a device: its copy stream brings gradients to the host while backward
//! runs, and brings values back.
//!
//! (Li et al. 2014.)

mod begin;
mod encoded;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod places;
mod server;
mod worker;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use phalanx_collectives::{CommStats, Communicator};
use phalanx_tensor::{Array, HookResult, Listener, ParamBucket, ParamStore, ProcessGroup};

use self::begin::NO_FORMER_WORKER;
use self::encoded::{Encoding, PushedBucket, Pusher};
use self::places::{Places, range};
use self::server::Server;
use crate::asynchronous::message::{Kind, Message};
use crate::asynchronous::replica::Replica;
use crate::background::Pending;
use crate::mesh::part;
use crate::parallel::{
    LocalModel, Observed, OwnState, ParallelStrategy, RankCollectives, Residency, Resumable, ShardRole,
    SharedUpdate, StateBytes, StepGuard, StepReports, StepToken, SyncStats, whole,
};
use crate::strategy::{Partition, ServerPace, Strategy, Synchrony};
use crate::synchrony::SyncOptions;
use crate::{Options, Overlap, Result, ShardingError};
use phalanx_codecs::buffer::InPlace;
use phalanx_codecs::{CodecState, ResidualUpdate, nothing_kept};

/// The version of a worker that has no values.
const NOTHING: u64 = u64::MAX;

/// A worker with a server on its own process; or, with servers of their own ([`SyncOptions::servers`]), either of them. See the
/// rows `ps-bsp`, `ps-ssp` and `ps-asp`.
///
/// A rank that only serves takes part like a worker without samples. Its step ends when the slowest worker has ended
/// it. It holds only its elements of the model.
///
/// Give it the optimizer by [`crate::Resumable::set_optimizer`] before the first step, and end steps by
/// [`StepGuard::finish_with`]. Between [`crate::Residency::unshard`] and [`crate::Residency::reshard`] the model has
/// the servers' values after all pushes.
#[derive(Debug)]
pub struct ParameterServer {
    replica: Replica,
    strategy: Strategy,
    together: bool,
    options: SyncOptions,
    places: Places,
    /// The elements of each bucket that a server on this rank has; empty without a server.
    server_params: Vec<ParamBucket>,
    server: Option<Arc<Server>>,
    encoding: Encoding,
    /// Pushes in the background, for gradients that are encoded or on a device.
    pusher: Option<Pusher>,
    /// A separate communicator for messages.
    mail: Communicator,
    state: Mutex<WorkerState>,
}

#[derive(Debug)]
struct WorkerState {
    steps: u64,
    /// The number of this worker before ranks were lost.
    was: i64,
    /// Steps begun, including cancelled ones.
    attempt: u64,
    /// Buckets that were pushed in this attempt.
    pushed: Vec<bool>,
    /// Pushes that run in the background.
    pushing: Vec<Pending<PushedBucket>>,
    /// The residuals of this attempt's messages, to be kept once it was used.
    left: Vec<ResidualUpdate>,
    /// The number of the last committed step and its codec residuals. They become final when the next step begins,
    /// because a lost rank may force the step to be repeated.
    made: Option<(u64, Vec<ResidualUpdate>)>,
    /// For each server, the number of coming steps that it used before a rank was lost.
    used: Vec<u64>,
    /// For each server, the version of the values that this rank has.
    known: Vec<u64>,
    coming: Option<PendingPull>,
    waited: Duration,
    bytes_sent: u64,
    bytes_received: u64,
    loaded: Option<Vec<(String, Vec<f32>)>>,
}

impl WorkerState {
    fn new(servers: usize) -> Self {
        Self {
            steps: 0,
            was: NO_FORMER_WORKER,
            attempt: 0,
            pushed: Vec::new(),
            pushing: Vec::new(),
            left: Vec::new(),
            made: None,
            used: vec![0; servers],
            known: vec![NOTHING; servers],
            coming: None,
            waited: Duration::ZERO,
            bytes_sent: 0,
            bytes_received: 0,
            loaded: None,
        }
    }
}

/// A pull under way.
#[derive(Debug)]
struct PendingPull {
    /// The number of servers whose values are missing, by bucket.
    missing: Vec<usize>,
    /// Servers that have not answered at all.
    silent: usize,
}

impl ParameterServer {
    /// Wraps a model, as [`crate::DataParallel::new`] does, with a server on every rank, or on the last ones alone.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] if the row is another, options do not fit, or parameters are not f32 or not kept where they are
    /// computed with; [`ShardingError::Codec`] if weights share a scale in chunks of none; [`ShardingError::ModelsDiffer`]; and
    /// those of communication.
    pub fn new(
        store: &ParamStore,
        comm: Communicator,
        strategy: Strategy,
        options: &Options,
        sync: SyncOptions,
    ) -> Result<Arc<Self>> {
        let Synchrony::Servers(pace) = strategy.synchrony else {
            return Err(ShardingError::strategy(strategy.name, "has no servers"));
        };
        options.codec.as_ref().map_or(Ok(()), |codec| strategy.encodes_by(&**codec, options.codec_scope))?;
        let encoding = Encoding::of(options)?;
        let (overlap, options) = (options.overlap, sync);
        options.check(&strategy)?;
        let places = Places::new(comm.world_size(), options.servers, strategy.name)?;
        let together = pace == ServerPace::Together;
        let mail = part(&comm, 0)?;
        let rank = mail.rank();
        let replica = match places.is_worker(rank) {
            true => Replica::new(store, comm, strategy.name)?,
            false => Replica::empty(store, comm, strategy.name)?,
        };
        let own = places.server_on(rank);
        let server_params = server_params(&replica, own, places)?;
        let pace = (options.bound(pace), together);
        let settings = (options.clone(), encoding.clone());
        let server = own.map(|_| Server::new(&server_params, places, pace, settings, mail.clone()));
        let pusher = pusher(&replica, &encoding, overlap, (&mail, places))?;
        let state = Mutex::new(WorkerState::new(places.servers));
        let this = Self {
            replica,
            strategy,
            together,
            options,
            places,
            server_params,
            server,
            encoding,
            pusher,
            mail,
            state,
        };
        this.broadcast_state(store)?;
        if let Some(server) = &this.server {
            server.start()?;
        }
        Ok(Arc::new(this))
    }

    /// Begins a step with gradients of zero.
    ///
    /// # Errors
    /// [`ShardingError::Step`] if a step is open.
    pub fn begin_step(&self) -> Result<StepGuard<'_>> {
        StepGuard::begin(self)
    }

    fn state(&self) -> MutexGuard<'_, WorkerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if this rank trains, and does not only serve.
    fn works(&self) -> bool {
        self.places.is_worker(self.mail.rank())
    }

    /// Waits until the pushes of all workers are used. Every rank calls this at the same place.
    fn quiesce(&self, state: &mut WorkerState) -> Result<()> {
        if self.works() {
            self.receive(state, |_| true)?;
            self.tell(state, &Message::of(Kind::Fence, 0))?;
            for _ in 0..self.places.servers {
                let (server, message) = self.answer(state)?;
                if message.kind != Kind::Done {
                    let said = message.kind;
                    let problem =
                        format!("server {server} says {said:?} where it was asked whether it is done");
                    return Err(ShardingError::state(self.strategy.name, problem));
                }
            }
        }
        Ok(self.replica.comm.barrier("parameter servers")?)
    }

    /// Ends a step. A worker tells all servers; a rank that only serves allows its server to update.
    fn commit(&self, state: &mut WorkerState, rate: f64) -> Result<()> {
        if !self.works() {
            state.steps += 1;
            return self.server.as_ref().filter(|_| self.together).map_or(Ok(()), |server| server.agree());
        }
        if !self.together {
            self.push_rest(state)?;
        }
        let is_frozen = self.replica.trainable().any(|(_, param)| param.is_frozen());
        let bucket = usize::from(is_frozen);
        let commit = Message { bucket, rate, ..Message::of(Kind::Commit, state.attempt) };
        // A server that receives it may use the step, even if others do not receive it.
        state.made = Some((state.steps, std::mem::take(&mut state.left)));
        self.tell(state, &commit)?;
        state.used.iter_mut().for_each(|used| *used = used.saturating_sub(1));
        state.steps += 1;
        // Requests the values of the next step, unless the pull waits until it begins.
        if self.options.pull_ahead { self.ask(state, Kind::Pull) } else { Ok(()) }
    }

    /// Copies the servers' values to this rank's parameters.
    fn read(&self, state: &mut WorkerState) -> Result<()> {
        if !self.works() {
            return Ok(());
        }
        self.ask(state, Kind::Read)?;
        self.receive(state, |_| true)
    }
}

/// Returns the elements of each bucket that a server on this rank has, on the host.
fn server_params(replica: &Replica, server: Option<usize>, places: Places) -> Result<Vec<ParamBucket>> {
    let of = |param: &ParamBucket| {
        let server_param = param.empty_on_host();
        let server = server.filter(|_| param.trainable());
        server_param.set_owned(server.map_or(0..0, |server| range(param.len(), server, places.servers)))?;
        Ok(server_param)
    };
    replica.params.iter().map(of).collect()
}

/// Starts the background pushes of a worker whose gradients are encoded or on a device.
fn pusher(
    replica: &Replica,
    encoding: &Encoding,
    overlap: Overlap,
    (mail, places): (&Communicator, Places),
) -> Result<Option<Pusher>> {
    let on_device = replica.params.iter().any(|param| !param.device().is_host());
    if !places.is_worker(mail.rank()) || encoding.gradients.is_none() && !on_device {
        return Ok(None);
    }
    // A thread that waits for a device's gradients cannot enqueue the rest of backward.
    let background = on_device || overlap != Overlap::Never;
    Ok(Some(Pusher::start(encoding.gradients.clone(), background, (mail.clone(), places))?))
}

impl Drop for ParameterServer {
    /// Servers end when all workers have left.
    fn drop(&mut self) {
        if !self.works() {
            return;
        }
        let state = &mut *self.state();
        // In a broken world no rank waits for this.
        let _ = self.tell(state, &Message::of(Kind::Leave, 0));
    }
}

impl Listener for ParameterServer {
    fn before_forward(&self, block: &str) -> HookResult {
        let state = &mut *self.state();
        if state.coming.is_some() {
            let params = &self.replica.params;
            // Parameters outside of blocks may be used at any time.
            self.receive(state, |at| params[at].is_outside() || params[at].blocks().any(|of| of == block))?;
        }
        Ok(())
    }

    fn gradients_ready(&self, param: &ParamBucket) -> HookResult {
        let Some(at) = self.replica.complete(param)? else { return Ok(()) };
        if !self.options.push_late || self.together {
            self.push(&mut self.state(), at)?;
        }
        Ok(())
    }
}

impl ParallelStrategy for ParameterServer {
    fn params(&self) -> &[ParamBucket] {
        &self.server_params
    }

    fn gradients(&self) -> &[ParamBucket] {
        match (self.together, self.works()) {
            (true, _) => &self.server_params,
            (false, true) => &self.replica.params,
            // Clipping acts on the gradients that workers push.
            (false, false) => &[],
        }
    }

    fn begin(&self, _: &StepToken) -> Result<()> {
        self.replica.begin()?;
        let state = &mut *self.state();
        state.attempt += 1;
        state.pushed = vec![false; self.replica.params.len()];
        if !self.works() {
            return Ok(());
        }
        if let (Some(pusher), Some((_, left))) = (&self.pusher, state.made.take()) {
            pusher.keep(left);
        }
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
        if self.works() {
            // A rank without a forward pass still has a pull under way.
            self.receive(state, |_| true)?;
            if self.together {
                self.push_rest(state)?;
                self.tell(state, &Message::of(Kind::Pushed, state.attempt))?;
            }
        }
        let Some(server) = self.server.as_ref().filter(|_| self.together || !self.works()) else {
            return Ok(());
        };
        let begun = Instant::now();
        match self.together {
            true => server.wait_for_sum(state.attempt)?,
            false => server.wait_for_clocks(state.steps + 1)?,
        }
        state.waited += begun.elapsed();
        Ok(())
    }

    fn end(&self, _: &StepToken, completed: bool) {
        if !completed && self.works() {
            let state = &mut *self.state();
            // No message of this attempt may follow its cancellation. Send errors are reported elsewhere.
            let _ = self.wait_for_pushes(state);
            state.left.clear();
            let drop = Message::of(Kind::Drop, state.attempt);
            // Errors of a broken world are reported elsewhere.
            let _ = self.tell(state, &drop);
        }
        self.replica.end(completed);
    }

    fn update_with(&self, rule: &SharedUpdate, learning_rate: f64) -> Result<()> {
        // Without an earlier optimizer this one is registered.
        self.set_optimizer(rule)?;
        self.commit(&mut self.state(), learning_rate)
    }

    fn update(&self, change: &mut dyn FnMut(&[ParamBucket]) -> phalanx_tensor::Result<()>) -> Result<()> {
        let state = &mut *self.state();
        if self.replica.is_open() {
            if !self.together {
                let problem = "has servers that update for each push; give them the optimizer by `set_optimizer`, and end steps by \
                    `update_with`";
                return Err(ShardingError::strategy(self.strategy.name, problem));
            }
            // All gradients are summed, and the values stay until all ranks have ended the step.
            change(&self.server_params)?;
            return self.commit(state, f64::NAN);
        }
        self.quiesce(state)?;
        match &self.server {
            Some(server) => server.change(change)?,
            None => change(&self.server_params)?,
        }
        self.replica.comm.barrier("parameter servers")?;
        self.read(state)?;
        if self.encoding.values.is_some() {
            // The values that were read are exact; workers compute with pulled values.
            state.known.fill(NOTHING);
        }
        Ok(())
    }
}

impl RankCollectives for ParameterServer {
    fn sum_owned(&self, sums: &Array) -> Result<()> {
        if self.together && self.replica.ranks() > 1 {
            let sum = phalanx_collectives::ReduceOp::Sum;
            self.replica.comm.all_reduce(&mut InPlace::of(sums)?, sum)?;
        }
        Ok(())
    }

    fn any(&self, flag: &Array) -> Result<()> {
        self.replica.any(flag)
    }

    fn sum(&self, values: &mut [f64]) -> Result<()> {
        self.replica.sum(values)
    }

    fn batch_group(&self, _: usize) -> Result<Arc<dyn ProcessGroup>> {
        Ok(Replica::group())
    }
}

impl Residency for ParameterServer {
    fn unshard(&self) -> Result<()> {
        let state = &mut *self.state();
        self.quiesce(state)?;
        if !self.works() {
            return Ok(self.replica.comm.barrier("values of parameter servers")?);
        }
        if self.replica.keep_aside()? {
            let known = state.known.clone();
            self.read(state)?;
            // Restores the values that this rank computes with, whose version pulls are compared to.
            state.known = known;
            // The next step begins when all ranks have read.
            self.replica.comm.barrier("values of parameter servers")?;
        }
        Ok(())
    }

    fn reshard(&self) -> Result<()> {
        self.replica.show_own()
    }

    fn broadcast_state(&self, store: &ParamStore) -> Result<()> {
        self.begin_with(&mut self.state(), store)
    }

    fn broadcast_buffers(&self, store: &ParamStore) -> Result<()> {
        self.replica.broadcast_buffers(store)
    }
}

impl Resumable for ParameterServer {
    fn set_optimizer(&self, rule: &SharedUpdate) -> Result<()> {
        self.server.as_ref().map_or(Ok(()), |server| server.set_optimizer(rule))
    }

    fn own_state(&self) -> Result<Vec<(String, Vec<f32>)>> {
        let state = &mut *self.state();
        self.quiesce(state)?;
        let (version, clocks) = self.server.as_ref().map(|server| server.clocks()).unwrap_or_default();
        // The next step begins when all ranks have read their clocks.
        self.replica.comm.barrier("clocks of parameter servers")?;
        let numbers: Vec<u64> = [state.steps, version].into_iter().chain(clocks).collect();
        Ok(vec![("clock".to_owned(), whole(&numbers))])
    }

    fn load_own_state(&self, state: Vec<(String, Vec<f32>)>) -> Result<()> {
        self.state().loaded = Some(state).filter(|state| !state.is_empty());
        Ok(())
    }

    fn salvage(
        &self,
        steps: u64,
        change: &mut dyn FnMut(&[ParamBucket]) -> phalanx_tensor::Result<()>,
    ) -> Result<Option<OwnState>> {
        self.salvage_at(steps, change)
    }

    fn codec_state(&self) -> Result<CodecState> {
        let Some(pusher) = &self.pusher else { return Ok(CodecState::new()) };
        let state = self.state();
        pusher.state_with(state.made.as_ref().map_or(&[], |(_, left)| left.as_slice()))
    }

    fn load_codec_state(&self, state: CodecState) -> Result<()> {
        match &self.pusher {
            Some(pusher) => {
                self.state().made = None;
                pusher.load_state(state)
            }
            None => Ok(nothing_kept("none", &state)?),
        }
    }
}

impl Observed for ParameterServer {
    fn name(&self) -> &'static str {
        self.strategy.name
    }

    fn role(&self) -> ShardRole {
        let (shard, shards) = (self.replica.comm.rank(), self.replica.ranks());
        ShardRole {
            shard,
            shards,
            replica: 0,
            parameters: Partition::Replicated,
            optimizer: Partition::Sharded,
        }
    }

    fn step_reports(&self) -> StepReports {
        StepReports::Delayed
    }

    fn local_model(&self) -> LocalModel {
        LocalModel::Copy
    }

    fn bytes(&self) -> StateBytes {
        let [parameters, gradients] = self.replica.held();
        let synchrony = self.server.as_ref().map_or(0, |server| server.bytes()) + self.replica.kept_bytes();
        let codec = self.pusher.as_ref().map_or(0, Pusher::kept_bytes);
        StateBytes { parameters, gradients, synchrony, codec, ..StateBytes::default() }
    }

    fn stats(&self) -> CommStats {
        let state = self.state();
        let mail = CommStats {
            bytes_sent: state.bytes_sent,
            bytes_received: state.bytes_received,
            seconds_exposed: state.waited.as_secs_f64(),
            seconds_busy: state.waited.as_secs_f64(),
            ..CommStats::default()
        };
        let server = self.server.as_ref().map(|server| server.stats()).unwrap_or_default();
        self.replica.comm.stats() + mail + server
    }

    fn sync_stats(&self) -> SyncStats {
        let state = self.state();
        let seen = self.server.as_ref().map(|server| {
            server.look(|store| (store.staleness().clone(), store.leads().clone(), store.spread()))
        });
        let (staleness, leads, spread) = seen.unwrap_or_default();
        SyncStats {
            staleness,
            leads,
            spread,
            waited: state.waited,
            meetings: state.steps,
            ..SyncStats::default()
        }
    }
}

//! Gossip: every rank has its own parameters and averages them with a few neighbours, without a central rank.
//!
//! | row | with whom | a step is |
//! |---|---|---|
//! | `d-psgd` | all neighbours | xᵢ ← Σⱼ xⱼ/(d + 1) over itself and its d neighbours, plus what the optimizer adds at the old xᵢ (Lian et al. 2017) |
//! | `sgp` | one neighbour in turn | half of (xᵢ, wᵢ) goes to it, what came is added, and xᵢ/wᵢ is what is computed with (push-sum, Assran et al. 2019) |
//! | `ad-psgd` | a random neighbour | both become (xᵢ + xⱼ)/2 when the other answers, without waiting (Lian et al. 2018) |
//!
//! Messages leave when a step begins, so that they travel while gradients are computed. Each kind keeps the mean over the ranks
//! up to rounding; only the optimizer moves it. Each rank keeps its own optimizer state.
//!
//! Messages and averages are the host's, also where a device computes: after the optimizer's step values come to the host, which
//! averages them, and the averages go back.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod pairs;
mod rounds;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use phalanx_collectives::{CommStats, Communicator};
use phalanx_tensor::{Array, HookResult, Listener, ParamBucket, ParamStore, ProcessGroup};

use self::pairs::Pairs;
use self::rounds::Rounds;
use crate::asynchronous::replica::Replica;
use crate::mesh::part;
use crate::parallel::{
    LocalModel, Observed, OwnState, ParallelStrategy, RankCollectives, Residency, Resumable, SavedState,
    ShardRole, StateBytes, StepGuard, StepReports, StepToken, SyncStats, whole,
};
use crate::strategy::{GossipKind, Partition, Strategy, Synchrony};
use crate::synchrony::SyncOptions;
use crate::{Result, ShardingError};

/// A rank that averages with its neighbours. See the rows `d-psgd`, `ad-psgd` and `sgp`.
///
/// Between [`crate::Residency::unshard`] and [`crate::Residency::reshard`] its parameters are the mean over the ranks.
#[derive(Debug)]
pub struct Gossip {
    replica: Replica,
    strategy: Strategy,
    options: SyncOptions,
    exchange: Exchange,
    state: Mutex<State>,
}

/// The exchange between ranks.
#[derive(Debug)]
enum Exchange {
    Rounds(Mutex<Rounds>),
    Pairs(Arc<Pairs>),
}

#[derive(Debug, Default)]
struct State {
    steps: u64,
    consensus_distance: Option<f64>,
    loaded: Option<Vec<(String, Vec<f32>)>>,
}

impl Gossip {
    /// Wraps a model, as [`crate::DataParallel::new`] does.
    ///
    /// # Errors
    /// [`ShardingError::Strategy`] if the row is another, options do not fit, or parameters are not f32 or not kept where they are
    /// computed with; [`ShardingError::ModelsDiffer`]; and those of communication.
    pub fn new(
        store: &ParamStore,
        comm: Communicator,
        strategy: Strategy,
        options: SyncOptions,
    ) -> Result<Arc<Self>> {
        let Synchrony::Neighbours(kind) = strategy.synchrony else {
            return Err(ShardingError::strategy(strategy.name, "has no neighbours"));
        };
        options.check(&strategy)?;
        let mail = part(&comm, 0)?;
        let replica = Replica::exchanged_on_host(store, comm, strategy.name)?;
        let exchange = match kind {
            GossipKind::RandomNeighbour => Exchange::Pairs(Pairs::start(mail, &replica)?),
            GossipKind::AllNeighbours => Exchange::Rounds(Mutex::new(Rounds::new(mail, &options, false))),
            GossipKind::PushSum => Exchange::Rounds(Mutex::new(Rounds::new(mail, &options, true))),
        };
        let this = Self { replica, strategy, options, exchange, state: Mutex::default() };
        this.broadcast_state(store)?;
        Ok(Arc::new(this))
    }

    /// Begins a step with gradients of zero.
    ///
    /// # Errors
    /// [`ShardingError::Step`] if a step is open.
    pub fn begin_step(&self) -> Result<StepGuard<'_>> {
        StepGuard::begin(self)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no message is pending between ranks. Every rank calls this at the same place.
    fn settle(&self) -> Result<()> {
        if let Exchange::Pairs(pairs) = &self.exchange {
            pairs.settle()?;
            self.replica.comm.barrier("gossip")?;
        }
        Ok(())
    }

    /// Waits for pending messages, then copies the rank's parameters to the model. Every rank calls this at the same
    /// place.
    fn quiesce(&self) -> Result<()> {
        self.settle()?;
        match &self.exchange {
            Exchange::Pairs(pairs) => pairs.show(&self.replica),
            Exchange::Rounds(_) => Ok(()),
        }
    }
}

fn locked(rounds: &Mutex<Rounds>) -> MutexGuard<'_, Rounds> {
    rounds.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Gossip {
    /// The threads that answer end when all ranks have left.
    fn drop(&mut self) {
        if let Exchange::Pairs(pairs) = &self.exchange {
            pairs.leave();
        }
    }
}

impl Listener for Gossip {
    fn gradients_ready(&self, param: &ParamBucket) -> HookResult {
        self.replica.complete(param)?;
        Ok(())
    }
}

impl ParallelStrategy for Gossip {
    fn params(&self) -> &[ParamBucket] {
        &self.replica.params
    }

    fn begin(&self, _: &StepToken) -> Result<()> {
        self.replica.begin()?;
        let steps = self.state().steps;
        match &self.exchange {
            Exchange::Rounds(rounds) => locked(rounds).send(&self.replica, steps),
            Exchange::Pairs(pairs) => pairs.show(&self.replica),
        }
    }

    fn micro_batch(&self, _: &StepToken, more: bool) {
        self.replica.micro_batch(more);
    }

    fn reduce(&self, _: &StepToken) -> Result<()> {
        let steps = self.state().steps;
        let catch_up = self.options.catch_up.filter(|catch_up| steps < catch_up.until);
        let scale = catch_up.map_or(self.options.gradient_scale, |catch_up| catch_up.gradient_scale);
        self.replica.scale_gradients(scale)
    }

    fn end(&self, _: &StepToken, completed: bool) {
        self.replica.end(completed);
    }

    fn update(&self, change: &mut dyn FnMut(&[ParamBucket]) -> phalanx_tensor::Result<()>) -> Result<()> {
        if !self.replica.is_open() {
            self.quiesce()?;
            change(&self.replica.params)?;
            self.replica.refresh()?;
            match &self.exchange {
                Exchange::Rounds(rounds) => locked(rounds).take(&self.replica)?,
                Exchange::Pairs(pairs) => pairs.take(&self.replica)?,
            }
            return Ok(self.replica.comm.barrier("gossip")?);
        }
        let before = self.replica.all_values()?;
        change(&self.replica.params)?;
        self.replica.refresh()?;
        let state = &mut *self.state();
        // A step that does not end has changed nothing, so that those who are left can take it again.
        match &self.exchange {
            Exchange::Rounds(rounds) => {
                let mixed = locked(rounds).mix(&self.replica, &before, state.steps);
                mixed.or_else(|error| self.replica.put(&before).and(Err(error)))?;
            }
            Exchange::Pairs(pairs) => {
                pairs.add(&self.replica, &before, 1.0)?;
                let asked = pairs.ask(&self.replica, &self.options, state.steps);
                asked.or_else(|error| pairs.add(&self.replica, &before, -1.0).and(Err(error)))?;
            }
        }
        state.steps += 1;
        Ok(())
    }
}

impl RankCollectives for Gossip {
    fn sum_owned(&self, _: &Array) -> Result<()> {
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

impl Residency for Gossip {
    fn unshard(&self) -> Result<()> {
        self.quiesce()?;
        if let Some(distance) = self.replica.show_mean()? {
            self.state().consensus_distance = Some(distance);
        }
        Ok(())
    }

    fn reshard(&self) -> Result<()> {
        self.replica.show_own()
    }

    fn broadcast_state(&self, store: &ParamStore) -> Result<()> {
        // The model's parameters count, for example weights loaded from a checkpoint.
        self.settle()?;
        self.replica.broadcast_params()?;
        self.replica.broadcast_buffers(store)?;
        let state = &mut *self.state();
        let mut weight = 1.0;
        if let Some(loaded) = state.loaded.take() {
            let mut saved = SavedState::new(self.strategy.name, loaded);
            state.steps = saved.whole("clock")?.first().copied().unwrap_or(0);
            weight = saved.take("weight", 1)?[0];
            self.replica.load_own(&mut saved)?;
        }
        match &self.exchange {
            Exchange::Rounds(rounds) => locked(rounds).begin(&self.replica, weight)?,
            Exchange::Pairs(pairs) => pairs.take(&self.replica)?,
        }
        Ok(self.replica.comm.barrier("gossip")?)
    }

    fn broadcast_buffers(&self, store: &ParamStore) -> Result<()> {
        self.replica.broadcast_buffers(store)
    }
}

impl Resumable for Gossip {
    fn own_state(&self) -> Result<Vec<(String, Vec<f32>)>> {
        self.quiesce()?;
        let weight = match &self.exchange {
            Exchange::Rounds(rounds) => locked(rounds).weight(),
            Exchange::Pairs(_) => 1.0,
        };
        let mut saved =
            vec![("clock".to_owned(), whole(&[self.state().steps])), ("weight".to_owned(), vec![weight])];
        self.replica.save_own(&mut saved, |at| match &self.exchange {
            Exchange::Rounds(rounds) => locked(rounds).values(&self.replica, at),
            Exchange::Pairs(_) => self.replica.values(at),
        })?;
        Ok(saved)
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
        self.replica.show_own()?;
        if let Exchange::Pairs(pairs) = &self.exchange {
            pairs.show(&self.replica)?;
        }
        change(&self.replica.params)?;
        self.replica.refresh()?;
        // Push-sum restarts from the model's parameters: pending messages are lost, with their weights.
        let mut saved = vec![("clock".to_owned(), whole(&[steps])), ("weight".to_owned(), vec![1.0])];
        self.replica.save_own(&mut saved, |at| self.replica.values(at))?;
        Ok(Some(saved))
    }
}

impl Observed for Gossip {
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
            optimizer: Partition::Replicated,
        }
    }

    fn step_reports(&self) -> StepReports {
        StepReports::Delayed
    }

    fn local_model(&self) -> LocalModel {
        LocalModel::Own
    }

    fn bytes(&self) -> StateBytes {
        let [parameters, gradients] = self.replica.held();
        let own = match &self.exchange {
            Exchange::Rounds(rounds) => locked(rounds).bytes(),
            Exchange::Pairs(pairs) => pairs.bytes(),
        };
        StateBytes {
            parameters,
            gradients,
            synchrony: own + self.replica.kept_bytes(),
            ..StateBytes::default()
        }
    }

    fn stats(&self) -> CommStats {
        let mail = match &self.exchange {
            Exchange::Rounds(rounds) => locked(rounds).stats(),
            Exchange::Pairs(pairs) => pairs.stats(),
        };
        self.replica.comm.stats() + mail
    }

    fn sync_stats(&self) -> SyncStats {
        let (waited, meetings) = match &self.exchange {
            Exchange::Rounds(rounds) => locked(rounds).waited(),
            Exchange::Pairs(pairs) => (std::time::Duration::ZERO, pairs.answered()),
        };
        let consensus_distance = self.state().consensus_distance;
        SyncStats { waited, meetings, consensus_distance, ..SyncStats::default() }
    }
}

//! Everything that changes while training: networks with their optimizers, and the number of steps.

mod checkpoint;
mod copies;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use phalanx_sharding::{ParallelStrategy, ReducedStep, SyncStats};
use phalanx_tensor::{Context, Listener, LossFactor, TensorError};

use super::trainable::{DeferredResult, Trainable};
use crate::engine::distributed::{Distributed, Network, listener};
use crate::engine::observer::UpdateReport;
use crate::engine::training::{AnyTraining, Built, Phase, learnt_stores};
use crate::engine::{Plan, TrainError};
use phalanx_config::{Config, LoraConfig};
use phalanx_run::{AdaptersRecord, WeightsRecord};
use phalanx_weights::{HeadRule, WeightNames};

/// The networks of a training, their optimizers, and the number of steps done.
pub(in crate::engine::train_loop) struct TrainState {
    pub(super) training: Box<dyn AnyTraining>,
    /// The names of parameters in files of weights.
    names: WeightNames,
    /// Steps done.
    pub(super) step: u64,
    /// The networks that are trained, in the order of their registration.
    trainables: Vec<Trainable>,
    /// The networks that are not.
    frozen: Vec<Network>,
    phases: Vec<PhaseState>,
    listener: Option<Arc<dyn Listener>>,
    context: Arc<Context>,
    /// True if codec state is not read from checkpoints.
    forgets_codecs: bool,
    /// The step of the checkpoint whose optimizer state is not read.
    pub(super) reset_at: Option<u64>,
}

/// The networks and the steps of a phase.
struct PhaseState {
    /// The trainables that it updates, by index.
    updated: Vec<usize>,
    /// Prefixes of the names of all other parameters.
    constants: Arc<[String]>,
    /// The steps that have it, counted from 0.
    steps: Range<u64>,
}

/// Results of an update that are read one step late.
pub(super) struct PendingUpdate {
    trainable: usize,
    result: DeferredResult,
}

impl TrainState {
    /// Shares the networks of a training among the ranks and creates the optimizers.
    pub(super) fn new(
        config: &Config,
        built: Built,
        plan: &Plan,
        distributed: &Distributed,
        context: Arc<Context>,
        folder: &Path,
    ) -> Result<Self, TrainError> {
        let Built { training, mut networks, names } = built;
        for network in &mut networks {
            network.share(distributed, config, context.threads(), None)?;
        }
        let listener = listener(networks.iter());
        let (learnt, frozen): (Vec<_>, Vec<_>) = networks.into_iter().partition(Network::is_learnt);
        let phases = training.phases().into_iter().map(|phase| {
            let updated = (0..learnt.len()).filter(|at| phase.updates(learnt[*at].name())).collect();
            let constants = phase.constants(learnt.iter().chain(&frozen));
            PhaseState { updated, constants, steps: plan.steps(phase.span) }
        });
        let phases: Vec<PhaseState> = phases.collect();
        let trainables = learnt.into_iter().enumerate().map(|(at, network)| {
            let of = phases.iter().filter(|phase| phase.updated.contains(&at)).map(|phase| &phase.steps);
            // From the first step that changes it to the last.
            let steps = of.cloned().reduce(|all, more| all.start.min(more.start)..all.end.max(more.end));
            let files = (folder, distributed.rank());
            Trainable::new(config, network, plan, steps.unwrap_or(0..u64::MAX), context.clone(), files)
        });
        let trainables = trainables.collect::<Result<_, TrainError>>()?;
        let forgets_codecs = config.codec.reset;
        Ok(Self {
            training,
            names,
            step: 0,
            trainables,
            frozen,
            phases,
            listener,
            context,
            forgets_codecs,
            reset_at: None,
        })
    }

    /// Continues among the survivors of a broken world, each from its own state. Until step `until` they split the work as `ranks` ranks
    /// did; from then on they run all steps together. All survivors call this together.
    pub(super) fn continue_among_survivors(
        &mut self,
        distributed: &Distributed,
        config: &Config,
        until: u64,
        ranks: usize,
    ) -> Result<(), TrainError> {
        let threads = self.context.threads();
        for trainable in &mut self.trainables {
            trainable.continue_among_survivors(distributed, config, self.step, (until, ranks), threads)?;
        }
        for network in &mut self.frozen {
            network.share(distributed, config, threads, None)?;
        }
        self.listener =
            listener(self.trainables.iter().map(|trainable| &trainable.network).chain(&self.frozen));
        Ok(())
    }

    /// Reads the weights at `path` into the trained networks. All ranks call this together, and broadcast the state afterwards.
    pub(super) fn load_weights(&self, path: &Path, head: HeadRule) -> Result<WeightsRecord, TrainError> {
        Ok(phalanx_weights::load(path, &learnt_stores(self.networks()), &self.names, head)?)
    }

    /// Reads the adapters of `lora.from`. All ranks call this together, and broadcast the state afterwards.
    pub(super) fn load_adapters(&self, lora: &LoraConfig) -> Result<AdaptersRecord, TrainError> {
        Ok(phalanx_weights::load_adapters(lora, &learnt_stores(self.networks()), &self.names)?)
    }

    /// Freezes and unfreezes parameters for the next step. Returns a message if some are trained from that step on.
    pub(super) fn follow_freeze(&self) -> Option<String> {
        let begun: usize = self.trainables.iter().map(|trainable| trainable.follow_freeze(self.step)).sum();
        let parameters = if begun == 1 { "1 parameter" } else { &format!("{begun} parameters") };
        (begun > 0)
            .then(|| format!("optim.freeze ends: {parameters} are trained from step {} on", self.step + 1))
    }

    /// True if parameters are frozen in the next step that are trained later.
    pub(super) fn is_frozen(&self) -> bool {
        self.trainables.iter().any(Trainable::is_frozen)
    }

    /// All networks.
    pub(super) fn networks(&self) -> impl Iterator<Item = &Network> {
        self.trainables.iter().map(|trainable| &trainable.network).chain(&self.frozen)
    }

    /// The networks that a phase updates.
    pub(super) fn updated(&self, phase: usize) -> impl Iterator<Item = &Network> {
        self.phases[phase].updated.iter().map(|at| &self.trainables[*at].network)
    }

    /// The strategies of the networks that a phase updates.
    pub(super) fn strategies(&self, phase: usize) -> Result<Vec<Arc<dyn ParallelStrategy>>, TrainError> {
        self.updated(phase).map(|network| network.parallel().cloned()).collect()
    }

    /// True if ranks run every step together.
    pub(super) fn is_lockstep(&self) -> bool {
        self.networks().all(Network::is_lockstep)
    }

    /// The staleness of updates and the waiting of this rank; `None` in lockstep.
    pub(super) fn sync_stats(&self) -> Option<SyncStats> {
        self.networks().filter_map(Network::sync_stats).reduce(|sum, more| sum.and(&more))
    }

    /// The phases of the next step, in order.
    pub(super) fn due(&self) -> Vec<usize> {
        self.due_in(self.step)
    }

    /// The phases of a step, counted from 0, in order.
    pub(super) fn due_in(&self, step: u64) -> Vec<usize> {
        (0..self.phases.len()).filter(|phase| self.phases[*phase].steps.contains(&step)).collect()
    }

    /// The phases with these indices.
    pub(super) fn phases_at(&self, indices: &[usize]) -> Vec<&Phase> {
        let phases = self.training.phases();
        indices.iter().map(|phase| phases[*phase]).collect()
    }

    /// Prefixes of the names of parameters that are constants in a phase.
    pub(super) fn constants(&self, phase: usize) -> Arc<[String]> {
        self.phases[phase].constants.clone()
    }

    /// The number of parameters, frozen ones included.
    pub(super) fn num_parameters(&self) -> u64 {
        self.networks().map(|network| network.store().num_parameters() as u64).sum()
    }

    /// The listener of blocks and gradients.
    pub(super) fn listener(&self) -> Option<Arc<dyn Listener>> {
        self.listener.clone()
    }

    /// The loss scale of a phase.
    pub(super) fn loss_factor(&self, phase: usize) -> Result<LossFactor, TensorError> {
        let first = self.phases[phase].updated.first();
        first.map_or(Ok(LossFactor::default()), |at| self.trainables[*at].loss_factor())
    }

    /// Updates the networks of a phase by their gradients. Results that are not known yet are for [`TrainState::complete`].
    pub(super) fn update(
        &mut self,
        phase: usize,
        reduced: Vec<ReducedStep<'_>>,
        distributed: &Distributed,
    ) -> Result<Vec<(UpdateReport, Option<PendingUpdate>)>, TrainError> {
        let updated = &self.phases[phase].updated;
        // One loss has one scale.
        let first = updated.first().filter(|_| updated.len() > 1);
        let scale = first.map_or(Ok(None), |at| self.trainables[*at].loss_scale_progress())?;
        let mut reports = Vec::with_capacity(updated.len());
        for (at, reduced) in updated.iter().zip(reduced) {
            let trainable = &mut self.trainables[*at];
            trainable.share_loss_scale(scale.as_ref())?;
            let (report, result) = trainable.update(reduced, distributed, self.step, &self.context)?;
            reports.push((report, result.map(|result| PendingUpdate { trainable: *at, result })));
        }
        Ok(reports)
    }

    /// Waits for the results of an update and completes its report. `step` counts from 1.
    pub(super) fn complete(
        &mut self,
        report: &mut UpdateReport,
        update: PendingUpdate,
        step: u64,
        distributed: &Distributed,
    ) -> Result<(), TrainError> {
        self.trainables[update.trainable].complete(report, update.result, step, distributed)
    }

    /// Runs `work` with the averaged weights in place, if there are any, and all parameters gathered. Offloaded parameters stay on the
    /// host; passes then need [`TrainState::listener`]. All ranks call this together.
    pub(super) fn with_averages<R>(
        &mut self,
        work: impl FnOnce(&dyn AnyTraining) -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        self.swap()?;
        self.networks().filter(|network| !network.has_all_on_host()).try_for_each(Network::unshard)?;
        let result = work(&*self.training);
        self.networks().try_for_each(Network::reshard)?;
        self.swap()?;
        result
    }

    /// Runs `work` with the averaged weights in place, without gathering parameters before. All ranks must run the same blocks in the
    /// same order, with [`TrainState::listener`].
    pub(super) fn with_averages_by_block<R>(
        &mut self,
        work: impl FnOnce(&dyn AnyTraining) -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        self.swap()?;
        for network in self.networks().filter(|network| network.is_apart()) {
            network.unshard()?;
        }
        let result = work(&*self.training);
        // Frees blocks that were kept for a backward pass that does not come.
        self.networks().try_for_each(Network::reshard)?;
        self.swap()?;
        result
    }

    /// Frees the networks and their optimizers. The state is not used any more.
    pub(super) fn release(&mut self) {
        self.listener = None;
        self.trainables.clear();
        self.frozen.clear();
    }

    /// Exchanges weights and averages.
    fn swap(&mut self) -> Result<(), TrainError> {
        self.trainables.iter_mut().try_for_each(Trainable::swap_averages)
    }

    /// Bytes of parameters, of gradients, and of optimizer state (averages and codec state included) of this rank.
    pub(super) fn bytes(&self) -> [u64; 3] {
        let mut sum = [0; 3];
        for network in self.networks() {
            let bytes = network.bytes();
            sum[0] += bytes.parameters;
            sum[1] += bytes.gradients;
            sum[2] += bytes.codec + bytes.synchrony;
        }
        sum[2] += self.trainables.iter().map(|trainable| trainable.state_bytes() as u64).sum::<u64>();
        sum
    }
}

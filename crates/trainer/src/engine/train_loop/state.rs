//! Everything that changes while training, and how it is saved.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use phalanx_sharding::{LocalModel, ParallelStrategy, Partition, ReducedStep, ShardRole, SyncStats};
use phalanx_tensor::host::{HostSliceMut, with_host_bytes, with_host_slice_mut};
use phalanx_tensor::{Context, Listener, LossFactor, TensorError};
use serde_json::{Map, Value};

use super::replicas_check::Fingerprint;
use super::trainable::{Coming, Trainable, is_optimizers};
use crate::config::Config;
use crate::engine::checkpoint::{Cut, codec_file, codec_state, own_file, own_state};
use crate::engine::distributed::{Distributed, Network, listener};
use crate::engine::observer::UpdateReport;
use crate::engine::training::{AnyTraining, Built};
use crate::engine::{Plan, TrainError};
use phalanx_checkpoint::{Checkpoint, Held, HeldPiece, MODEL, NewFile, Reader};

/// The networks of a training, what changes with them, and how far they are.
pub(super) struct TrainState {
    pub(super) training: Box<dyn AnyTraining>,
    /// Steps done.
    pub(super) step: u64,
    /// Those that are learnt, in the order of their registration.
    trainables: Vec<Trainable>,
    /// Those that are not.
    frozen: Vec<Network>,
    phases: Vec<PhaseState>,
    listener: Option<Arc<dyn Listener>>,
    context: Arc<Context>,
    /// Whether what codecs have kept is left in checkpoints.
    forgets_codecs: bool,
}

/// What a phase changes, and when.
struct PhaseState {
    /// The trainables that it updates.
    updated: Vec<usize>,
    /// The starts of the names of all other parameters.
    constants: Arc<[String]>,
    /// The steps that have it.
    steps: Range<u64>,
}

/// What of an update comes later than its report.
pub(super) struct Later {
    trainable: usize,
    coming: Coming,
}

impl TrainState {
    /// Shares the networks of a training with the other ranks, and makes what goes with those that are learnt.
    pub(super) fn new(
        config: &Config,
        built: Built,
        plan: &Plan,
        distributed: &Distributed,
        context: Arc<Context>,
        folder: &Path,
    ) -> Result<Self, TrainError> {
        let Built { training, mut networks } = built;
        for network in &mut networks {
            network.share(distributed, config, context.threads(), None)?;
        }
        let listener = listener(networks.iter());
        let (learnt, frozen): (Vec<_>, Vec<_>) = networks.into_iter().partition(Network::is_learnt);
        let phases = training.phases().into_iter().map(|phase| {
            let updated = (0..learnt.len()).filter(|at| phase.updates(learnt[*at].name())).collect();
            let others = learnt.iter().filter(|network| !phase.updates(network.name())).chain(&frozen);
            let constants = others.map(|network| format!("{}.", network.name())).collect();
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
        Ok(Self { training, step: 0, trainables, frozen, phases, listener, context, forgets_codecs })
    }

    /// Goes on among those who are left of a world that is broken, each from what it has after its own steps. They take the steps
    /// from `until` on alike; before, the work is shared as it was among `ranks` ranks. All who are left call this at the same
    /// place.
    pub(super) fn go_on(
        &mut self,
        distributed: &Distributed,
        config: &Config,
        until: u64,
        ranks: usize,
    ) -> Result<(), TrainError> {
        let threads = self.context.threads();
        for trainable in &mut self.trainables {
            trainable.go_on(distributed, config, self.step, (until, ranks), threads)?;
        }
        for network in &mut self.frozen {
            network.share(distributed, config, threads, None)?;
        }
        self.listener =
            listener(self.trainables.iter().map(|trainable| &trainable.network).chain(&self.frozen));
        Ok(())
    }

    /// All networks.
    pub(super) fn networks(&self) -> impl Iterator<Item = &Network> {
        self.trainables.iter().map(|trainable| &trainable.network).chain(&self.frozen)
    }

    /// The networks that a phase updates.
    pub(super) fn updated(&self, phase: usize) -> impl Iterator<Item = &Network> {
        self.phases[phase].updated.iter().map(|at| &self.trainables[*at].network)
    }

    /// How the networks are trained that a phase updates.
    pub(super) fn strategies(&self, phase: usize) -> Result<Vec<Arc<dyn ParallelStrategy>>, TrainError> {
        self.updated(phase).map(|network| network.parallel().cloned()).collect()
    }

    /// Whether ranks take every step together.
    pub(super) fn is_lockstep(&self) -> bool {
        self.networks().all(Network::is_lockstep)
    }

    /// How stale changes were, and how long this rank has waited; `None` if ranks take every step together.
    pub(super) fn sync_stats(&self) -> Option<SyncStats> {
        self.networks().filter_map(Network::sync_stats).reduce(|sum, more| sum.and(&more))
    }

    /// The phases that the next step has, in order.
    pub(super) fn due(&self) -> Vec<usize> {
        self.due_in(self.step)
    }

    /// The phases that a step has, counted from 0, in order.
    pub(super) fn due_in(&self, step: u64) -> Vec<usize> {
        (0..self.phases.len()).filter(|phase| self.phases[*phase].steps.contains(&step)).collect()
    }

    /// How the names of parameters begin that are constants in a phase.
    pub(super) fn constants(&self, phase: usize) -> Arc<[String]> {
        self.phases[phase].constants.clone()
    }

    /// Numbers that are learnt or held fixed.
    pub(super) fn num_parameters(&self) -> u64 {
        self.networks().map(|network| network.store().num_parameters() as u64).sum()
    }

    /// Who is told about blocks and gradients.
    pub(super) fn listener(&self) -> Option<Arc<dyn Listener>> {
        self.listener.clone()
    }

    /// What the loss of a phase is multiplied by.
    pub(super) fn loss_factor(&self, phase: usize) -> Result<LossFactor, TensorError> {
        let first = self.phases[phase].updated.first();
        first.map_or(Ok(LossFactor::default()), |at| self.trainables[*at].loss_factor())
    }

    /// Changes the weights of the networks that a phase updates, by the gradients of each; what comes later than their reports is for
    /// [`TrainState::complete`].
    pub(super) fn update(
        &mut self,
        phase: usize,
        reduced: Vec<ReducedStep<'_>>,
        distributed: &Distributed,
    ) -> Result<Vec<(UpdateReport, Option<Later>)>, TrainError> {
        let updated = &self.phases[phase].updated;
        // One loss has one scale.
        let first = updated.first().filter(|_| updated.len() > 1);
        let scale = first.map_or(Ok(None), |at| self.trainables[*at].loss_scale_progress())?;
        let mut reports = Vec::with_capacity(updated.len());
        for (at, reduced) in updated.iter().zip(reduced) {
            let trainable = &mut self.trainables[*at];
            trainable.share_loss_scale(scale.as_ref())?;
            let (report, coming) = trainable.update(reduced, distributed, self.step, &self.context)?;
            reports.push((report, coming.map(|coming| Later { trainable: *at, coming })));
        }
        Ok(reports)
    }

    /// Completes the report of an update of step `step` (counted from 1) by what has come of it, for which this waits.
    pub(super) fn complete(
        &mut self,
        report: &mut UpdateReport,
        later: Later,
        step: u64,
        distributed: &Distributed,
    ) -> Result<(), TrainError> {
        self.trainables[later.trainable].complete(report, later.coming, step, distributed)
    }

    /// Runs `work` with the averaged weights in place, if there are any, all of them in this rank's memory: where that is the host's,
    /// for passes that listen ([`TrainState::listener`]). Every rank calls this at the same place.
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

    /// Runs `work` with the averaged weights in place and gathers nothing beforehand: whatever `work` runs, all ranks run the
    /// same blocks in the same order, and listen ([`TrainState::listener`]).
    pub(super) fn with_averages_by_block<R>(
        &mut self,
        work: impl FnOnce(&dyn AnyTraining) -> Result<R, TrainError>,
    ) -> Result<R, TrainError> {
        self.swap()?;
        for network in self.networks().filter(|network| network.is_apart()) {
            network.unshard()?;
        }
        let result = work(&*self.training);
        // A block that was kept for a backward that does not come leaves memory too.
        self.networks().try_for_each(Network::reshard)?;
        self.swap()?;
        result
    }

    /// Gives back what goes with sharing and training the networks. Nothing else is done with this state any more.
    pub(super) fn release(&mut self) {
        self.listener = None;
        self.trainables.clear();
        self.frozen.clear();
    }

    /// Copies what this rank has of everything that changes, into memory and without asking anybody: between two steps, in a world
    /// that may be broken.
    pub(super) fn held(&mut self) -> Result<Held, TrainError> {
        for trainable in &mut self.trainables {
            trainable.hide_averages()?;
        }
        let (mut cut, mut state) = (None, Map::new());
        for network in self.networks() {
            let role = network.role()?;
            // It has a copy of whatever others would save.
            let replicated =
                role.parameters == Partition::Replicated && role.optimizer == Partition::Replicated;
            let role = ShardRole { shard: 0, replica: 0, ..role };
            let cut = cut.get_or_insert_with(|| Cut::new(role));
            cut.learn_places(network.store(), network.parallel()?.params());
            match replicated {
                true => cut.whole_values(network.store())?,
                false => cut.own_values(network.store())?,
            }
        }
        let Some(mut cut) = cut else { return Ok(Held::default()) };
        for trainable in &self.trainables {
            let role = ShardRole { shard: 0, replica: 0, ..trainable.network.role()? };
            trainable.save(role, Ok, &mut cut, &mut state)?;
            state.insert("strategy".to_owned(), Value::from(trainable.network.parallel()?.name()));
        }
        let files = cut.files();
        let pieces = files.iter().flat_map(|file| &file.pieces).map(HeldPiece::copy);
        Ok(Held { step: self.step, state, pieces: pieces.collect::<Result<_, _>>()? })
    }

    /// The names of all parameters and buffers.
    pub(super) fn names(&self) -> Vec<String> {
        let stores = self.networks().map(Network::store);
        let of_store = |store: &phalanx_tensor::ParamStore| {
            let params = store.params().iter().map(|param| param.name().to_owned());
            params.chain(store.buffers().iter().map(|buffer| buffer.name().to_owned())).collect::<Vec<_>>()
        };
        stores.flat_map(of_store).collect()
    }

    /// Copies of all buffers, in order.
    pub(super) fn buffers(&self) -> Result<Vec<Tensor>, TrainError> {
        let buffers = self.networks().flat_map(|network| network.store().buffers());
        buffers.map(|buffer| Ok(buffer.to_host()?.copy().map_err(TensorError::from)?)).collect()
    }

    /// Puts copies of all buffers back.
    pub(super) fn set_buffers(&self, copies: &[Tensor]) -> Result<(), TrainError> {
        let buffers = self.networks().flat_map(|network| network.store().buffers());
        buffers.zip(copies).try_for_each(|(buffer, copy)| Ok(buffer.set(copy)?))
    }

    /// Exchanges weights and averages.
    fn swap(&mut self) -> Result<(), TrainError> {
        self.trainables.iter_mut().try_for_each(Trainable::swap_averages)
    }

    /// Bytes of parameters, of gradients, and of optimizer state (averages, and what codecs of gradients keep,
    /// included) that are held.
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

    /// Which shard is this rank's, and the hashes of what other ranks hold alike; of statistics of synchronised batch norm too, if they
    /// are `alike`. Every rank calls this at the same place.
    pub(super) fn fingerprints(&self, alike: bool) -> Result<(usize, Vec<Fingerprint>), TrainError> {
        let role = self.trainables[0].network.role()?;
        let mut all = Vec::new();
        let mut add = |kind: &str, name: String, is_whole: bool, values: &Tensor| {
            let hash = with_host_bytes(values, |bytes| blake3::hash(bytes).to_hex().to_string())?;
            all.push(Fingerprint { kind: kind.to_owned(), name, is_whole, hash });
            Ok::<_, TrainError>(())
        };
        for network in self.networks() {
            let replicated = role.parameters != Partition::Sharded && !network.has_all_on_host();
            if replicated {
                network.unshard()?;
            }
            for param in network.parallel()?.params() {
                let Some((values, entries)) = param.kept() else { continue };
                let (is_whole, values) = (values.len() == param.len(), values.to_host()?);
                for entry in entries {
                    let (start, len) = (entry.range.start, entry.range.len());
                    let part = values.narrow(0, start, len).map_err(TensorError::from)?;
                    add(MODEL, entry.name, is_whole, &part)?;
                }
            }
            if replicated {
                network.reshard()?;
            }
            for buffer in network.store().buffers().iter().filter(|buffer| alike && buffer.is_shared()) {
                add(MODEL, buffer.name().to_owned(), true, &buffer.to_host()?)?;
            }
        }
        if role.optimizer != Partition::Root {
            let is_whole = role.optimizer == Partition::Replicated;
            for trainable in &self.trainables {
                for (key, values) in trainable.named_state()? {
                    let (kind, name) = key.split_once('.').unwrap_or(("", &key));
                    add(kind, name.to_owned(), is_whole, &values)?;
                }
            }
        }
        Ok((role.shard, all))
    }

    /// Flips a bit of a parameter's first element that this rank has, where it lies, as if it had changed by itself; of the first
    /// parameter, if none is named.
    pub(super) fn flip(&self, named: Option<&str>, bit: u32) -> Result<(), TrainError> {
        for network in self.networks() {
            for param in network.parallel()?.params() {
                let Some((values, entries)) = param.kept() else { continue };
                let Some(entry) = entries.iter().find(|entry| named.is_none_or(|name| entry.name == name))
                else {
                    continue;
                };
                let host = values.to_host()?.copy().map_err(TensorError::from)?;
                let at = entry.range.start;
                with_host_slice_mut(&host, |slice| match slice {
                    HostSliceMut::F32(slice) => slice[at] = f32::from_bits(slice[at].to_bits() ^ (1 << bit)),
                    HostSliceMut::F64(slice) => slice[at] = f64::from_bits(slice[at].to_bits() ^ (1 << bit)),
                })?;
                tracing::warn!("chaos.flip has flipped bit {bit} of `{}`", entry.name);
                return Ok(values.put(&host)?);
            }
        }
        let name = named.unwrap_or("any parameter");
        Err(TrainError::Setup(format!("chaos.flip: this rank holds nothing of `{name}`")))
    }

    /// Copies what this rank has to write of a checkpoint, and adds to `state` what the index has to say. Every rank calls
    /// this at the same place.
    pub(super) fn parts(
        &self,
        distributed: &Distributed,
        state: &mut Map<String, Value>,
    ) -> Result<Vec<NewFile>, TrainError> {
        // All networks are shared alike.
        let role = self.trainables[0].network.role()?;
        let mut cut = Cut::new(role);
        for network in self.networks() {
            let store = network.store();
            cut.learn_places(store, network.parallel()?.params());
            // Parameters that are replicated may have to be brought together first, by all ranks.
            match role.parameters {
                Partition::Sharded => cut.own_values(store)?,
                Partition::Replicated | Partition::Root if network.has_all_on_host() => {
                    cut.whole_values(store)?;
                }
                Partition::Replicated | Partition::Root => {
                    network.unshard()?;
                    let copied = cut.whole_values(store);
                    network.reshard()?;
                    copied?;
                }
            }
        }
        for trainable in &self.trainables {
            trainable.save(role, |own| trainable.counts(distributed, own), &mut cut, state)?;
        }
        let mut kept = Vec::new();
        for network in self.networks() {
            kept.push((network.name(), network.parallel()?.codec_state()?));
        }
        let mut files = cut.files();
        files.extend(codec_file(kept, distributed.rank(), distributed.size())?);
        let mut own = Vec::new();
        for trainable in &self.trainables {
            let parallel = trainable.network.parallel()?;
            let mut kept =
                if parallel.local_model() == LocalModel::Own { trainable.own_state()? } else { Vec::new() };
            // Last, because after this nobody waits: where servers update, the next steps of others may change what is here.
            kept.extend(parallel.own_state()?);
            own.push((trainable.network.name(), kept));
        }
        files.extend(own_file(own, distributed.rank(), distributed.size())?);
        state.insert("strategy".to_owned(), Value::from(self.trainables[0].network.parallel()?.name()));
        Ok(files)
    }

    /// Goes on from a checkpoint, saved under whatever strategy by whatever number of ranks: reads what this rank holds, and
    /// nothing else. Returns how many bytes that were. Every rank calls this at the same place, and has the ranks' state
    /// made equal afterwards.
    pub(super) fn load(
        &mut self,
        distributed: &Distributed,
        checkpoint: &Checkpoint,
    ) -> Result<u64, TrainError> {
        self.load_from(distributed, &checkpoint.reader(), checkpoint.step(), checkpoint.state())
    }

    /// Goes on after step `step` from what a reader has, in files or in memory, and what the index says besides.
    pub(super) fn load_from(
        &mut self,
        distributed: &Distributed,
        reader: &Reader,
        step: u64,
        saved: &Map<String, Value>,
    ) -> Result<u64, TrainError> {
        reader.check_model(self.networks().map(Network::store))?;
        for network in self.networks() {
            reader.read_model(network.store())?;
            if !self.forgets_codecs {
                let kept = codec_state(reader, network.name(), distributed.rank(), distributed.size())?;
                network.parallel()?.load_codec_state(kept)?;
            }
        }
        let strategy = saved.get("strategy").and_then(Value::as_str);
        for trainable in &mut self.trainables {
            trainable.load((step, saved), reader)?;
            trainable.resume_at(step)?;
            // Whatever other strategies had besides is of no use to this one, which begins with the weights of all.
            if strategy == Some(trainable.network.parallel()?.name()) {
                let name = trainable.network.name();
                let own = own_state(reader, name, distributed.rank(), distributed.size())?;
                if own.is_empty() && trainable.network.parallel()?.local_model() == LocalModel::Own {
                    tracing::warn!(
                        "the checkpoint is of another number of ranks: what {} keeps between meetings begins anew, and all ranks begin \
                         with the weights and the optimizer's state of rank 0",
                        trainable.network.parallel()?.name()
                    );
                }
                trainable.load_own_state(&own)?;
                let of_strategy = own.into_iter().filter(|(name, _)| !is_optimizers(name)).collect();
                trainable.network.parallel()?.load_own_state(of_strategy)?;
            }
        }
        self.step = step;
        Ok(reader.bytes_read())
    }
}

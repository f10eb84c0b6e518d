//! Copies, hashes and faults of the state in memory.

use std::collections::{BTreeMap, BTreeSet};

use candle_core::Tensor;
use phalanx_checkpoint::{MODEL, SnapshotPiece, StateSnapshot};
use phalanx_sharding::{Partition, ShardRole};
use phalanx_tensor::host::{HostSliceMut, with_host_bytes, with_host_slice_mut};
use phalanx_tensor::{Buffer, Param, ParamStore, TensorError, TensorRank};
use serde_json::{Map, Value};

use super::TrainState;
use crate::engine::TrainError;
use crate::engine::checkpoint::CheckpointParts;
use crate::engine::distributed::{Distributed, Network, StageRank};
use crate::engine::train_loop::replica_check::{Fingerprint, HeldPart};

/// The stages of the model that hold what this rank holds.
struct HoldingStages<'a> {
    /// By parameter that several stages hold, these.
    shared: BTreeMap<&'a str, &'a [usize]>,
    own: StageRank,
}

impl<'a> HoldingStages<'a> {
    fn of(params: impl Iterator<Item = &'a Param>, own: StageRank) -> Self {
        let shared = params.filter(|param| !param.stages().is_empty());
        Self { shared: shared.map(|param| (param.name(), param.stages())).collect(), own }
    }

    /// Returns the stages that hold a parameter or a buffer; none if the model has no stages.
    fn of_name(&self, name: &str) -> Vec<usize> {
        match (self.shared.get(name), self.own.ranks) {
            (Some(stages), _) => stages.to_vec(),
            (None, 1) => Vec::new(),
            (None, _) => vec![self.own.rank],
        }
    }
}

impl TrainState {
    /// Copies the state of this rank to memory, between two steps and without communication: the world may be broken.
    pub(in crate::engine::train_loop) fn snapshot(&mut self) -> Result<StateSnapshot, TrainError> {
        for trainable in &mut self.trainables {
            trainable.hide_averages()?;
        }
        let (mut parts, mut state) = (None, Map::new());
        for network in self.networks() {
            let role = network.role()?;
            // This rank has a copy of everything that others would save.
            let replicated =
                role.parameters == Partition::Replicated && role.optimizer == Partition::Replicated;
            let role = ShardRole { shard: 0, replica: 0, ..role };
            let parts =
                parts.get_or_insert_with(|| CheckpointParts::new(role, TensorRank::ALONE, StageRank::ALONE));
            parts.set_shapes(network.store(), network.parallel()?.params());
            match replicated {
                true => parts.add_whole_values(network.store())?,
                false => parts.add_own_values(network.store())?,
            }
        }
        let Some(mut parts) = parts else { return Ok(StateSnapshot::default()) };
        for trainable in &self.trainables {
            let role = ShardRole { shard: 0, replica: 0, ..trainable.network.role()? };
            trainable.save(role, Ok, &mut parts, &mut state)?;
            state.insert("strategy".to_owned(), Value::from(trainable.network.parallel()?.name()));
        }
        let files = parts.files();
        let pieces = files.iter().flat_map(|file| &file.pieces).map(SnapshotPiece::copy);
        Ok(StateSnapshot { step: self.step, state, pieces: pieces.collect::<Result<_, _>>()? })
    }

    /// The names of all parameters and buffers.
    pub(in crate::engine::train_loop) fn names(&self) -> Vec<String> {
        let stores = self.networks().map(Network::store);
        let of_store = |store: &ParamStore| {
            let params = store.params().iter().map(|param| param.name().to_owned());
            params.chain(store.buffers().iter().map(|buffer| buffer.name().to_owned())).collect::<Vec<_>>()
        };
        stores.flat_map(of_store).collect()
    }

    /// Copies all buffers, in order.
    pub(in crate::engine::train_loop) fn buffers(&self) -> Result<Vec<Tensor>, TrainError> {
        let buffers = self.networks().flat_map(|network| network.store().buffers());
        buffers.map(|buffer| Ok(buffer.to_host()?.copy().map_err(TensorError::from)?)).collect()
    }

    /// Restores all buffers from copies.
    pub(in crate::engine::train_loop) fn set_buffers(&self, copies: &[Tensor]) -> Result<(), TrainError> {
        let buffers = self.networks().flat_map(|network| network.store().buffers());
        buffers.zip(copies).try_for_each(|(buffer, copy)| Ok(buffer.set(copy)?))
    }

    /// Returns the hashes of everything that other ranks hold alike. `buffers` includes the statistics of synchronised batch norm. All
    /// ranks call this together.
    pub(in crate::engine::train_loop) fn fingerprints(
        &self,
        distributed: &Distributed,
        buffers: bool,
    ) -> Result<Vec<Fingerprint>, TrainError> {
        let role = self.trainables[0].network.role()?;
        let stores = || self.networks().map(Network::store);
        let params = stores().flat_map(ParamStore::params);
        let params = params.filter(|param| param.portion().is_some()).map(Param::name);
        let held = stores().flat_map(ParamStore::buffers);
        let held = held.filter(|buffer| buffer.portion().is_some()).map(Buffer::name);
        let cut: BTreeSet<&str> = params.chain(held).collect();
        let stages = HoldingStages::of(stores().flat_map(ParamStore::params), distributed.stage_rank());
        let mut all = Vec::new();
        let mut add = |kind: &str, name: String, is_whole: bool, values: &Tensor| {
            let hash = with_host_bytes(values, |bytes| blake3::hash(bytes).to_hex().to_string())?;
            let shard = (!is_whole).then_some(role.shard);
            let portion = cut.contains(name.as_str()).then(|| distributed.tensor_rank().rank);
            let part = HeldPart { stages: stages.of_name(&name), shard, portion };
            all.push(Fingerprint { kind: kind.to_owned(), name, part, hash });
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
            for buffer in network.store().buffers().iter().filter(|buffer| buffers && buffer.is_shared()) {
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
        Ok(all)
    }

    /// Flips a bit of the first element that this rank holds of a parameter, as a memory error would; of the first parameter if none is
    /// named.
    pub(in crate::engine::train_loop) fn flip(
        &self,
        named: Option<&str>,
        bit: u32,
    ) -> Result<(), TrainError> {
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
}

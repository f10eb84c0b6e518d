//! The part of a checkpoint that one rank writes: copies of tensors, sorted into files.

use std::collections::BTreeMap;

use candle_core::Tensor;
use phalanx_sharding::{Partition, ShardRole};
use phalanx_tensor::{ParamBucket, ParamStore, TensorError};

use crate::engine::error::TrainError;
use phalanx_checkpoint::{EMA, MODEL, NewFile, NewPiece};

/// Sorts tensors into files: whole tensors into a file for each kind, shards into the rank's own file.
pub(in crate::engine) struct CheckpointParts {
    role: ShardRole,
    /// The shapes of parameters, and the first elements that this rank owns.
    params: BTreeMap<String, OwnedPart>,
    files: BTreeMap<String, Vec<NewPiece>>,
}

/// The shape of a parameter, and the first element that this rank owns.
struct OwnedPart {
    shape: Vec<usize>,
    start: usize,
}

impl CheckpointParts {
    /// Creates the empty part of a rank with this role.
    pub(in crate::engine) fn new(role: ShardRole) -> Self {
        Self { role, params: BTreeMap::new(), files: BTreeMap::new() }
    }

    /// Records the shapes of a network's parameters, and the elements that this rank owns: those that it updates.
    pub(in crate::engine) fn set_shapes(&mut self, store: &ParamStore, updated: &[ParamBucket]) {
        let owned = updated.iter().flat_map(ParamBucket::owned_entries);
        let starts: BTreeMap<String, usize> = owned.map(|entry| (entry.name, entry.part.start)).collect();
        let place = |param: &phalanx_tensor::Param| {
            let start = starts.get(param.name()).copied().unwrap_or(0);
            (param.name().to_owned(), OwnedPart { shape: param.shape().dims().to_vec(), start })
        };
        self.params.extend(store.params().iter().map(place));
    }

    /// Adds all parameters and buffers, if this rank saves them.
    pub(in crate::engine) fn add_whole_values(&mut self, store: &ParamStore) -> Result<(), TrainError> {
        if self.role.saves(Partition::Replicated) {
            for (name, tensor) in store.state_dict()? {
                self.put(Partition::Replicated, MODEL, name, tensor, 0);
            }
        }
        Ok(())
    }

    /// Adds this rank's shards of parameters, and buffers if this rank saves them.
    pub(in crate::engine) fn add_own_values(&mut self, store: &ParamStore) -> Result<(), TrainError> {
        if self.role.saves(Partition::Sharded) {
            for param in store.buckets() {
                let Some(values) = param.owned_values()? else { continue };
                for entry in param.owned_entries() {
                    let part = values.narrow(entry.range)?.copy()?.to_host()?;
                    self.put(Partition::Sharded, MODEL, entry.name, part, entry.part.start);
                }
            }
        }
        if self.role.saves(Partition::Replicated) {
            for buffer in store.buffers() {
                let value = buffer.to_host()?.copy().map_err(TensorError::from)?;
                self.put(Partition::Sharded, MODEL, buffer.name().to_owned(), value, 0);
            }
        }
        Ok(())
    }

    /// Adds optimizer state or averages of the owned elements, named `{kind}.{parameter}`.
    pub(in crate::engine) fn add_state(&mut self, named: Vec<(String, Tensor)>) {
        for (key, tensor) in named {
            let (kind, name) = key.split_once('.').unwrap_or(("", &key));
            let start = self.params.get(name).map_or(0, |part| part.start);
            self.put(self.role.optimizer, kind, name.to_owned(), tensor, start);
        }
    }

    fn put(&mut self, layout: Partition, kind: &str, name: String, values: Tensor, start: usize) {
        let ShardRole { shard, shards, .. } = self.role;
        let (file, key) = match (layout, kind) {
            (Partition::Sharded, _) => (format!("rank-{shard:05}-of-{shards:05}"), format!("{kind}.{name}")),
            // PyTorch finds its own names there.
            (_, MODEL) => ("model".to_owned(), name.clone()),
            (_, EMA) => ("ema".to_owned(), format!("{kind}.{name}")),
            _ => ("optimizer".to_owned(), format!("{kind}.{name}")),
        };
        let shape = self.params.get(&name).map_or_else(|| values.dims().to_vec(), |part| part.shape.clone());
        let region = (start..start + values.elem_count()).into();
        let piece = NewPiece { kind: kind.to_owned(), name, shape, region, key, values };
        self.files.entry(format!("{file}.safetensors")).or_default().push(piece);
    }

    /// Returns the files.
    pub(in crate::engine) fn files(self) -> Vec<NewFile> {
        self.files.into_iter().map(|(name, pieces)| NewFile { name, pieces }).collect()
    }
}

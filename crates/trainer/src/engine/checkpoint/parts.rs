//! What one rank writes of a checkpoint: copies of its parts, sorted into files.

use std::collections::BTreeMap;

use candle_core::Tensor;
use phalanx_sharding::{Partition, ShardRole};
use phalanx_tensor::{ParamBucket, ParamStore, TensorError};

use crate::engine::error::TrainError;
use phalanx_checkpoint::{EMA, MODEL, NewFile, NewPiece};

/// Sorts parts into files: whole tensors into one for each kind of thing, shards into the rank's own.
pub(in crate::engine) struct Cut {
    role: ShardRole,
    /// By parameter: its shape, and the first element that this rank owns.
    params: BTreeMap<String, (Vec<usize>, usize)>,
    files: BTreeMap<String, Vec<NewPiece>>,
}

impl Cut {
    /// For a rank with this role.
    pub(in crate::engine) fn new(role: ShardRole) -> Self {
        Self { role, params: BTreeMap::new(), files: BTreeMap::new() }
    }

    /// Notes the shapes of a network's parameters and which elements of them this rank owns, as those say that it updates.
    pub(in crate::engine) fn learn_places(&mut self, store: &ParamStore, updated: &[ParamBucket]) {
        let owned = updated.iter().flat_map(ParamBucket::owned_entries);
        let starts: BTreeMap<String, usize> = owned.map(|entry| (entry.name, entry.part.start)).collect();
        let place = |param: &phalanx_tensor::Param| {
            let start = starts.get(param.name()).copied().unwrap_or(0);
            (param.name().to_owned(), (param.shape().dims().to_vec(), start))
        };
        self.params.extend(store.params().iter().map(place));
    }

    /// All parameters and buffers, if it falls to this rank to save them.
    pub(in crate::engine) fn whole_values(&mut self, store: &ParamStore) -> Result<(), TrainError> {
        if self.role.saves(Partition::Replicated) {
            for (name, tensor) in store.state_dict()? {
                self.put(Partition::Replicated, MODEL, name, tensor, 0);
            }
        }
        Ok(())
    }

    /// This rank's parts of parameters, and the buffers, if it falls to this rank to save them.
    pub(in crate::engine) fn own_values(&mut self, store: &ParamStore) -> Result<(), TrainError> {
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

    /// State of the optimizer or averages, as `{kind}.{parameter}`, which goes with the owned elements.
    pub(in crate::engine) fn state(&mut self, named: Vec<(String, Tensor)>) {
        for (key, tensor) in named {
            let (kind, name) = key.split_once('.').unwrap_or(("", &key));
            let start = self.params.get(name).map_or(0, |(_, start)| *start);
            self.put(self.role.optimizer, kind, name.to_owned(), tensor, start);
        }
    }

    fn put(&mut self, layout: Partition, kind: &str, name: String, values: Tensor, start: usize) {
        let ShardRole { shard, shards, .. } = self.role;
        let (file, key) = match (layout, kind) {
            (Partition::Sharded, _) => (format!("rank-{shard:05}-of-{shards:05}"), format!("{kind}.{name}")),
            // PyTorch is to find its own names there.
            (_, MODEL) => ("model".to_owned(), name.clone()),
            (_, EMA) => ("ema".to_owned(), format!("{kind}.{name}")),
            _ => ("optimizer".to_owned(), format!("{kind}.{name}")),
        };
        let shape = self.params.get(&name).map_or_else(|| values.dims().to_vec(), |(shape, _)| shape.clone());
        let region = (start..start + values.elem_count()).into();
        let piece = NewPiece { kind: kind.to_owned(), name, shape, region, key, values };
        self.files.entry(format!("{file}.safetensors")).or_default().push(piece);
    }

    /// The files.
    pub(in crate::engine) fn files(self) -> Vec<NewFile> {
        self.files.into_iter().map(|(name, pieces)| NewFile { name, pieces }).collect()
    }
}

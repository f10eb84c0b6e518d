//! The part of a checkpoint that one rank writes: copies of tensors, sorted into files.

use std::collections::BTreeMap;
use std::sync::Arc;

use candle_core::Tensor;
use phalanx_sharding::{Partition, ShardRole};
use phalanx_tensor::{Buffer, ParamBucket, ParamStore, Portion, PortionPiece, TensorError, TensorRank};

use crate::engine::distributed::StageRank;
use crate::engine::error::TrainError;
use phalanx_checkpoint::{EMA, MODEL, NewFile, NewPiece};

/// Sorts tensors into files: whole tensors into a file for each kind, shards into the rank's own file.
pub(in crate::engine) struct CheckpointParts {
    role: ShardRole,
    /// This rank among those that compute parts of the same layers.
    tensor: TensorRank,
    /// This rank along the pipeline.
    stage: StageRank,
    /// The shapes of parameters and cut buffers, and the first elements that this rank owns.
    params: BTreeMap<String, OwnedPart>,
    files: BTreeMap<String, Vec<NewPiece>>,
}

/// The shape of a whole parameter or buffer, and the first element that this rank owns of it, or of its portion.
struct OwnedPart {
    shape: Vec<usize>,
    portion: Option<Arc<Portion>>,
    start: usize,
    /// False if an earlier stage has it, too, and saves it.
    is_saved: bool,
}

impl CheckpointParts {
    /// Creates the empty part of a rank with this role.
    pub(in crate::engine) fn new(role: ShardRole, tensor: TensorRank, stage: StageRank) -> Self {
        Self { role, tensor, stage, params: BTreeMap::new(), files: BTreeMap::new() }
    }

    /// Records the shapes of a network's parameters and cut buffers, and the elements that this rank owns: those that it updates.
    pub(in crate::engine) fn set_shapes(&mut self, store: &ParamStore, updated: &[ParamBucket]) {
        let owned = updated.iter().flat_map(ParamBucket::owned_entries);
        let starts: BTreeMap<String, usize> = owned.map(|entry| (entry.name, entry.part.start)).collect();
        let is_saved = |stages: &[usize]| stages.first().is_none_or(|first| *first == self.stage.rank);
        let place = |param: &phalanx_tensor::Param| {
            let start = starts.get(param.name()).copied().unwrap_or(0);
            let shape = param.whole_shape().dims().to_vec();
            let is_saved = is_saved(param.stages());
            (param.name().to_owned(), OwnedPart { shape, portion: param.portion().cloned(), start, is_saved })
        };
        let params: Vec<_> = store.params().iter().map(place).collect();
        let apart = |buffer: &&Buffer| buffer.portion().is_some() || !buffer.stages().is_empty();
        let place = |buffer: &Buffer| {
            let (shape, portion) = (buffer.whole_shape().dims().to_vec(), buffer.portion().cloned());
            let is_saved = is_saved(buffer.stages());
            (buffer.name().to_owned(), OwnedPart { shape, portion, start: 0, is_saved })
        };
        let buffers: Vec<_> = store.buffers().iter().filter(apart).map(place).collect();
        self.params.extend(params.into_iter().chain(buffers));
    }

    /// Adds all parameters and buffers, if this rank saves them.
    pub(in crate::engine) fn add_whole_values(&mut self, store: &ParamStore) -> Result<(), TrainError> {
        if self.role.saves(Partition::Replicated) {
            for (name, tensor) in store.state_dict()? {
                self.put(Partition::Replicated, MODEL, &name, tensor, 0)?;
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
                    self.put(Partition::Sharded, MODEL, &entry.name, part, entry.part.start)?;
                }
            }
        }
        if self.role.saves(Partition::Replicated) {
            for buffer in store.buffers() {
                let value = buffer.to_host()?.copy().map_err(TensorError::from)?;
                self.put(Partition::Sharded, MODEL, buffer.name(), value, 0)?;
            }
        }
        Ok(())
    }

    /// Adds optimizer state or averages of the owned elements, named `{kind}.{parameter}`.
    pub(in crate::engine) fn add_state(&mut self, named: Vec<(String, Tensor)>) -> Result<(), TrainError> {
        for (key, tensor) in named {
            let (kind, name) = key.split_once('.').unwrap_or(("", &key));
            let start = self.params.get(name).map_or(0, |part| part.start);
            self.put(self.role.optimizer, kind, name, tensor, start)?;
        }
        Ok(())
    }

    /// Adds elements of a tensor from `start` on, of the whole one or of this rank's portion of it. Of ranks that compute parts of the
    /// same layers, the first one saves what is not cut.
    fn put(
        &mut self,
        layout: Partition,
        kind: &str,
        name: &str,
        values: Tensor,
        start: usize,
    ) -> Result<(), TrainError> {
        let ShardRole { shard, shards, .. } = self.role;
        let TensorRank { rank, ranks } = self.tensor;
        let of_portion = if ranks > 1 { format!("-tensor-{rank:05}-of-{ranks:05}") } else { String::new() };
        let of_stage = match self.stage {
            StageRank { ranks: 1, .. } => String::new(),
            StageRank { rank, ranks } => format!("-stage-{rank:05}-of-{ranks:05}"),
        };
        let (file, key) = match (layout, kind) {
            (Partition::Sharded, _) => (format!("rank-{shard:05}-of-{shards:05}"), format!("{kind}.{name}")),
            // PyTorch finds its own names there.
            (_, MODEL) => ("model".to_owned(), name.to_owned()),
            (_, EMA) => ("ema".to_owned(), format!("{kind}.{name}")),
            _ => ("optimizer".to_owned(), format!("{kind}.{name}")),
        };
        let own = self.params.get(name);
        if own.is_some_and(|own| !own.is_saved) {
            return Ok(());
        }
        let shape = own.map_or_else(|| values.dims().to_vec(), |part| part.shape.clone());
        let new = |region, key, values| {
            let (kind, name, shape) = (kind.to_owned(), name.to_owned(), shape.clone());
            NewPiece { kind, name, shape, region, key, values }
        };
        let end = start + values.elem_count();
        let pieces = match own.and_then(|own| own.portion.as_ref()) {
            None if rank > 0 => return Ok(()),
            None => vec![new((start..end).into(), key, values)],
            Some(portion) => {
                let flat = values.flatten_all().map_err(TensorError::from)?;
                let mut pieces = Vec::new();
                for (index, piece) in portion.pieces(start..end).into_iter().enumerate() {
                    let key = if index == 0 { key.clone() } else { format!("{key}#{index}") };
                    let values = gathered(&flat, start, &piece).map_err(TensorError::from)?;
                    pieces.push(new(piece.whole.into(), key, values));
                }
                pieces
            }
        };
        self.files.entry(format!("{file}{of_stage}{of_portion}.safetensors")).or_default().extend(pieces);
        Ok(())
    }

    /// Returns the files.
    pub(in crate::engine) fn files(self) -> Vec<NewFile> {
        self.files.into_iter().map(|(name, pieces)| NewFile { name, pieces }).collect()
    }
}

/// Copies a piece of a portion out of its elements from `start` on.
fn gathered(flat: &Tensor, start: usize, piece: &PortionPiece) -> candle_core::Result<Tensor> {
    let parts = piece.elements.iter().map(|elements| flat.narrow(0, elements.start - start, elements.len()));
    match parts.collect::<candle_core::Result<Vec<_>>>()?.as_slice() {
        [only] => only.force_contiguous(),
        several => Tensor::cat(several, 0),
    }
}

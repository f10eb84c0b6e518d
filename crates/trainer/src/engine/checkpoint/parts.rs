//! What one rank writes of a checkpoint: copies of its parts, sorted into files.

use std::collections::BTreeMap;

use candle_core::Tensor;
use phalanx_sharding::{Held, Share};
use phalanx_tensor::{ParamStore, TensorError, Unit};

use crate::engine::error::TrainError;
use crate::run::checkpoint::{EMA, MODEL, NewFile, NewPiece};

/// Sorts parts into files: whole tensors into one for each kind of thing, shards into the rank's own.
pub(in crate::engine) struct Cut {
    share: Share,
    /// By parameter: its shape, and the first element that is in this rank's unit.
    params: BTreeMap<String, (Vec<usize>, usize)>,
    files: BTreeMap<String, Vec<NewPiece>>,
}

impl Cut {
    /// For a rank that has this part in what is saved.
    pub(in crate::engine) fn new(share: Share) -> Self {
        Self { share, params: BTreeMap::new(), files: BTreeMap::new() }
    }

    /// Notes the shapes of a network's parameters and which elements of them are in `units`, on which the optimizer acts.
    pub(in crate::engine) fn learn_places(&mut self, store: &ParamStore, units: &[Unit]) {
        let starts: BTreeMap<&str, usize> = units
            .iter()
            .flat_map(Unit::entries)
            .map(|entry| (entry.name.as_str(), entry.part.start))
            .collect();
        let place = |param: &phalanx_tensor::Param| {
            let start = starts.get(param.name()).copied().unwrap_or(0);
            (param.name().to_owned(), (param.shape().dims().to_vec(), start))
        };
        self.params.extend(store.params().iter().map(place));
    }

    /// All parameters and buffers, if it falls to this rank to save them.
    pub(in crate::engine) fn whole_values(&mut self, store: &ParamStore) -> Result<(), TrainError> {
        if self.share.saves(Held::Replicated) {
            for (name, tensor) in store.state_dict()? {
                self.put(Held::Replicated, MODEL, name, tensor, 0);
            }
        }
        Ok(())
    }

    /// This rank's parts of parameters, and the buffers, if it falls to this rank to save them.
    pub(in crate::engine) fn own_values(
        &mut self,
        store: &ParamStore,
        units: &[Unit],
    ) -> Result<(), TrainError> {
        if self.share.saves(Held::Sharded) {
            for unit in units {
                let Some(values) = unit.values() else { continue };
                for entry in unit.entries() {
                    let part = values.narrow(0, entry.range.start, entry.range.len());
                    let part = part.and_then(|part| part.force_contiguous()).map_err(TensorError::from)?;
                    self.put(Held::Sharded, MODEL, entry.name.clone(), part, entry.part.start);
                }
            }
        }
        if self.share.saves(Held::Replicated) {
            for buffer in store.buffers() {
                let value = buffer.tensor().copy().map_err(TensorError::from)?;
                self.put(Held::Sharded, MODEL, buffer.name().to_owned(), value, 0);
            }
        }
        Ok(())
    }

    /// State of the optimizer or averages, as `{kind}.{parameter}`, which goes with the units.
    pub(in crate::engine) fn state(&mut self, named: Vec<(String, Tensor)>) {
        for (key, tensor) in named {
            let (kind, name) = key.split_once('.').unwrap_or(("", &key));
            let start = self.params.get(name).map_or(0, |(_, start)| *start);
            self.put(self.share.optimizer, kind, name.to_owned(), tensor, start);
        }
    }

    fn put(&mut self, held: Held, kind: &str, name: String, values: Tensor, start: usize) {
        let Share { shard, shards, .. } = self.share;
        let (file, key) = match (held, kind) {
            (Held::Sharded, _) => (format!("rank-{shard:05}-of-{shards:05}"), format!("{kind}.{name}")),
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

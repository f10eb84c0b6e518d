//! Parameters and buffers of a model: ordered, named as in the reference state dict, and laid out in buckets.
//!
//! Layers register their parameters in a [`Scope`]. [`StoreBuilder::build`] then lays them out in buckets
//! ([`ParamBucket`]) and fills them. A [`Param`] is a handle: it has a name, a shape and a location, and reads its
//! values from its bucket.

mod adapters;
mod bucket;
mod buffer;
mod builder;
mod cut;
mod flat_storage;
mod layout;
mod options;
mod param;
mod pattern;
mod rules;
mod scope;
mod spec;
mod state;

pub use adapters::{AdaptedLayer, AdapterRule};
pub use bucket::{GradState, ParamBucket, ParamState, UnreducedGrads};
pub use buffer::Buffer;
pub use builder::StoreBuilder;
pub use cut::{
    CutUnits, LayerCut, ParamLayout, ParamPlace, PlacedName, Portion, PortionPiece, StagePlace, TensorPlan,
    TensorRank, WholeElements,
};
pub use flat_storage::FlatStorage;
pub use layout::{BucketEntry, OwnedGroup, ParamGroup};
pub use options::BuildOptions;
pub use param::Param;
pub use pattern::NamePattern;
pub use rules::{ParamRules, RateRule};
pub use scope::Scope;
pub use state::LoadReport;

use std::collections::BTreeMap;

use crate::Key;
use crate::{Result, TensorError};

/// All parameters and buffers of one model.
#[derive(Debug)]
pub struct ParamStore {
    key: Key,
    params: Vec<Param>,
    buffers: Vec<Buffer>,
    buckets: Vec<ParamBucket>,
    by_name: BTreeMap<String, Entry>,
    adapted: Vec<AdaptedLayer>,
    elsewhere: scope::Elsewhere,
}

/// The parameter or buffer of a name.
#[derive(Debug, Clone, Copy)]
enum Entry {
    Param(usize),
    Buffer(usize),
}

impl ParamStore {
    /// The key of all initial values. A rank fills its shard from it alone ([`ParamBucket::initial_values`]).
    pub fn key(&self) -> Key {
        self.key
    }

    /// Parameters in registration order, which is the order of the reference state dict.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// All parameters of the model: this rank's, then those that only other stages of a pipeline hold, which have no values here.
    pub fn model_params(&self) -> impl Iterator<Item = &Param> {
        self.params.iter().chain(&self.elsewhere.params)
    }

    /// All buffers of the model: this rank's, then those that only other stages of a pipeline hold, whose values here count for nothing.
    pub fn model_buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.buffers.iter().chain(&self.elsewhere.buffers)
    }

    /// Buffers (running statistics and the like) in registration order.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// The buckets of the parameters, in the order of the model's forward pass. Collectives, optimizers, clipping and
    /// averages act on buckets.
    pub fn buckets(&self) -> &[ParamBucket] {
        &self.buckets
    }

    /// Returns the parameter called `name`.
    ///
    /// # Errors
    /// [`TensorError::UnknownName`] if there is none.
    pub fn param(&self, name: &str) -> Result<&Param> {
        match self.by_name.get(name) {
            Some(Entry::Param(index)) => Ok(&self.params[*index]),
            _ => Err(self.unknown(name)),
        }
    }

    /// Returns the buffer called `name`.
    ///
    /// # Errors
    /// [`TensorError::UnknownName`] if there is none.
    pub fn buffer(&self, name: &str) -> Result<&Buffer> {
        match self.by_name.get(name) {
            Some(Entry::Buffer(index)) => Ok(&self.buffers[*index]),
            _ => Err(self.unknown(name)),
        }
    }

    /// Names of all parameters and buffers, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(String::as_str)
    }

    /// The number of elements of all whole parameters of the model, frozen ones included, buffers not.
    pub fn num_parameters(&self) -> usize {
        self.model_params().map(|param| param.whole_shape().elem_count()).sum()
    }

    /// The layers that have adapters, in registration order.
    pub fn adapted_layers(&self) -> &[AdaptedLayer] {
        &self.adapted
    }

    /// The patterns of rules that match no parameter.
    pub fn unmatched<'r>(&self, rules: &'r ParamRules) -> Vec<&'r NamePattern> {
        let matches = |pattern: &NamePattern| {
            self.model_params().any(|param| rules.fits(pattern, param.name(), param.block()))
        };
        rules.patterns().filter(|pattern| !matches(pattern)).collect()
    }

    /// The patterns of layers with adapters that match no linear layer.
    pub fn unmatched_layers<'r>(&self, rules: &'r ParamRules) -> Vec<&'r NamePattern> {
        let matches = |pattern: &NamePattern| {
            self.adapted.iter().any(|layer| rules.names_layer(pattern, &layer.name, &layer.block))
        };
        let patterns = rules.adapters.iter().flat_map(|rule| &rule.layers);
        patterns.filter(|pattern| !matches(pattern)).collect()
    }

    /// Freezes or unfreezes all parameters of the model that are trained later ([`ParamBucket::set_frozen`]), also those that only other
    /// stages of a pipeline hold: whether a value has a gradient depends on them.
    pub fn set_frozen(&self, frozen: bool) {
        self.buckets.iter().for_each(|bucket| bucket.set_frozen(frozen));
        self.elsewhere.params.iter().for_each(|param| param.set_frozen_elsewhere(frozen));
    }

    /// Sets all gradients to zero; see [`ParamBucket::zero_grads`].
    pub fn zero_grads(&self) {
        self.buckets.iter().for_each(ParamBucket::zero_grads);
    }

    fn unknown(&self, name: &str) -> TensorError {
        let last = |s: &str| s.rsplit('.').next().unwrap_or_default().to_owned();
        let near = self.by_name.keys().find(|known| known.ends_with(name) || last(known) == last(name));
        let hint = near.map(|near| format!("; there is `{near}`")).unwrap_or_default();
        TensorError::UnknownName { name: name.to_owned(), hint }
    }
}

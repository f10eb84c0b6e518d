//! Parameters and buffers of a model: ordered, named as in the reference state dict, and laid out flat.
//!
//! Layers register what they need in a [`Scope`]; [`StoreBuilder::build`] then decides once how parameters lie in flat
//! memories ([`FlatParam`]), and fills them. A [`Param`] is a handle: it knows its name, its shape, and where it lies, and
//! asks its flat parameter for values whenever they are needed.

mod buffer;
mod builder;
mod flat_gradients;
mod flat_param;
mod flat_storage;
mod flat_values;
mod layout;
mod param;
mod state;
mod unreduced;

pub use buffer::Buffer;
pub use builder::{BuildOptions, Scope, StoreBuilder};
pub use flat_gradients::GradState;
pub use flat_param::FlatParam;
pub use flat_storage::FlatStorage;
pub use flat_values::ParamState;
pub use layout::{FlatEntry, ParamGroup};
pub use param::Param;
pub use state::LoadReport;
pub use unreduced::UnreducedGrads;

use std::collections::BTreeMap;

use crate::rng::Key;
use crate::{Result, TensorError};

/// All parameters and buffers of one model.
#[derive(Debug)]
pub struct ParamStore {
    key: Key,
    params: Vec<Param>,
    buffers: Vec<Buffer>,
    flat_params: Vec<FlatParam>,
    by_name: BTreeMap<String, Entry>,
}

/// Where a name leads.
#[derive(Debug, Clone, Copy)]
enum Entry {
    Param(usize),
    Buffer(usize),
}

impl ParamStore {
    /// The key that all initial values are drawn from: with it whoever holds a shard fills that alone
    /// ([`FlatParam::initial_values`]).
    pub fn key(&self) -> Key {
        self.key
    }

    /// Parameters in the order of their registration, which is the order of the reference state dict.
    pub fn params(&self) -> &[Param] {
        &self.params
    }

    /// Buffers (running statistics and the like) in the order of their registration.
    pub fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    /// The flat memories that the parameters lie in, in the order of the model's forward pass: what collectives move, and what
    /// optimizers, clipping and averages act on.
    pub fn flat_params(&self) -> &[FlatParam] {
        &self.flat_params
    }

    /// The parameter called `name`.
    ///
    /// # Errors
    /// [`TensorError::UnknownName`] if there is none.
    pub fn param(&self, name: &str) -> Result<&Param> {
        match self.by_name.get(name) {
            Some(Entry::Param(index)) => Ok(&self.params[*index]),
            _ => Err(self.unknown(name)),
        }
    }

    /// The buffer called `name`.
    ///
    /// # Errors
    /// [`TensorError::UnknownName`] if there is none.
    pub fn buffer(&self, name: &str) -> Result<&Buffer> {
        match self.by_name.get(name) {
            Some(Entry::Buffer(index)) => Ok(&self.buffers[*index]),
            _ => Err(self.unknown(name)),
        }
    }

    /// How many numbers the model learns or holds frozen, buffers not counted.
    pub fn num_parameters(&self) -> usize {
        self.params.iter().map(Param::elem_count).sum()
    }

    /// Makes all gradients zero; see [`FlatParam::zero_grads`].
    pub fn zero_grads(&self) {
        self.flat_params.iter().for_each(FlatParam::zero_grads);
    }

    fn unknown(&self, name: &str) -> TensorError {
        let last = |s: &str| s.rsplit('.').next().unwrap_or_default().to_owned();
        let near = self.by_name.keys().find(|known| known.ends_with(name) || last(known) == last(name));
        let hint = near.map(|near| format!("; there is `{near}`")).unwrap_or_default();
        TensorError::UnknownName { name: name.to_owned(), hint }
    }
}

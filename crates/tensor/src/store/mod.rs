//! Parameters and buffers of a model: ordered, named as in the reference state dict, and laid out flat.
//!
//! Layers register what they need in a [`Scope`]; [`StoreBuilder::build`] then lays all parameters of a block
//! out in one contiguous buffer, a [`Unit`], and fills it. A [`Param`] is a handle: it knows its name, its
//! shape, and where in its unit it lies, and asks the unit for its values whenever they are needed.

mod buffer;
mod builder;
mod param;
mod state;
mod unit;

pub use buffer::Buffer;
pub use builder::{BuildOptions, Scope, StoreBuilder};
pub use param::Param;
pub use state::LoadReport;
pub use unit::{Unit, UnitEntry};

use std::collections::BTreeMap;

use crate::rng::Key;
use crate::{Result, TensorError};

/// All parameters and buffers of one model.
#[derive(Debug)]
pub struct ParamStore {
    key: Key,
    params: Vec<Param>,
    buffers: Vec<Buffer>,
    units: Vec<Unit>,
    by_name: BTreeMap<String, Entry>,
}

/// Where a name leads.
#[derive(Debug, Clone, Copy)]
enum Entry {
    Param(usize),
    Buffer(usize),
}

impl ParamStore {
    /// The key that all initial values are drawn from: with it whoever holds a part of a unit fills that part alone
    /// ([`Unit::initial_values`]).
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

    /// Flat units in the order of the model's forward pass.
    pub fn units(&self) -> &[Unit] {
        &self.units
    }

    /// The units of one block.
    pub fn units_of_block<'a>(&'a self, block: &'a str) -> impl Iterator<Item = &'a Unit> {
        self.units.iter().filter(move |unit| unit.block() == block)
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

    /// Makes all gradients zero; see [`Unit::zero_grads`].
    pub fn zero_grads(&self) {
        self.units.iter().for_each(Unit::zero_grads);
    }

    fn unknown(&self, name: &str) -> TensorError {
        let last = |s: &str| s.rsplit('.').next().unwrap_or_default().to_owned();
        let near = self.by_name.keys().find(|known| known.ends_with(name) || last(known) == last(name));
        let hint = near.map(|near| format!("; there is `{near}`")).unwrap_or_default();
        TensorError::UnknownName { name: name.to_owned(), hint }
    }
}

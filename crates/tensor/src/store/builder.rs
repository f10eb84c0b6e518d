//! Registration: layers say what they need, then everything is laid out at once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use candle_core::{DType, Device, Shape, Tensor};

use super::unit::{UnitEntry, UnitKind};
use super::{Buffer, Entry, Param, ParamStore, Unit};
use crate::init::Init;
use crate::rng::Key;
use crate::{Result, TensorError};

/// How a store is laid out and filled.
#[derive(Debug, Clone)]
pub struct BuildOptions {
    /// The key that all initial values are drawn from.
    pub key: Key,
    /// The element type of parameters and floating-point buffers.
    pub dtype: DType,
    /// The device.
    pub device: Device,
    /// Whether parameters with fewer than two dimensions (norms and biases) go without weight decay.
    pub decay_matrices_only: bool,
    /// Whether to fill values now; otherwise units start without values, for somebody who holds shards.
    pub fill: bool,
    /// The parameters of a block are cut into several units, between parameters, so that none with more than one parameter
    /// has more bytes than this: what is moved or reduced at a time.
    pub unit_bytes: usize,
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self {
            key: Key::new(0),
            dtype: DType::F32,
            device: Device::Cpu,
            decay_matrices_only: false,
            fill: true,
            unit_bytes: usize::MAX,
        }
    }
}

#[derive(Debug, Default)]
struct Registry {
    params: Vec<(Param, String)>,
    buffers: Vec<Buffer>,
    by_name: BTreeMap<String, Entry>,
}

/// Collects a model's parameters and buffers.
///
/// ```
/// use phalanx_tensor::{BuildOptions, Init, StoreBuilder};
///
/// # fn main() -> Result<(), phalanx_tensor::TensorError> {
/// let builder = StoreBuilder::new(BuildOptions::default());
/// let head = builder.root().pp("head").block();
/// let weight = head.param("weight", (10, 4), Init::TorchDefault)?;
/// let store = builder.build()?;
/// assert_eq!(weight.name(), "head.weight");
/// assert_eq!(store.num_parameters(), 40);
/// assert_eq!(store.units()[0].block(), "head");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct StoreBuilder {
    options: BuildOptions,
    registry: Rc<RefCell<Registry>>,
}

impl StoreBuilder {
    /// An empty builder.
    pub fn new(options: BuildOptions) -> Self {
        Self { options, registry: Rc::default() }
    }

    /// The scope without a prefix.
    pub fn root(&self) -> Scope {
        Scope {
            registry: self.registry.clone(),
            dtype: self.options.dtype,
            device: self.options.device.clone(),
            prefix: String::new(),
            block: String::new(),
            trainable: true,
        }
    }

    /// Lays everything out, fills it, and returns the store.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn build(self) -> Result<ParamStore> {
        let registry = std::mem::take(&mut *self.registry.borrow_mut());
        let options = self.options;
        let mut kinds: Vec<(UnitKind, Vec<Param>)> = Vec::new();
        for (param, block) in &registry.params {
            let decay = !options.decay_matrices_only || param.dims().len() >= 2;
            let kind = UnitKind { block: block.clone(), trainable: param.trainable(), decay };
            let fits = |members: &[Param]| {
                let count = members.iter().map(Param::elem_count).sum::<usize>() + param.elem_count();
                count.saturating_mul(options.dtype.size_in_bytes()) <= options.unit_bytes
            };
            match kinds.iter_mut().rev().find(|(known, _)| *known == kind) {
                Some((_, members)) if fits(members) => members.push(param.clone()),
                _ => kinds.push((kind, vec![param.clone()])),
            }
        }
        let mut units = Vec::with_capacity(kinds.len());
        for (index, (kind, members)) in kinds.into_iter().enumerate() {
            let mut at = 0;
            let mut entries = Vec::with_capacity(members.len());
            for param in &members {
                let range = at..at + param.elem_count();
                at = range.end;
                let (name, shape) = (param.name().to_owned(), param.shape().clone());
                let part = 0..param.elem_count();
                entries.push(UnitEntry { name, shape, range, part, init: param.init() });
            }
            let unit = Unit::new(index, kind, options.dtype, options.device.clone(), entries);
            for (param, entry) in members.iter().zip(unit.entries()) {
                param.settle(unit.clone(), entry.range.clone());
            }
            if options.fill {
                unit.set_values(Some(unit.initial_values(options.key, 0..unit.len())?))?;
            }
            units.push(unit);
        }
        let params = registry.params.into_iter().map(|(param, _)| param).collect();
        Ok(ParamStore {
            key: options.key,
            params,
            buffers: registry.buffers,
            units,
            by_name: registry.by_name,
        })
    }
}

/// A place in the tree of names where a layer registers its parameters.
#[derive(Debug, Clone)]
pub struct Scope {
    registry: Rc<RefCell<Registry>>,
    dtype: DType,
    device: Device,
    prefix: String,
    block: String,
    trainable: bool,
}

impl Scope {
    /// The scope one level down, as in candle's `VarBuilder::pp`.
    #[must_use]
    pub fn pp(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: self.full(&name.to_string()), ..self.clone() }
    }

    /// Starts a block here, named by this scope's prefix: everything below belongs to it.
    #[must_use]
    pub fn block(&self) -> Self {
        Self { block: self.prefix.clone(), ..self.clone() }
    }

    /// Starts a block of another name here, for parameters whose reference names share no prefix of their own.
    #[must_use]
    pub fn block_named(&self, name: &str) -> Self {
        Self { block: self.full(name), ..self.clone() }
    }

    /// This place, with everything below held fixed: no gradients, no optimizer.
    #[must_use]
    pub fn frozen(&self) -> Self {
        Self { trainable: false, ..self.clone() }
    }

    /// The name of the block that parameters registered here belong to.
    pub fn block_name(&self) -> &str {
        &self.block
    }

    /// The element type of what is registered.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device of what is registered.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// The names' common start.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Registers a parameter.
    ///
    /// # Errors
    /// [`TensorError::DuplicateName`] if the name is taken.
    pub fn param(&self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Param> {
        let name = self.full(name);
        let mut registry = self.registry.borrow_mut();
        let entry = Entry::Param(registry.params.len());
        if registry.by_name.insert(name.clone(), entry).is_some() {
            return Err(TensorError::DuplicateName(name));
        }
        let param = Param::new(name, shape.into(), self.trainable, init);
        registry.params.push((param.clone(), self.block.clone()));
        Ok(param)
    }

    /// Registers a buffer of the store's element type, every element `value`.
    ///
    /// # Errors
    /// [`TensorError::DuplicateName`] if the name is taken.
    pub fn buffer(&self, name: &str, shape: impl Into<Shape>, value: f64) -> Result<Buffer> {
        let tensor = (Tensor::ones(shape, self.dtype, &self.device)? * value)?;
        self.register_buffer(name, tensor)
    }

    /// Registers a 64-bit integer counter, starting at zero, such as `num_batches_tracked`.
    ///
    /// # Errors
    /// [`TensorError::DuplicateName`] if the name is taken.
    pub fn counter(&self, name: &str) -> Result<Buffer> {
        self.register_buffer(name, Tensor::new(0_i64, &self.device)?)
    }

    fn register_buffer(&self, name: &str, value: Tensor) -> Result<Buffer> {
        let name = self.full(name);
        let mut registry = self.registry.borrow_mut();
        let entry = Entry::Buffer(registry.buffers.len());
        if registry.by_name.insert(name.clone(), entry).is_some() {
            return Err(TensorError::DuplicateName(name));
        }
        let buffer = Buffer::new(name, value);
        registry.buffers.push(buffer.clone());
        Ok(buffer)
    }

    fn full(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}.{name}", self.prefix) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_blocks_are_cut_between_parameters() {
        let lens = |unit_bytes: usize| {
            let builder = StoreBuilder::new(BuildOptions { unit_bytes, ..Default::default() });
            let block = builder.root().pp("a").block();
            for (name, len) in [("p", 3), ("q", 4), ("r", 20), ("s", 1), ("t", 2)] {
                block.param(name, len, Init::ZEROS).expect("a new name");
            }
            let store = builder.build().expect("small");
            assert_eq!(store.param("a.t").expect("known").tensor().expect("filled").dims(), [2]);
            store.units().iter().map(Unit::len).collect::<Vec<_>>()
        };
        assert_eq!(lens(usize::MAX), [30]);
        assert_eq!(lens(28), [7, 20, 3]);
        assert_eq!(lens(0), [3, 4, 20, 1, 2]);
    }
}

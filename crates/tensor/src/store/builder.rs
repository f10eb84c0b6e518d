//! Registration: layers say what they need, then everything is laid out at once.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use candle_core::{DType, Device, Shape, Tensor};

use super::layout::lay_out;
use super::{Buffer, Entry, FlatParam, Param, ParamStore};
use crate::backend::{Array, Place};
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
    /// Where parameters are computed with, and where buffers lie.
    pub place: Place,
    /// Whether parameters of blocks are kept on the host and brought to `place` before each use, by whoever shards them; what is
    /// filled is on the host then. Parameters outside of any block, whose uses nobody announces, stay at `place`.
    pub offload: bool,
    /// Whether parameters with fewer than two dimensions (norms and biases) go without weight decay.
    pub decay_matrices_only: bool,
    /// Whether to fill values now; otherwise there are none at first, for somebody who holds shards.
    pub fill: bool,
    /// The parameters of a block are cut into several groups, between parameters, so that none with more than one parameter
    /// has more bytes than this: what is moved or reduced at a time.
    pub unit_bytes: usize,
    /// Groups of parameters that follow each other share one flat memory, and so one message of every collective, until it has
    /// at least this many bytes. A message has a fixed cost; what is merged waits for each other. 0 gives every group memory
    /// of its own.
    pub bucket_bytes: usize,
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self {
            key: Key::new(0),
            dtype: DType::F32,
            place: Place::host(),
            offload: false,
            decay_matrices_only: false,
            fill: true,
            unit_bytes: usize::MAX,
            bucket_bytes: 1 << 20,
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
/// assert_eq!(store.flat_params()[0].groups()[0].block, "head");
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
            place: self.options.place.clone(),
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
        let mut flat_params = Vec::new();
        let mut settled =
            registry.params.iter().map(|(param, _)| (param.name(), param)).collect::<BTreeMap<_, _>>();
        for (index, layout) in lay_out(&registry.params, &options).into_iter().enumerate() {
            let announced = layout.groups.iter().any(|group| !group.block.is_empty());
            let home = if options.offload && announced { Place::host() } else { options.place.clone() };
            let flat = FlatParam::new(index, layout, (options.place.clone(), home));
            for (entry, of) in flat.entries().iter().enumerate() {
                if let Some(param) = settled.remove(of.name.as_str()) {
                    param.settle(flat.clone(), entry);
                }
            }
            if options.fill {
                flat.fill(flat.initial_values(options.key, 0..flat.len())?)?;
            }
            flat_params.push(flat);
        }
        let params = registry.params.into_iter().map(|(param, _)| param).collect();
        Ok(ParamStore {
            key: options.key,
            params,
            buffers: registry.buffers,
            flat_params,
            by_name: registry.by_name,
        })
    }
}

/// A place in the tree of names where a layer registers its parameters.
#[derive(Debug, Clone)]
pub struct Scope {
    registry: Rc<RefCell<Registry>>,
    dtype: DType,
    place: Place,
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

    /// Where what is registered lies.
    pub fn place(&self) -> &Place {
        &self.place
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
        self.register_buffer(name, self.place.full(value, shape, self.dtype)?, false)
    }

    /// Registers a buffer as [`Scope::buffer`] does, which all ranks that have samples of a step move alike, by what they know of
    /// the whole batch.
    ///
    /// # Errors
    /// [`TensorError::DuplicateName`] if the name is taken.
    pub fn shared_buffer(&self, name: &str, shape: impl Into<Shape>, value: f64) -> Result<Buffer> {
        self.register_buffer(name, self.place.full(value, shape, self.dtype)?, true)
    }

    /// Registers a 64-bit integer counter, starting at zero, such as `num_batches_tracked`.
    ///
    /// # Errors
    /// [`TensorError::DuplicateName`] if the name is taken.
    pub fn counter(&self, name: &str) -> Result<Buffer> {
        self.register_buffer(name, self.place.put(&Tensor::new(0_i64, &Device::Cpu)?)?, false)
    }

    fn register_buffer(&self, name: &str, value: Array, is_shared: bool) -> Result<Buffer> {
        let name = self.full(name);
        let mut registry = self.registry.borrow_mut();
        let entry = Entry::Buffer(registry.buffers.len());
        if registry.by_name.insert(name.clone(), entry).is_some() {
            return Err(TensorError::DuplicateName(name));
        }
        let buffer = Buffer::new(name, value, is_shared);
        registry.buffers.push(buffer.clone());
        Ok(buffer)
    }

    fn full(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}.{name}", self.prefix) }
    }
}

//! Registration of parameters and buffers by the layers of a model.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use candle_core::{DType, Device, Shape, Tensor};

use super::buffer::BufferPart;
use super::spec::{ParamKind, ParamSpec, Trained};
use super::{
    AdaptedLayer, AdapterRule, Buffer, BuildOptions, Entry, Param, ParamLayout, ParamPlace, ParamRules,
    PlacedName, Portion, StagePlace,
};
use crate::backend::ComputeDevice;
use crate::init::Init;
use crate::{Result, TensorError};

/// Everything registered so far.
#[derive(Debug, Default)]
pub(super) struct Registry {
    pub(super) params: Vec<Param>,
    pub(super) buffers: Vec<Buffer>,
    pub(super) by_name: BTreeMap<String, Entry>,
    pub(super) adapted: Vec<AdaptedLayer>,
    /// Parameters and buffers that only other stages of a pipeline hold.
    pub(super) elsewhere: Elsewhere,
}

/// Parameters and buffers that only other stages of a pipeline hold.
#[derive(Debug, Default)]
pub(super) struct Elsewhere {
    pub(super) params: Vec<Param>,
    pub(super) buffers: Vec<Buffer>,
    pub(super) names: BTreeSet<String>,
}

impl Registry {
    /// Refuses a name that is taken.
    fn check_new(&self, name: &str) -> Result<()> {
        match self.by_name.contains_key(name) || self.elsewhere.names.contains(name) {
            true => Err(TensorError::DuplicateName(name.to_owned())),
            false => Ok(()),
        }
    }
}

/// The part that a rank has of a parameter or a buffer.
struct OwnPart {
    shape: Shape,
    /// None if it is all.
    portion: Option<Arc<Portion>>,
    /// True if this rank counts it.
    counts: bool,
    stages: StagePlace,
}

/// A place in the tree of names where a layer registers its parameters.
#[derive(Debug, Clone)]
pub struct Scope {
    registry: Rc<RefCell<Registry>>,
    dtype: DType,
    device: ComputeDevice,
    prefix: String,
    block: String,
    trainable: bool,
    rules: Arc<ParamRules>,
    layout: Option<Arc<dyn ParamLayout>>,
}

impl Scope {
    /// Returns the scope without a prefix.
    pub(super) fn root(options: &BuildOptions, registry: Rc<RefCell<Registry>>) -> Self {
        Self {
            registry,
            dtype: options.dtype,
            device: options.device.clone(),
            prefix: String::new(),
            block: String::new(),
            trainable: true,
            rules: options.rules.clone(),
            layout: options.layout.clone(),
        }
    }

    /// Returns the scope one level down, as in candle's `VarBuilder::pp`.
    #[must_use]
    pub fn pp(&self, name: impl std::fmt::Display) -> Self {
        Self { prefix: self.full(&name.to_string()), ..self.clone() }
    }

    /// Starts a block named by this scope's prefix. All parameters below belong to it.
    #[must_use]
    pub fn block(&self) -> Self {
        Self { block: self.prefix.clone(), ..self.clone() }
    }

    /// Starts a block of another name, for parameters whose reference names share no prefix.
    #[must_use]
    pub fn block_named(&self, name: &str) -> Self {
        Self { block: self.full(name), ..self.clone() }
    }

    /// Returns this scope within a block that was begun elsewhere, by its [`Scope::block_name`]: for parameters that are
    /// used together with those of that block.
    #[must_use]
    pub fn in_block(&self, name: &str) -> Self {
        Self { block: name.to_owned(), ..self.clone() }
    }

    /// Freezes all parameters below: no gradients, no optimizer.
    #[must_use]
    pub fn frozen(&self) -> Self {
        Self { trainable: false, ..self.clone() }
    }

    /// The block of parameters registered here.
    pub fn block_name(&self) -> &str {
        &self.block
    }

    /// The element type of parameters and buffers.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The device of parameters and buffers.
    pub fn device(&self) -> &ComputeDevice {
        &self.device
    }

    /// The common prefix of names.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Registers a parameter.
    ///
    /// # Errors
    /// [`TensorError::DuplicateName`] if the name is taken.
    pub fn param(&self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Param> {
        self.register(name, shape.into(), init, ParamKind::Layer)
    }

    /// Registers a table: each row belongs to a token, a class or a position, and is looked up or the row of a head. Optimizers
    /// that turn matrices ([`crate::optim::Muon`]) leave it alone.
    ///
    /// # Errors
    /// [`TensorError::DuplicateName`] if the name is taken.
    pub fn table(&self, name: &str, shape: impl Into<Shape>, init: Init) -> Result<Param> {
        self.register(name, shape.into(), init, ParamKind::Table)
    }

    /// The rule of adapters, if the layer of this scope is to have one.
    pub(crate) fn adapter(&self) -> Option<&AdapterRule> {
        self.rules.adapter(&self.prefix, &self.block).filter(|_| self.trainable)
    }

    /// Registers the matrices A [r, I] and B [O, r] of an adapter of this scope's layer, of inputs and outputs.
    ///
    /// # Errors
    /// [`TensorError::DuplicateName`] if a name is taken.
    pub(crate) fn adapter_params(
        &self,
        rule: &AdapterRule,
        [inputs, outputs]: [usize; 2],
        inputs_first: bool,
    ) -> Result<[Param; 2]> {
        let rank = rule.rank;
        let a =
            self.register("lora_A.weight", (rank, inputs).into(), Init::TorchDefault, ParamKind::Adapter)?;
        let b = self.register("lora_B.weight", (outputs, rank).into(), Init::ZEROS, ParamKind::Adapter)?;
        let (name, block) = (self.prefix.clone(), self.block.clone());
        let layer = AdaptedLayer { name, block, inputs_first, scale: rule.scale() };
        self.registry.borrow_mut().adapted.push(layer);
        Ok([a, b])
    }

    fn register(&self, name: &str, shape: Shape, init: Init, kind: ParamKind) -> Result<Param> {
        let name = self.full(name);
        self.registry.borrow().check_new(&name)?;
        let is_frozen = self.trainable && self.rules.freezes(&name, &self.block);
        let is_replaced = self.trainable
            && kind != ParamKind::Adapter
            && self.rules.trains_adapters_alone(&name, &self.block);
        let trained = match (self.trainable && !is_replaced, is_frozen) {
            (true, false) => Trained::Always,
            (true, true) if self.rules.unfreezes => Trained::Later,
            _ => Trained::Never,
        };
        let is_frozen_by_rule = is_frozen || is_replaced;
        let block = self.block.clone();
        let rate = self.rules.rate(&name, &block);
        let of = PlacedName { name: &name, block: &block, is_buffer: false };
        let OwnPart { shape, portion, counts, stages: held } = self.own_part(of, shape)?;
        let stages = held.several();
        let spec = ParamSpec {
            name: name.clone(),
            block,
            shape,
            portion,
            counts,
            stages,
            trained,
            is_frozen_by_rule,
            rate,
            kind,
            init,
        };
        let param = Param::new(spec);
        let mut registry = self.registry.borrow_mut();
        if held == StagePlace::Elsewhere {
            registry.elsewhere.names.insert(name);
            registry.elsewhere.params.push(param.clone());
        } else {
            let entry = Entry::Param(registry.params.len());
            registry.by_name.insert(name, entry);
            registry.params.push(param.clone());
        }
        Ok(param)
    }

    /// Returns what this rank has of a parameter or a buffer of shape `whole`.
    fn own_part(&self, of: PlacedName<'_>, whole: Shape) -> Result<OwnPart> {
        let layout = self.layout.as_ref();
        let place = layout.map_or(Ok(ParamPlace::default()), |layout| layout.place(&of, &whole))?;
        let portion = place.portion.map(Arc::new);
        let shape = portion.as_ref().map_or(whole, |portion| portion.shape());
        Ok(OwnPart { shape, portion, counts: place.counts, stages: place.stages })
    }

    /// Registers a buffer of the store's element type, filled with `value`.
    ///
    /// # Errors
    /// [`TensorError::DuplicateName`] if the name is taken.
    pub fn buffer(&self, name: &str, shape: impl Into<Shape>, value: f64) -> Result<Buffer> {
        self.register_buffer(name, (shape.into(), value), false)
    }

    /// Registers a buffer as [`Scope::buffer`] does. All ranks with samples of a step update it identically, from
    /// values of the whole batch.
    ///
    /// # Errors
    /// [`TensorError::DuplicateName`] if the name is taken.
    pub fn shared_buffer(&self, name: &str, shape: impl Into<Shape>, value: f64) -> Result<Buffer> {
        self.register_buffer(name, (shape.into(), value), true)
    }

    /// Registers a 64-bit integer counter, starting at zero, such as `num_batches_tracked`.
    ///
    /// # Errors
    /// [`TensorError::DuplicateName`] if the name is taken.
    pub fn counter(&self, name: &str) -> Result<Buffer> {
        let name = self.full(name);
        let of = PlacedName { name: &name, block: &self.block, is_buffer: true };
        let OwnPart { stages, .. } = self.own_part(of, Shape::from(()))?;
        let value = self.device.put(&Tensor::new(0_i64, &Device::Cpu)?)?;
        let part = BufferPart { portion: None, stages: stages.several() };
        self.add_buffer(Buffer::new(name, value, part, false), &stages)
    }

    /// Registers a buffer with the portion that a rank has of its whole shape.
    fn register_buffer(&self, name: &str, (whole, value): (Shape, f64), is_shared: bool) -> Result<Buffer> {
        let name = self.full(name);
        let of = PlacedName { name: &name, block: &self.block, is_buffer: true };
        let OwnPart { shape, portion, stages, .. } = self.own_part(of, whole)?;
        let value = Tensor::full(value, shape, &Device::Cpu)?.to_dtype(self.dtype)?;
        let part = BufferPart { portion, stages: stages.several() };
        self.add_buffer(Buffer::new(name, self.device.put(&value)?, part, is_shared), &stages)
    }

    fn add_buffer(&self, buffer: Buffer, stages: &StagePlace) -> Result<Buffer> {
        let mut registry = self.registry.borrow_mut();
        let name = buffer.name().to_owned();
        registry.check_new(&name)?;
        if *stages == StagePlace::Elsewhere {
            registry.elsewhere.names.insert(name);
            registry.elsewhere.buffers.push(buffer.clone());
        } else {
            let entry = Entry::Buffer(registry.buffers.len());
            registry.by_name.insert(name, entry);
            registry.buffers.push(buffer.clone());
        }
        Ok(buffer)
    }

    fn full(&self, name: &str) -> String {
        if self.prefix.is_empty() { name.to_owned() } else { format!("{}.{name}", self.prefix) }
    }
}

//! A handle to one parameter: a name, a shape and a place in a flat unit.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use candle_core::{Shape, Tensor};

use super::unit::Unit;
use crate::backend::{Array, Destination};
use crate::init::Init;
use crate::{Context, Result, TensorError};

/// A parameter of a model. Clones are handles to the same parameter.
#[derive(Debug, Clone)]
pub struct Param(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    shape: Shape,
    trainable: bool,
    init: Init,
    place: OnceLock<(Unit, Range<usize>)>,
}

impl Param {
    pub(super) fn new(name: String, shape: Shape, trainable: bool, init: Init) -> Self {
        Self(Arc::new(Inner { name, shape, trainable, init, place: OnceLock::new() }))
    }

    pub(super) fn settle(&self, unit: Unit, range: Range<usize>) {
        // A builder is consumed by building, so this runs once a parameter.
        let _ = self.0.place.set((unit, range));
    }

    /// The name in the reference state dict.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.0.shape
    }

    /// The shape's sizes.
    pub fn dims(&self) -> &[usize] {
        self.0.shape.dims()
    }

    /// How many elements it has.
    pub fn elem_count(&self) -> usize {
        self.0.shape.elem_count()
    }

    /// Whether gradients are computed for it.
    pub fn trainable(&self) -> bool {
        self.0.trainable
    }

    /// How it is filled at the start.
    pub fn init(&self) -> Init {
        self.0.init
    }

    /// The flat unit that holds it.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] before the store is built.
    pub fn unit(&self) -> Result<&Unit> {
        Ok(&self.place()?.0)
    }

    /// Its elements' range in the unit.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] before the store is built.
    pub fn range(&self) -> Result<Range<usize>> {
        Ok(self.place()?.1.clone())
    }

    /// The current values, as a view into the unit: no copy is made.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] if the unit's values are not in memory.
    pub fn tensor(&self) -> Result<Tensor> {
        let (unit, range) = self.place()?;
        let Some(values) = unit.values() else {
            return Err(self.absent("its unit was released and not gathered again"));
        };
        Ok(values.narrow(0, range.start, range.len())?.reshape(self.shape())?)
    }

    /// The current values as an array: a view into the unit.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] if the unit's values are not in memory.
    pub fn array(&self) -> Result<Array> {
        Ok(self.tensor()?.into())
    }

    /// The accumulated gradient, as a view into the unit; `None` if none is allocated.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] before the store is built.
    pub fn grad(&self) -> Result<Option<Tensor>> {
        let (unit, range) = self.place()?;
        let Some(grads) = unit.grads()? else { return Ok(None) };
        Ok(Some(grads.narrow(0, range.start, range.len())?.reshape(self.shape())?))
    }

    /// Overwrites the values.
    ///
    /// # Errors
    /// If the shapes differ or the values are not in memory.
    pub fn set(&self, values: &Tensor) -> Result<()> {
        if values.shape() != self.shape() {
            return Err(TensorError::unequal("set parameter", self.shape(), values.shape()));
        }
        crate::storage::copy_in_place(&self.tensor()?, values)
    }

    /// Adds `grad` to the gradient in the unit.
    pub(crate) fn accumulate_grad(&self, context: &Context, grad: &Array) -> Result<()> {
        let backend = grad.backend(context);
        let Destination { array, add } = self.grad_destination()?;
        if add { backend.accumulate(&array, grad) } else { backend.copy(&array, grad) }
    }

    /// Where its gradient is to be written; see [`Unit::destination`].
    pub(crate) fn grad_destination(&self) -> Result<Destination> {
        let (unit, range) = self.place()?;
        let (to, add) = unit.destination(range.clone())?;
        Ok(Destination { array: to.into(), add })
    }

    fn place(&self) -> Result<&(Unit, Range<usize>)> {
        self.0.place.get().ok_or_else(|| self.absent("the store that it was registered in is not built yet"))
    }

    fn absent(&self, why: &'static str) -> TensorError {
        TensorError::NotResident { name: self.0.name.clone(), why }
    }
}

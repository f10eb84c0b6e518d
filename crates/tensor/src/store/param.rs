//! A handle to one parameter: a name, a shape and a place in flat memory.

use std::sync::{Arc, OnceLock};

use candle_core::{Shape, Tensor};

use super::FlatParam;
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
    /// The flat parameter, and the position of this one's entry in it.
    place: OnceLock<(FlatParam, usize)>,
}

impl Param {
    pub(super) fn new(name: String, shape: Shape, trainable: bool, init: Init) -> Self {
        Self(Arc::new(Inner { name, shape, trainable, init, place: OnceLock::new() }))
    }

    pub(super) fn settle(&self, flat: FlatParam, entry: usize) {
        // A builder is consumed by building, so this runs once a parameter.
        let _ = self.0.place.set((flat, entry));
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

    /// The flat parameter that it lies in.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] before the store is built.
    pub fn flat_param(&self) -> Result<&FlatParam> {
        Ok(&self.place()?.0)
    }

    /// The current values, as a view into flat memory: no copy is made.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] if they are not in memory, and [`TensorError::NotOnHost`] if that is a device's.
    pub fn tensor(&self) -> Result<Tensor> {
        self.array()?.host("`tensor` of a parameter").cloned()
    }

    /// The current values as an array: a view into flat memory.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] if they are not in memory.
    pub fn array(&self) -> Result<Array> {
        let (flat, entry) = self.place()?;
        let Some(values) = flat.values() else {
            return Err(self.absent("they were released and not gathered again"));
        };
        values.view(flat.entries()[*entry].range.clone(), self.shape())
    }

    /// The values on the host, as an independent copy, also where only memory that is kept between uses has all of them.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] if this rank does not have all of them.
    pub fn to_host(&self) -> Result<Tensor> {
        let (flat, entry) = self.place()?;
        let Some(values) = flat.whole_values() else {
            return Err(self.absent("this rank has a part of them, and the others were not gathered"));
        };
        let view = values.view(flat.entries()[*entry].range.clone(), self.shape())?;
        Ok(view.to_host()?.force_contiguous()?)
    }

    /// The accumulated gradient, as a view into flat memory; `None` if none is allocated.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] before the store is built, [`TensorError::FlatState`] while it is reduced, and
    /// [`TensorError::NotOnHost`] if it lies on a device.
    pub fn grad(&self) -> Result<Option<Tensor>> {
        let (flat, entry) = self.place()?;
        let Some(grads) = flat.grads()? else { return Ok(None) };
        let grad = grads.view(flat.entries()[*entry].range.clone(), self.shape())?;
        Ok(Some(grad.host("gradient of a parameter")?.clone()))
    }

    /// Overwrites the values.
    ///
    /// # Errors
    /// If the shapes differ or the values are not in memory.
    pub fn set(&self, values: &Tensor) -> Result<()> {
        if values.shape() != self.shape() {
            return Err(TensorError::unequal("set parameter", self.shape(), values.shape()));
        }
        let array = self.array()?;
        array.copy_from(&array.alongside(values)?)
    }

    /// Adds `grad` to the gradient.
    pub(crate) fn accumulate_grad(&self, context: &Context, grad: &Array) -> Result<()> {
        let backend = grad.backend(context);
        let (flat, entry) = self.place()?;
        let Destination { array, add } = flat.grad_destination(*entry)?;
        if add { backend.accumulate(&array, grad) } else { backend.copy(&array, grad) }
    }

    /// The flat parameter that it lies in, and which of the entries there it is.
    pub(crate) fn place(&self) -> Result<&(FlatParam, usize)> {
        self.0.place.get().ok_or_else(|| self.absent("the store that it was registered in is not built yet"))
    }

    fn absent(&self, why: &'static str) -> TensorError {
        TensorError::NotResident { name: self.0.name.clone(), why }
    }
}

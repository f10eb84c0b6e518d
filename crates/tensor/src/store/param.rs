//! A handle to one parameter: a name, a shape and a location in a bucket.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use candle_core::{Shape, Tensor};

use super::spec::{ParamKind, ParamSpec, Trained};
use super::{ParamBucket, Portion};
use crate::backend::{Array, Destination};
use crate::init::Init;
use crate::{Context, Result, TensorError};

/// A parameter of a model. Clones are handles to the same parameter.
#[derive(Debug, Clone)]
pub struct Param(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    spec: ParamSpec,
    /// The bucket, and the index of the parameter's entry in it.
    location: OnceLock<(ParamBucket, usize)>,
    /// True while a parameter that only other stages of a pipeline hold is frozen.
    is_frozen_elsewhere: AtomicBool,
}

impl Param {
    pub(super) fn new(spec: ParamSpec) -> Self {
        let is_frozen_elsewhere = AtomicBool::new(spec.trained != Trained::Always);
        Self(Arc::new(Inner { spec, location: OnceLock::new(), is_frozen_elsewhere }))
    }

    pub(super) fn spec(&self) -> &ParamSpec {
        &self.0.spec
    }

    pub(super) fn place_in(&self, bucket: ParamBucket, entry: usize) {
        // Building consumes the builder, so this runs once a parameter.
        let _ = self.0.location.set((bucket, entry));
    }

    /// The place of the parameter in memory, which no other one has while a handle to it exists.
    pub(crate) fn place(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// The name in the reference state dict.
    pub fn name(&self) -> &str {
        &self.0.spec.name
    }

    /// The portion that this rank holds, where layers are cut over ranks; `None` if it holds the whole parameter.
    pub fn portion(&self) -> Option<&Arc<Portion>> {
        self.0.spec.portion.as_ref()
    }

    /// The shape of the whole parameter.
    pub fn whole_shape(&self) -> &Shape {
        self.portion().map_or(self.shape(), |portion| portion.whole())
    }

    /// The shape, of the portion if layers are cut over ranks.
    pub fn shape(&self) -> &Shape {
        &self.0.spec.shape
    }

    /// The shape's sizes.
    pub fn dims(&self) -> &[usize] {
        self.0.spec.shape.dims()
    }

    /// The number of elements.
    pub fn elem_count(&self) -> usize {
        self.0.spec.shape.elem_count()
    }

    /// The stages of a pipeline that hold it, if there are several.
    pub fn stages(&self) -> &[usize] {
        &self.0.spec.stages
    }

    /// The block that it belongs to; empty outside of blocks.
    pub fn block(&self) -> &str {
        &self.0.spec.block
    }

    /// True if gradients are computed for it, at least later.
    pub fn trainable(&self) -> bool {
        self.0.spec.trained != Trained::Never
    }

    /// True if a rule of the store freezes it ([`super::ParamRules`]), for a time or for good.
    pub fn is_frozen_by_rule(&self) -> bool {
        self.0.spec.is_frozen_by_rule
    }

    /// True for a table; see [`super::Scope::table`].
    pub fn is_table(&self) -> bool {
        self.0.spec.kind == ParamKind::Table
    }

    /// True for a matrix of an adapter ([`super::AdapterRule`]).
    pub fn is_adapter(&self) -> bool {
        self.0.spec.kind == ParamKind::Adapter
    }

    /// True while it is a constant: no gradient is computed, and no update changes it. This is known of all parameters of a model,
    /// also of those that only other stages of a pipeline hold.
    pub fn is_frozen(&self) -> bool {
        match self.0.location.get() {
            Some((bucket, _)) => bucket.is_frozen(),
            None => self.0.is_frozen_elsewhere.load(Ordering::Relaxed),
        }
    }

    /// True if it is frozen at first and trained later.
    pub fn is_trained_later(&self) -> bool {
        self.0.spec.trained == Trained::Later
    }

    /// As [`ParamBucket::set_frozen`], of a parameter that only other stages hold.
    pub(super) fn set_frozen_elsewhere(&self, frozen: bool) {
        if self.is_trained_later() {
            self.0.is_frozen_elsewhere.store(frozen, Ordering::Relaxed);
        }
    }

    /// The initial distribution.
    pub fn init(&self) -> Init {
        self.0.spec.init
    }

    /// The parameter's bucket.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] before the store is built.
    pub fn bucket(&self) -> Result<&ParamBucket> {
        Ok(&self.location()?.0)
    }

    /// Returns the current values, as a view into flat memory, without a copy.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] if they are not in memory, and [`ArrayError::NotOnHost`](crate::ArrayError::NotOnHost) if that is a device's.
    pub fn tensor(&self) -> Result<Tensor> {
        Ok(self.array()?.host("`tensor` of a parameter").cloned()?)
    }

    /// Returns the current values as an array, a view into flat memory.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] if they are not in memory.
    pub fn array(&self) -> Result<Array> {
        let (bucket, entry) = self.location()?;
        let Some(values) = bucket.values() else {
            return Err(self.absent("they were released and not gathered again"));
        };
        values.view(bucket.entries()[*entry].range.clone(), self.shape())
    }

    /// Copies the values to the host, also if only the storage between uses has all of them.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] if this rank does not have all of them.
    pub fn to_host(&self) -> Result<Tensor> {
        let (bucket, entry) = self.location()?;
        let Some(values) = bucket.whole_values() else {
            return Err(self.absent("this rank has only its shard, and the others were not gathered"));
        };
        let view = values.view(bucket.entries()[*entry].range.clone(), self.shape())?;
        Ok(view.to_host()?.force_contiguous()?)
    }

    /// Returns the accumulated gradient, as a view into flat memory; `None` if none is allocated.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] before the store is built, [`TensorError::BucketState`] during its reduction, and
    /// [`ArrayError::NotOnHost`](crate::ArrayError::NotOnHost) if it is on a device.
    pub fn grad(&self) -> Result<Option<Tensor>> {
        let (bucket, entry) = self.location()?;
        let Some(grads) = bucket.grads()? else { return Ok(None) };
        let grad = grads.view(bucket.entries()[*entry].range.clone(), self.shape())?;
        Ok(Some(grad.host("gradient of a parameter")?.clone()))
    }

    /// Overwrites the values. Of a whole parameter the portion is cut out.
    ///
    /// # Errors
    /// If the shapes differ or the values are not in memory.
    pub fn set(&self, values: &Tensor) -> Result<()> {
        if let Some(portion) = self.portion().filter(|portion| portion.whole() == values.shape()) {
            let array = self.array()?;
            return Ok(array.copy_from(&array.alongside(&portion.cut(values)?)?)?);
        }
        if values.shape() != self.shape() {
            return Err(TensorError::unequal("set parameter", self.shape(), values.shape()));
        }
        let array = self.array()?;
        Ok(array.copy_from(&array.alongside(values)?)?)
    }

    /// Adds `grad` to the gradient.
    pub(crate) fn accumulate_grad(&self, context: &Context, grad: &Array) -> Result<()> {
        let backend = grad.backend(context);
        let (bucket, entry) = self.location()?;
        let Destination { array, add } = bucket.grad_destination(*entry)?;
        if add { Ok(backend.accumulate(&array, grad)?) } else { Ok(backend.copy(&array, grad)?) }
    }

    /// The bucket, and the index of the parameter's entry in it.
    pub(crate) fn location(&self) -> Result<&(ParamBucket, usize)> {
        self.0.location.get().ok_or_else(|| self.absent("its store is not built yet"))
    }

    fn absent(&self, why: &'static str) -> TensorError {
        TensorError::NotResident { name: self.0.spec.name.clone(), why }
    }
}

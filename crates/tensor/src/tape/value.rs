//! Values: what ops take and give.

use candle_core::{DType, Shape, Tensor};

use crate::store::Param;
use crate::{Result, TensorError};

/// A tensor in a computation, and where its gradient goes.
///
/// A value either holds a tensor or refers to a parameter, whose values it asks for when they are needed.
/// Values without a gradient ([`Value::constant`]) may be used on any tape; others only on the tape that
/// recorded them. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Value {
    source: Source,
    slot: Option<(u64, Slot)>,
}

/// The index of a gradient on its tape.
pub(crate) type Slot = usize;

#[derive(Debug, Clone)]
enum Source {
    Tensor(Tensor),
    Param(Param),
}

impl Value {
    /// A value that no gradient flows to: data, labels, masks.
    pub fn constant(tensor: Tensor) -> Self {
        Self { source: Source::Tensor(tensor), slot: None }
    }

    pub(super) fn recorded(tensor: Tensor, tape: u64, slot: Slot) -> Self {
        Self { source: Source::Tensor(tensor), slot: Some((tape, slot)) }
    }

    pub(super) fn of_param(param: Param, slot: Option<(u64, Slot)>) -> Self {
        Self { source: Source::Param(param), slot }
    }

    /// The tensor. For a parameter this is a view of its current values.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] for a parameter whose values are not in memory.
    pub fn tensor(&self) -> Result<Tensor> {
        match &self.source {
            Source::Tensor(tensor) => Ok(tensor.clone()),
            Source::Param(param) => param.tensor(),
        }
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        match &self.source {
            Source::Tensor(tensor) => tensor.shape(),
            Source::Param(param) => param.shape(),
        }
    }

    /// The shape's sizes.
    pub fn dims(&self) -> &[usize] {
        self.shape().dims()
    }

    /// The element type.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] for a parameter of a store that is not built.
    pub fn dtype(&self) -> Result<DType> {
        match &self.source {
            Source::Tensor(tensor) => Ok(tensor.dtype()),
            Source::Param(param) => Ok(param.flat_param()?.dtype()),
        }
    }

    /// Whether a gradient flows to this value.
    pub fn needs_grad(&self) -> bool {
        self.slot.is_some()
    }

    /// The same tensor, cut off: no gradient flows back through it.
    #[must_use]
    pub fn detach(&self) -> Self {
        Self { source: self.source.clone(), slot: None }
    }

    /// What a node keeps of this value for backward: a tensor, or just the handle of a parameter.
    pub fn save(&self) -> Saved {
        Saved(self.source.clone())
    }

    /// The slot on tape `id`, if a gradient is wanted.
    pub(super) fn slot_on(&self, id: u64, op: &'static str) -> Result<Option<Slot>> {
        match self.slot {
            None => Ok(None),
            Some((tape, slot)) if tape == id => Ok(Some(slot)),
            Some(_) => Err(TensorError::ForeignValue { op }),
        }
    }
}

/// Something kept from forward for backward. A parameter is kept as a handle, so that its values may be
/// released in between.
#[derive(Debug, Clone)]
pub struct Saved(Source);

impl Saved {
    /// Keeps a tensor.
    pub fn of(tensor: &Tensor) -> Self {
        Self(Source::Tensor(tensor.clone()))
    }

    /// The tensor.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] for a parameter whose values are not in memory.
    pub fn tensor(&self) -> Result<Tensor> {
        match &self.0 {
            Source::Tensor(tensor) => Ok(tensor.clone()),
            Source::Param(param) => param.tensor(),
        }
    }
}

//! Values: what ops take and give.

use candle_core::{DType, Device, Shape, Tensor};

use crate::backend::Array;
use crate::store::Param;
use crate::{Result, TensorError};

/// An array in a computation, and where its gradient goes.
///
/// A value either holds an array or refers to a parameter, whose values it asks for when they are needed.
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
    Array(Array),
    Param(Param),
}

impl Source {
    fn array(&self) -> Result<Array> {
        match self {
            Self::Array(array) => Ok(array.clone()),
            Self::Param(param) => param.array(),
        }
    }
}

impl Value {
    /// A value that no gradient flows to: data, labels, masks.
    pub fn constant(array: impl Into<Array>) -> Self {
        Self { source: Source::Array(array.into()), slot: None }
    }

    pub(super) fn recorded(array: Array, tape: u64, slot: Slot) -> Self {
        Self { source: Source::Array(array), slot: Some((tape, slot)) }
    }

    pub(super) fn of_param(param: Param, slot: Option<(u64, Slot)>) -> Self {
        Self { source: Source::Param(param), slot }
    }

    /// What an op takes in place of an input that it was not given: nothing, of which nothing depends.
    pub(crate) fn absent() -> Result<Self> {
        Ok(Self::constant(Tensor::zeros(0, DType::F32, &Device::Cpu)?))
    }

    /// The array. For a parameter this is a view of its current values.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] for a parameter whose values are not in memory.
    pub fn array(&self) -> Result<Array> {
        self.source.array()
    }

    /// The tensor of a value on the CPU. For a parameter this is a view of its current values.
    ///
    /// # Errors
    /// [`TensorError::NotOnHost`] for a value on a device, which [`Value::to_host`] copies, and
    /// [`TensorError::NotResident`] for a parameter whose values are not in memory.
    pub fn tensor(&self) -> Result<Tensor> {
        self.host("`tensor` of a value")
    }

    /// The tensor of a value on the CPU, for `op`, which reads its elements there.
    ///
    /// # Errors
    /// [`TensorError::NotOnHost`] naming `op` for a value on a device, and [`TensorError::NotResident`] for a parameter whose
    /// values are not in memory.
    pub fn host(&self, op: &'static str) -> Result<Tensor> {
        self.source.array()?.host(op).cloned()
    }

    /// The elements on the host: the tensor itself, or a copy of what lies on a device, for which this waits. This is how
    /// a loss is read.
    ///
    /// # Errors
    /// The back end's, and [`TensorError::NotResident`] for a parameter whose values are not in memory.
    pub fn to_host(&self) -> Result<Tensor> {
        self.source.array()?.to_host()
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        match &self.source {
            Source::Array(array) => array.shape(),
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
            Source::Array(array) => Ok(array.dtype()),
            Source::Param(param) => Ok(param.flat_param()?.dtype()),
        }
    }

    /// Where a value that is no parameter lies on the host, and how many bytes it has.
    pub(super) fn host_memory(&self) -> Option<(usize, usize)> {
        match &self.source {
            Source::Array(array) => array.host_memory(),
            Source::Param(_) => None,
        }
    }

    /// Whether a gradient flows to this value.
    pub fn needs_grad(&self) -> bool {
        self.slot.is_some()
    }

    /// The array without its history: no gradient flows back through it.
    #[must_use]
    pub fn detach(&self) -> Self {
        Self { source: self.source.clone(), slot: None }
    }

    /// What a node keeps of this value for backward: an array, or just the handle of a parameter.
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
    /// Keeps an array.
    pub fn of(array: impl Into<Array>) -> Self {
        Self(Source::Array(array.into()))
    }

    /// The array.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] for a parameter whose values are not in memory.
    pub fn array(&self) -> Result<Array> {
        self.0.array()
    }
}

//! Values: the inputs and outputs of ops.

use std::sync::Arc;

use candle_core::{DType, Device, Shape, Tensor};

use super::op::GraphInput;
use super::placement::Placement;
use super::remade::Remade;
use crate::backend::Array;
use crate::store::Param;
use crate::{Result, TensorError};

/// An array in a computation, and the destination of its gradient.
///
/// A value holds an array, or refers to a parameter and reads its values when needed. Values without a gradient
/// ([`Value::constant`]) may be used on any tape; others only on the tape that recorded them. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Value {
    source: Source,
    slot: Option<(u64, Slot)>,
    /// The meaning of the numbers on ranks that compute parts of the same layers; `None` for a constant.
    placement: Option<Placement>,
    /// Computes the array again in backward, if forward does not keep it.
    remade: Option<Arc<Remade>>,
    /// The number in a pass of a pipeline, if it depends on parameters.
    number: Option<usize>,
}

/// The index of a gradient on its tape.
pub(crate) type Slot = usize;

#[derive(Debug, Clone)]
enum Source {
    Array(Array),
    Param(Param),
    /// A parameter of another chunk of a pipeline, and its outline.
    Elsewhere(Param, Array),
}

impl Source {
    fn array(&self) -> Result<Array> {
        match self {
            Self::Array(array) | Self::Elsewhere(_, array) => Ok(array.clone()),
            Self::Param(param) => param.array(),
        }
    }
}

impl Value {
    /// Makes a value without a gradient: data, labels, masks.
    pub fn constant(array: impl Into<Array>) -> Self {
        Self { source: Source::Array(array.into()), slot: None, placement: None, remade: None, number: None }
    }

    pub(super) fn recorded(array: Array, tape: u64, slot: Slot) -> Self {
        Self { slot: Some((tape, slot)), ..Self::constant(array) }
    }

    pub(super) fn of_param(param: Param, slot: Option<(u64, Slot)>, placement: Option<Placement>) -> Self {
        Self { source: Source::Param(param), slot, placement, remade: None, number: None }
    }

    /// Refers to a parameter of another chunk of a pipeline.
    pub(super) fn of_param_elsewhere(
        (param, outline): (Param, Array),
        slot: Option<(u64, Slot)>,
        placement: Option<Placement>,
    ) -> Self {
        Self { source: Source::Elsewhere(param, outline), slot, placement, remade: None, number: None }
    }

    /// Returns the value with its number in a pass of a pipeline.
    pub(super) fn numbered(self, number: usize) -> Self {
        Self { number: Some(number), ..self }
    }

    /// The number in a pass of a pipeline, if the value depends on parameters.
    pub(super) fn number(&self) -> Option<usize> {
        self.number
    }

    /// Returns the value with another array of its shape.
    pub(super) fn with_array(self, array: Array) -> Self {
        let source = match self.source {
            Source::Elsewhere(param, _) => Source::Elsewhere(param, array),
            Source::Param(_) | Source::Array(_) => Source::Array(array),
        };
        Self { source, remade: None, ..self }
    }

    /// True if the array has numbers.
    pub(super) fn has_numbers(&self) -> bool {
        match &self.source {
            Source::Array(array) | Source::Elsewhere(_, array) => array.has_numbers(),
            Source::Param(_) => true,
        }
    }

    /// The index of the gradient, on the tape that recorded the value.
    pub(super) fn slot(&self) -> Option<Slot> {
        self.slot.map(|(_, slot)| slot)
    }

    /// Returns the value with a placement.
    pub(crate) fn placed(self, placement: Option<Placement>) -> Self {
        Self { placement, ..self }
    }

    /// The meaning of the numbers on ranks that compute parts of the same layers; `None` for a constant, and where there are no
    /// such ranks.
    pub fn placement(&self) -> Option<Placement> {
        self.placement
    }

    /// Returns the array of this rank, which may be a shard or a part of a sum: for ops that say so by their
    /// [`PlacementRule`](super::PlacementRule).
    ///
    /// # Errors
    /// [`TensorError::NotResident`] for a parameter whose values are not in memory.
    pub fn part(&self) -> Result<Array> {
        self.source.array()
    }

    /// As [`Value::part`], with contiguous elements.
    pub(crate) fn contiguous_part(&self) -> Result<Array> {
        Ok(self.source.array()?.contiguous()?)
    }

    /// As [`Value::array`], with contiguous elements.
    pub(crate) fn contiguous(&self) -> Result<Array> {
        Ok(self.array()?.contiguous()?)
    }

    /// Refuses a value that is not whole.
    fn whole(&self) -> Result<()> {
        match self.placement {
            Some(other) if !matches!(other, Placement::Same | Placement::Copied) => {
                let shape = self.shape();
                Err(TensorError::placement(format!("a value {shape:?} is read as a whole and is {other}")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the parameter that the value refers to; `None` for other arrays.
    pub(crate) fn param(&self) -> Option<&Param> {
        match &self.source {
            Source::Param(param) | Source::Elsewhere(param, _) => Some(param),
            Source::Array(_) => None,
        }
    }

    /// Makes a placeholder for a missing optional input.
    pub(crate) fn absent() -> Result<Self> {
        Ok(Self::constant(Tensor::zeros(0, DType::F32, &Device::Cpu)?))
    }

    /// Returns the array. For a parameter this is a view of its current values.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] for a parameter whose values are not in memory, and [`TensorError::Placement`] for a shard or a
    /// part of a sum.
    pub fn array(&self) -> Result<Array> {
        self.whole()?;
        self.source.array()
    }

    /// Returns the tensor of a value on the CPU. For a parameter this is a view of its current values.
    ///
    /// # Errors
    /// [`ArrayError::NotOnHost`](crate::ArrayError::NotOnHost) for a value on a device, which [`Value::to_host`] copies, and
    /// [`TensorError::NotResident`] for a parameter whose values are not in memory.
    pub fn tensor(&self) -> Result<Tensor> {
        self.host("`tensor` of a value")
    }

    /// Returns the tensor of a value on the CPU to the host op `op`.
    ///
    /// # Errors
    /// [`ArrayError::NotOnHost`](crate::ArrayError::NotOnHost) naming `op` for a value on a device, and [`TensorError::NotResident`] for a
    /// parameter whose values are not in memory.
    pub fn host(&self, op: &'static str) -> Result<Tensor> {
        Ok(self.array()?.host(op).cloned()?)
    }

    /// Returns the elements on the host: the tensor itself, or a copy from a device, for which this waits. Losses are
    /// read by it.
    ///
    /// # Errors
    /// Errors of the back end, and [`TensorError::NotResident`] for a parameter whose values are not in memory.
    pub fn to_host(&self) -> Result<Tensor> {
        Ok(self.array()?.to_host()?)
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        match &self.source {
            Source::Array(array) | Source::Elsewhere(_, array) => array.shape(),
            Source::Param(param) => param.shape(),
        }
    }

    /// The shape's sizes.
    pub fn dims(&self) -> &[usize] {
        self.shape().dims()
    }

    /// Returns the element type.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] for a parameter of a store that is not built.
    pub fn dtype(&self) -> Result<DType> {
        match &self.source {
            Source::Array(array) | Source::Elsewhere(_, array) => Ok(array.dtype()),
            Source::Param(param) => Ok(param.bucket()?.dtype()),
        }
    }

    /// The identifier of the host storage of a value that is not a parameter, and its size in bytes.
    pub(super) fn host_memory(&self) -> Option<(usize, usize)> {
        match &self.source {
            Source::Array(array) => array.host_memory(),
            Source::Param(_) | Source::Elsewhere(..) => None,
        }
    }

    /// True if a gradient flows to this value.
    pub fn needs_grad(&self) -> bool {
        self.slot.is_some()
    }

    /// Returns the array without its history: no gradient flows back through it.
    #[must_use]
    pub fn detach(&self) -> Self {
        Self { slot: None, ..self.clone() }
    }

    /// Returns the part of this value that a node keeps for backward: an array, the handle of a parameter, or how the array
    /// is computed again.
    pub fn save(&self) -> SavedValue {
        SavedValue(match &self.remade {
            Some(remade) => {
                remade.expect_reader();
                Saved::Remade(remade.clone())
            }
            None => Saved::Kept(self.source.clone()),
        })
    }

    /// Returns the value with another way for backward to get the array.
    pub(super) fn remade_by(self, remade: Arc<Remade>) -> Self {
        Self { remade: Some(remade), ..self }
    }

    /// Returns the source of this value as an input of `op` on the tracing tape `id`.
    pub(super) fn graph_input(&self, id: u64, op: &'static str) -> Result<GraphInput> {
        Ok(match (&self.source, self.slot_on(id, op)?) {
            (Source::Param(param) | Source::Elsewhere(param, _), _) => GraphInput::Param(param.clone()),
            (Source::Array(_), Some(slot)) => GraphInput::Value(slot),
            (Source::Array(array), None) => GraphInput::Constant(array.clone()),
        })
    }

    /// Returns the slot on tape `id`, if a gradient is needed.
    pub(super) fn slot_on(&self, id: u64, op: &'static str) -> Result<Option<Slot>> {
        match self.slot {
            None => Ok(None),
            Some((tape, slot)) if tape == id => Ok(Some(slot)),
            Some(_) => Err(TensorError::ForeignValue { op }),
        }
    }
}

/// A value saved for backward. A parameter is saved as a handle, so that its values may be released in between. The result of
/// some ops is not kept and computed again.
#[derive(Debug, Clone)]
pub struct SavedValue(Saved);

#[derive(Debug, Clone)]
enum Saved {
    Kept(Source),
    Remade(Arc<Remade>),
}

impl SavedValue {
    /// Begins to gather an array of other ranks' parts that is about to be read.
    pub(crate) fn begin(&self) -> Result<()> {
        match &self.0 {
            Saved::Kept(_) => Ok(()),
            Saved::Remade(remade) => remade.begin(),
        }
    }

    /// Saves an array.
    pub fn of(array: impl Into<Array>) -> Self {
        Self(Saved::Kept(Source::Array(array.into())))
    }

    /// Returns the array.
    ///
    /// # Errors
    /// [`TensorError::NotResident`] for a parameter whose values are not in memory, and errors of an op that is computed again.
    pub fn array(&self) -> Result<Array> {
        match &self.0 {
            Saved::Kept(source) => source.array(),
            Saved::Remade(remade) => remade.array(),
        }
    }

    /// As [`SavedValue::array`], with contiguous elements.
    pub(crate) fn contiguous(&self) -> Result<Array> {
        Ok(self.array()?.contiguous()?)
    }
}

//! Gradients in flight: one slot per recorded value, accumulated in place where nobody else looks.

use candle_core::{DType, Shape};

use super::value::Slot;
use crate::backend::{Array, ArrayBackend};
use crate::store::Param;
use crate::{Context, Result};

/// The gradients of a tape during backward.
#[derive(Debug, Default)]
pub(super) struct GradSlots {
    pending: Vec<Option<PendingGrad>>,
    /// The element type of each recorded value, which its gradient has too.
    types: Vec<DType>,
    /// The parameters among the recorded values, in the order of their slots.
    params: Vec<(Slot, Param)>,
}

/// What has been added up of a gradient, and whether its memory belongs to this slot alone.
#[derive(Debug)]
struct PendingGrad {
    array: Array,
    exclusive: bool,
}

impl GradSlots {
    pub(super) fn new(types: Vec<DType>, params: Vec<(Slot, Param)>) -> Self {
        Self { pending: types.iter().map(|_| None).collect(), types, params }
    }

    fn param(&self, slot: Slot) -> Option<&Param> {
        let at = self.params.binary_search_by_key(&slot, |(slot, _)| *slot).ok()?;
        Some(&self.params[at].1)
    }

    pub(super) fn take(&mut self, slot: Slot) -> Option<Array> {
        self.pending[slot].take().map(|pending| pending.array)
    }

    /// Adds to a gradient, which has the type of its value: an addend of another is rounded or widened first, and so is
    /// every sum.
    pub(super) fn add(&mut self, context: &Context, slot: Slot, array: Array, exclusive: bool) -> Result<()> {
        let dtype = self.types[slot];
        let (array, exclusive) = match array.dtype() == dtype {
            true => (array, exclusive),
            false => (array.backend(context).cast(&array, dtype)?, true),
        };
        let pending = match self.pending[slot].take() {
            None => PendingGrad { array, exclusive },
            Some(pending) if pending.exclusive => {
                array.backend(context).accumulate(&pending.array, &array)?;
                pending
            }
            Some(pending) if exclusive => {
                array.backend(context).accumulate(&array, &pending.array)?;
                PendingGrad { array, exclusive }
            }
            Some(pending) => {
                PendingGrad { array: array.backend(context).sum(&pending.array, &array)?, exclusive: true }
            }
        };
        self.pending[slot] = Some(pending);
        Ok(())
    }
}

/// Where the backward of an op puts the gradients of its inputs. Each is kept in the type of its input, whatever type it is
/// given in.
#[derive(Debug)]
pub struct Grads<'a> {
    pub(super) context: &'a Context,
    pub(super) slots: &'a mut GradSlots,
    pub(super) inputs: &'a [Option<Slot>],
}

impl Grads<'_> {
    /// Whether the gradient of input `index` is wanted; if not, it need not be computed.
    pub fn wants(&self, index: usize) -> bool {
        self.inputs[index].is_some()
    }

    /// Adds a freshly computed contiguous gradient, whose memory nobody else holds, to that of input `index`.
    ///
    /// # Errors
    /// If a gradient of another shape is already there.
    pub fn add(&mut self, index: usize, grad: impl Into<Array>) -> Result<()> {
        self.put(index, grad.into(), true)
    }

    /// Adds a gradient whose memory may be held by others too (a view, or the output's gradient itself).
    ///
    /// # Errors
    /// If a gradient of another shape is already there.
    pub fn share(&mut self, index: usize, grad: impl Into<Array>) -> Result<()> {
        self.put(index, grad.into(), false)
    }

    /// Lets `write` compute the gradient of input `index`, of shape `dims`, into memory of `backend`. That of a parameter is
    /// where its [`crate::FlatParam`] keeps it, so that nothing is copied. `write` gets the array and whether to add to it; if
    /// not, it must overwrite all of it. Its elements are of type `dtype`.
    ///
    /// # Errors
    /// Those of `write`, and if the memory cannot be had.
    pub(crate) fn write(
        &mut self,
        backend: &dyn ArrayBackend,
        index: usize,
        dims: &[usize],
        dtype: DType,
        write: impl FnOnce(&Array, bool) -> Result<()>,
    ) -> Result<()> {
        let Some(slot) = self.inputs[index] else { return Ok(()) };
        let of_type = |param: &&Param| param.flat_param().is_ok_and(|flat_param| flat_param.dtype() == dtype);
        if let Some(param) = self.slots.param(slot).filter(of_type) {
            let (to, add) = param.grad_destination()?;
            return write(&to, add);
        }
        let array = backend.unwritten(&Shape::from(dims), dtype)?;
        write(&array, false)?;
        self.put(index, array, true)
    }

    fn put(&mut self, index: usize, grad: Array, exclusive: bool) -> Result<()> {
        match self.inputs[index] {
            Some(slot) => {
                let exclusive = exclusive && grad.is_contiguous();
                self.slots.add(self.context, slot, grad, exclusive)
            }
            None => Ok(()),
        }
    }
}

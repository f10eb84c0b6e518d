//! Gradients in flight: one slot per recorded value, accumulated in place where nobody else looks.

use candle_core::{DType, Tensor};

use super::value::Slot;
use crate::storage::{self, Scalar};
use crate::store::Param;
use crate::unwritten::unwritten;
use crate::{Context, Result};

const OP: &str = "gradient";

/// The gradients of a tape during backward.
#[derive(Debug, Default)]
pub(super) struct GradSlots {
    held: Vec<Option<Held>>,
    /// The element type of each recorded value, which its gradient has too.
    types: Vec<DType>,
    /// The parameters among the recorded values, in the order of their slots.
    params: Vec<(Slot, Param)>,
}

/// A gradient and whether its memory belongs to this slot alone.
#[derive(Debug)]
struct Held {
    tensor: Tensor,
    exclusive: bool,
}

impl GradSlots {
    pub(super) fn new(types: Vec<DType>, params: Vec<(Slot, Param)>) -> Self {
        Self { held: types.iter().map(|_| None).collect(), types, params }
    }

    fn param(&self, slot: Slot) -> Option<&Param> {
        let at = self.params.binary_search_by_key(&slot, |(slot, _)| *slot).ok()?;
        Some(&self.params[at].1)
    }

    pub(super) fn take(&mut self, slot: Slot) -> Option<Tensor> {
        self.held[slot].take().map(|held| held.tensor)
    }

    /// Adds to a gradient, which has the type of its value: an addend of another is rounded or widened first, and so is
    /// every sum.
    pub(super) fn add(
        &mut self,
        context: &Context,
        slot: Slot,
        tensor: Tensor,
        exclusive: bool,
    ) -> Result<()> {
        let dtype = self.types[slot];
        let (tensor, exclusive) = match tensor.dtype() == dtype {
            true => (tensor, exclusive),
            false => (storage::cast(context, &tensor, dtype)?, true),
        };
        let held = match self.held[slot].take() {
            None => Held { tensor, exclusive },
            Some(held) if held.exclusive => {
                storage::accumulate(context, &held.tensor, &tensor)?;
                held
            }
            Some(held) if exclusive => {
                storage::accumulate(context, &tensor, &held.tensor)?;
                Held { tensor, exclusive }
            }
            Some(held) if storage::is_low(dtype) => {
                let sum = held.tensor.force_contiguous()?;
                storage::accumulate(context, &sum, &tensor)?;
                Held { tensor: sum, exclusive: true }
            }
            Some(held) => Held { tensor: (held.tensor + tensor)?, exclusive: true },
        };
        self.held[slot] = Some(held);
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
    pub fn add(&mut self, index: usize, grad: Tensor) -> Result<()> {
        self.put(index, grad, true)
    }

    /// Adds a gradient whose memory may be held by others too (a view, or the output's gradient itself).
    ///
    /// # Errors
    /// If a gradient of another shape is already there.
    pub fn share(&mut self, index: usize, grad: Tensor) -> Result<()> {
        self.put(index, grad, false)
    }

    /// Lets `write` compute the gradient of input `index`, of shape `dims`, into memory. That of a parameter is where
    /// its [`crate::FlatParam`] keeps it, so that nothing is copied. `write` gets the elements and whether to add to them; if not,
    /// it must overwrite them all.
    ///
    /// # Errors
    /// Those of `write`, and if the memory cannot be had.
    pub(crate) fn write<T: Scalar>(
        &mut self,
        index: usize,
        dims: &[usize],
        write: impl FnOnce(&mut [T], bool) -> Result<()>,
    ) -> Result<()> {
        let Some(slot) = self.inputs[index] else { return Ok(()) };
        let of_type =
            |param: &&Param| param.flat_param().is_ok_and(|flat_param| flat_param.dtype() == T::DTYPE);
        if let Some(param) = self.slots.param(slot).filter(of_type) {
            let (to, add) = param.grad_destination()?;
            return storage::with_slice_mut(OP, to.tensor(), |to| write(to, add));
        }
        let mut values = unwritten::<T>(dims.iter().product());
        write(&mut values, false)?;
        self.put(index, storage::tensor_from(values, dims)?, true)
    }

    fn put(&mut self, index: usize, grad: Tensor, exclusive: bool) -> Result<()> {
        match self.inputs[index] {
            Some(slot) => {
                let exclusive = exclusive && grad.is_contiguous();
                self.slots.add(self.context, slot, grad, exclusive)
            }
            None => Ok(()),
        }
    }
}

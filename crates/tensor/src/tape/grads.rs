//! Gradients in flight: one slot per recorded value, accumulated in place where nobody else looks.

use candle_core::Tensor;

use super::value::Slot;
use crate::{Result, storage};

/// The gradients of a tape during backward.
#[derive(Debug, Default)]
pub(super) struct GradSlots(Vec<Option<Held>>);

/// A gradient and whether its memory belongs to this slot alone.
#[derive(Debug)]
struct Held {
    tensor: Tensor,
    exclusive: bool,
}

impl GradSlots {
    pub(super) fn new(count: usize) -> Self {
        Self((0..count).map(|_| None).collect())
    }

    pub(super) fn take(&mut self, slot: Slot) -> Option<Tensor> {
        self.0[slot].take().map(|held| held.tensor)
    }

    pub(super) fn add(&mut self, slot: Slot, tensor: Tensor, exclusive: bool) -> Result<()> {
        let held = match self.0[slot].take() {
            None => Held { tensor, exclusive },
            Some(held) if held.exclusive => {
                storage::add_in_place(&held.tensor, &tensor)?;
                held
            }
            Some(held) if exclusive => {
                storage::add_in_place(&tensor, &held.tensor)?;
                Held { tensor, exclusive }
            }
            Some(held) => Held { tensor: (held.tensor + tensor)?, exclusive: true },
        };
        self.0[slot] = Some(held);
        Ok(())
    }
}

/// Where the backward of an op puts the gradients of its inputs.
#[derive(Debug)]
pub struct Grads<'a> {
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
    /// If a gradient of another shape or type is already there.
    pub fn add(&mut self, index: usize, grad: Tensor) -> Result<()> {
        self.put(index, grad, true)
    }

    /// Adds a gradient whose memory may be held by others too (a view, or the output's gradient itself).
    ///
    /// # Errors
    /// If a gradient of another shape or type is already there.
    pub fn share(&mut self, index: usize, grad: Tensor) -> Result<()> {
        self.put(index, grad, false)
    }

    fn put(&mut self, index: usize, grad: Tensor, exclusive: bool) -> Result<()> {
        match self.inputs[index] {
            Some(slot) => {
                let exclusive = exclusive && grad.is_contiguous();
                self.slots.add(slot, grad, exclusive)
            }
            None => Ok(()),
        }
    }
}

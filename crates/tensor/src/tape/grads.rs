//! Gradients during backward: one slot for each recorded value, accumulated in place where the memory is not shared.

use candle_core::{DType, Shape};

use super::Tape;
use super::value::Slot;
use crate::backend::{Array, ArrayBackend, BinaryOp, Destination};
use crate::store::ParamBucket;
use crate::{Context, Result, TensorError};

/// The gradients of a tape during backward.
#[derive(Debug, Default)]
pub(super) struct GradSlots {
    pending: Vec<Option<PendingGrad>>,
    /// The element type of each recorded value, and so of its gradient.
    types: Vec<DType>,
    /// The parameters among the recorded values, in the order of their slots: slot, bucket, and index of the entry.
    params: Vec<(Slot, ParamBucket, usize)>,
}

/// An accumulated gradient, and whether its memory is shared.
#[derive(Debug)]
struct PendingGrad {
    array: Array,
    exclusive: bool,
}

impl GradSlots {
    pub(super) fn new(types: Vec<DType>, params: Vec<(Slot, ParamBucket, usize)>) -> Self {
        Self { pending: types.iter().map(|_| None).collect(), types, params }
    }

    /// Returns the parameter at a slot, if its gradients are of type `dtype`.
    fn param(&self, slot: Slot, dtype: DType) -> Option<(&ParamBucket, usize)> {
        let at = self.params.binary_search_by_key(&slot, |(slot, ..)| *slot).ok()?;
        let (_, bucket, entry) = &self.params[at];
        (bucket.dtype() == dtype).then_some((bucket, *entry))
    }

    pub(super) fn take(&mut self, slot: Slot) -> Option<Array> {
        self.pending[slot].take().map(|pending| pending.array)
    }

    /// Adds to a gradient, which has the type of its value. An addend of another type is rounded or widened first,
    /// and every sum is rounded.
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
            Some(pending) if pending.array.shape() != array.shape() => {
                return Err(TensorError::unequal("gradient", pending.array.shape(), array.shape()));
            }
            Some(pending) => {
                let sum = array.backend(context).binary(BinaryOp::Add, &pending.array, &array)?;
                PendingGrad { array: sum, exclusive: true }
            }
        };
        self.pending[slot] = Some(pending);
        Ok(())
    }
}

/// Computes gradients of parameters of an op.
type LaterFn = Box<dyn FnOnce(&Tape, &mut Grads<'_>) -> Result<()>>;

/// Gradients of parameters that an op computes later, and its inputs.
pub(super) struct LaterGrads {
    inputs: Vec<Option<Slot>>,
    run: LaterFn,
}

impl std::fmt::Debug for LaterGrads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaterGrads").field("inputs", &self.inputs).finish_non_exhaustive()
    }
}

impl LaterGrads {
    /// Computes the gradients.
    pub(super) fn run(self, tape: &Tape, slots: &mut GradSlots) -> Result<()> {
        let Self { inputs, run } = self;
        run(tape, &mut Grads::new(tape.context(), slots, &inputs, None))
    }
}

/// The destination of an op's gradients. Each is stored in the type of its input.
#[derive(Debug)]
pub struct Grads<'a> {
    context: &'a Context,
    slots: &'a mut GradSlots,
    inputs: &'a [Option<Slot>],
    /// Gradients that the op before has left for later.
    pending: Option<LaterGrads>,
    /// Gradients that this op leaves for later.
    later: Option<LaterGrads>,
}

impl<'a> Grads<'a> {
    pub(super) fn new(
        context: &'a Context,
        slots: &'a mut GradSlots,
        inputs: &'a [Option<Slot>],
        pending: Option<LaterGrads>,
    ) -> Self {
        Self { context, slots, inputs, pending, later: None }
    }

    /// Computes what the op before has left, if that was not done yet, and returns what this op leaves.
    pub(super) fn finish(mut self, tape: &Tape) -> Result<Option<LaterGrads>> {
        self.run_pending(tape)?;
        Ok(self.later)
    }
}

impl Grads<'_> {
    /// Leaves gradients of parameters for later: until the next op of backward waits for other ranks, or is done, or for the second part
    /// of backward ([`super::WeightWork`]), which the stages of a pipeline run when they would wait. Only inputs that are parameters
    /// themselves may get theirs there.
    pub fn later(&mut self, run: impl FnOnce(&Tape, &mut Grads<'_>) -> Result<()> + 'static) {
        self.later = Some(LaterGrads { inputs: self.inputs.to_vec(), run: Box::new(run) });
    }

    /// Computes the gradients that the op before has left for later, while something else is under way.
    pub(crate) fn run_pending(&mut self, tape: &Tape) -> Result<()> {
        match self.pending.take() {
            Some(pending) => pending.run(tape, self.slots),
            None => Ok(()),
        }
    }

    /// True if the gradient of input `index` is needed.
    pub fn wants(&self, index: usize) -> bool {
        self.inputs[index].is_some()
    }

    /// Returns the type in which the gradient of input `index` is stored, if it is needed: one of that type is added without
    /// a conversion.
    pub fn dtype(&self, index: usize) -> Option<DType> {
        self.inputs[index].map(|slot| self.slots.types[slot])
    }

    /// Takes the gradient that input `index` has so far, for an op that adds to it while it computes its own.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub(crate) fn take_contiguous(&mut self, index: usize) -> Result<Option<Array>> {
        let so_far = self.inputs[index].and_then(|slot| self.slots.take(slot));
        Ok(so_far.map(|grad| grad.contiguous()).transpose()?)
    }

    /// Adds a new contiguous gradient in unshared memory to that of input `index`.
    ///
    /// # Errors
    /// If there is a gradient of another shape already.
    pub fn add(&mut self, index: usize, grad: impl Into<Array>) -> Result<()> {
        self.put(index, grad.into(), true)
    }

    /// Adds a gradient whose memory may be shared (a view, or the output's gradient itself).
    ///
    /// # Errors
    /// If there is a gradient of another shape already.
    pub fn share(&mut self, index: usize, grad: impl Into<Array>) -> Result<()> {
        self.put(index, grad.into(), false)
    }

    /// Lets `write` compute the gradients of some inputs, each given with its shape, in type `dtype`.
    ///
    /// `write` gets a destination for each needed gradient. The destination of a parameter is in its bucket, which
    /// avoids a copy. Others are new memory of `backend`, added as [`Grads::add`] does.
    ///
    /// # Errors
    /// Errors of `write`; if memory cannot be allocated, or there is a gradient of another shape already.
    pub fn write<const N: usize, R>(
        &mut self,
        backend: &dyn ArrayBackend,
        inputs: [(usize, &[usize]); N],
        dtype: DType,
        write: impl FnOnce([Option<&Destination>; N]) -> Result<R>,
    ) -> Result<R> {
        let mut destinations = [const { None }; N];
        let mut fresh = Vec::new();
        for ((index, dims), destination) in inputs.into_iter().zip(&mut destinations) {
            let Some(slot) = self.inputs[index] else { continue };
            *destination = Some(match self.slots.param(slot, dtype) {
                Some((bucket, entry)) => bucket.grad_destination(entry)?,
                None => {
                    let array = backend.unwritten(&Shape::from(dims), dtype)?;
                    fresh.push((index, array.clone()));
                    Destination { array, add: false }
                }
            });
        }
        let result = write(destinations.each_ref().map(Option::as_ref))?;
        fresh.into_iter().try_for_each(|(index, array)| self.put(index, array, true))?;
        Ok(result)
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

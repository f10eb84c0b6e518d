//! The backward pass, from the loss to the parameters.

use super::Tape;
use super::block::backward_span;
use super::grads::{GradSlots, Grads, LaterGrads};
use super::node::{Action, Node};
use super::value::{Slot, Value};
use crate::backend::Array;
use crate::store::{Param, ParamBucket};
use crate::{Result, TensorError};

/// The factor of a loss before differentiation.
#[derive(Debug, Clone)]
pub struct LossFactor(Factor);

#[derive(Debug, Clone)]
enum Factor {
    Known(f64),
    At(Array),
}

impl Default for LossFactor {
    /// A factor of 1.
    fn default() -> Self {
        1.0.into()
    }
}

impl From<f64> for LossFactor {
    fn from(factor: f64) -> Self {
        Self(Factor::Known(factor))
    }
}

impl From<Array> for LossFactor {
    /// A scalar on the loss's device, or on the host: [`crate::optim::LossScale::factor`].
    fn from(factor: Array) -> Self {
        Self(Factor::At(factor))
    }
}

impl Tape {
    /// Differentiates a loss of one element with respect to all its inputs.
    ///
    /// Gradients of parameters are added to their buckets. The tape is empty afterwards.
    ///
    /// # Errors
    /// [`TensorError::Backward`] if the loss has more than one element or needs no gradient, and the errors of the
    /// ops and of the listener.
    pub fn backward(&self, loss: &Value) -> Result<()> {
        self.backward_scaled(loss, LossFactor::default())
    }

    /// Differentiates `factor` times a loss of one element. All gradients are larger by that factor, so that small
    /// ones do not vanish in f16. See [`crate::optim::LossScale`].
    ///
    /// # Errors
    /// Errors of [`Tape::backward`].
    pub fn backward_scaled(&self, loss: &Value, factor: impl Into<LossFactor>) -> Result<()> {
        let seed = self.loss_seed(loss, factor.into())?;
        self.backward_from([(loss, seed)])
    }

    /// Returns the gradient of a loss of one element: its factor.
    fn loss_seed(&self, loss: &Value, factor: LossFactor) -> Result<Array> {
        if loss.shape().elem_count() != 1 {
            let problem = format!("the loss must have one element; this one has shape {:?}", loss.shape());
            return Err(TensorError::Backward(problem));
        }
        if !loss.needs_grad() {
            let problem = "the loss does not depend on any trainable parameter or leaf of this tape";
            return Err(TensorError::Backward(problem.into()));
        }
        let loss_array = loss.array()?;
        let (backend, dtype) = (loss_array.backend(self.context()), loss_array.dtype());
        match factor.0 {
            Factor::Known(factor) => Ok(backend.full(factor, loss_array.shape(), dtype)?),
            Factor::At(factor) if factor.is_host() => {
                Ok(backend.full(factor.number()?, loss_array.shape(), dtype)?)
            }
            Factor::At(factor) => Ok(backend.cast(&factor, dtype)?.reshape(loss_array.shape().clone())?),
        }
    }

    /// Differentiates with given gradients of several values.
    ///
    /// # Errors
    /// Errors of [`Tape::backward`]; and if a gradient and its value have different shapes.
    pub fn backward_from<'a, A: Into<Array>>(
        &self,
        seeds: impl IntoIterator<Item = (&'a Value, A)>,
    ) -> Result<()> {
        self.differentiate(seeds, Order::AtOnce).map(drop)
    }

    /// The first part of [`Tape::backward_from`]: computes the gradients of leaves, for which others wait, and leaves those of the
    /// weights of products for [`WeightWork::run`].
    ///
    /// # Errors
    /// Errors of [`Tape::backward_from`].
    pub fn backward_inputs<'a, A: Into<Array>>(
        &self,
        seeds: impl IntoIterator<Item = (&'a Value, A)>,
    ) -> Result<WeightWork> {
        self.differentiate(seeds, Order::WeightsLater)
    }

    /// The first part of [`Tape::backward_scaled`], as [`Tape::backward_inputs`].
    ///
    /// # Errors
    /// Errors of [`Tape::backward`].
    pub fn backward_inputs_scaled(&self, loss: &Value, factor: impl Into<LossFactor>) -> Result<WeightWork> {
        let seed = self.loss_seed(loss, factor.into())?;
        self.backward_inputs([(loss, seed)])
    }

    /// True while gradients of weights are left for later.
    pub(crate) fn leaves_weights(&self) -> bool {
        self.leaves_weights.get()
    }

    fn differentiate<'a, A: Into<Array>>(
        &self,
        seeds: impl IntoIterator<Item = (&'a Value, A)>,
        order: Order,
    ) -> Result<WeightWork> {
        let id = self.id.get();
        let (nodes, types) = {
            let mut inner = self.inner.borrow_mut();
            inner.leaf_grads.clear();
            inner.used.clear();
            inner.copied = None;
            (std::mem::take(&mut inner.nodes), std::mem::take(&mut inner.slot_types))
        };
        // From here on, values of this recording count as past.
        self.past_id.set(id);
        self.id.set(super::fresh_id());
        let params = nodes.iter().filter_map(|node| match &node.action {
            Action::Param(param) => {
                Some(param.location().map(|(bucket, entry)| (node.outputs.start, bucket.clone(), *entry)))
            }
            _ => None,
        });
        let mut slots = GradSlots::new(types, params.collect::<Result<_>>()?);
        for (value, grad) in seeds {
            let grad = grad.into();
            if value.shape() != grad.shape() {
                return Err(TensorError::unequal("backward", value.shape(), grad.shape()));
            }
            if let Some(slot) = value.slot_on(id, "backward")? {
                slots.add(self.context(), slot, grad, false)?;
            }
        }
        let mut pass = BackwardPass { slots, leaves: Vec::new(), later: None, left: None };
        if order == Order::WeightsLater {
            pass.left = Some(Vec::new());
        }
        self.leaves_weights.set(order == Order::WeightsLater);
        let passed = self.pass_all(nodes, &mut pass);
        self.leaves_weights.set(false);
        passed?;
        if let Some(pending) = pass.later.take() {
            pending.run(self, &mut pass.slots)?;
        }
        let mut inner = self.inner.borrow_mut();
        inner.leaf_grads = pass.leaves;
        inner.num_blocks = 0;
        Ok(WeightWork { slots: pass.slots, left: pass.left.unwrap_or_default() })
    }

    /// Runs all nodes backward.
    fn pass_all(&self, nodes: Vec<Node>, pass: &mut BackwardPass) -> Result<()> {
        // The blocks that backward is in, the innermost last.
        let mut spans = Vec::new();
        for node in nodes.into_iter().rev() {
            let begins = match &node.action {
                Action::BlockEnd(block) => Some(block.clone()),
                Action::BlockStart(_) => {
                    spans.pop();
                    None
                }
                _ => None,
            };
            self.pass(node, pass)?;
            spans.extend(begins.map(|block| backward_span(&block).entered()));
        }
        Ok(())
    }

    /// Runs one node backward and drops it with its saved arrays.
    fn pass(&self, node: Node, pass: &mut BackwardPass) -> Result<()> {
        let Node { inputs, outputs, action, _recorded, .. } = node;
        let (listener, failed) = (self.listener(), TensorError::hook);
        // All others may need them.
        if !matches!(action, Action::Op(_))
            && let Some(pending) = pass.later.take()
        {
            pending.run(self, &mut pass.slots)?;
        }
        match action {
            Action::BlockEnd(name) => listener.before_backward(&name).map_err(failed("before backward")),
            Action::BlockStart(name) => listener.after_backward(&name).map_err(failed("after backward")),
            Action::FirstUse(used) => match &mut pass.left {
                Some(left) => {
                    left.push(Left::Ready(used));
                    Ok(())
                }
                None => listener.gradients_ready(&used).map_err(failed("gradients ready")),
            },
            Action::Leaf | Action::Elsewhere => {
                let slots = &mut pass.slots;
                pass.leaves.extend(outputs.filter_map(|slot| Some((slot, slots.take(slot)?))));
                Ok(())
            }
            Action::Param(param) => match &mut pass.left {
                Some(left) => {
                    left.push(Left::Param(param, outputs.start));
                    Ok(())
                }
                None => add_to(&param, outputs.start, self, &mut pass.slots),
            },
            Action::Op(run) => {
                let grads_out: Vec<_> = outputs.map(|slot| pass.slots.take(slot)).collect();
                if grads_out.iter().all(Option::is_none) {
                    return Ok(());
                }
                let mut grads = Grads::new(self.context(), &mut pass.slots, &inputs, pass.later.take());
                run(self, grads_out, &mut grads)?;
                let later = grads.finish(self)?;
                match &mut pass.left {
                    Some(left) => left.extend(later.map(Left::Grads)),
                    None => pass.later = later,
                }
                Ok(())
            }
        }
    }
}

/// Adds the gradient at a slot to that of a parameter.
fn add_to(param: &Param, slot: Slot, tape: &Tape, slots: &mut GradSlots) -> Result<()> {
    match slots.take(slot) {
        Some(grad) => param.accumulate_grad(tape.context(), &grad),
        None => Ok(()),
    }
}

/// When gradients of weights are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    AtOnce,
    WeightsLater,
}

/// The state of a backward pass.
struct BackwardPass {
    slots: GradSlots,
    leaves: Vec<(Slot, Array)>,
    /// Gradients that the op before has left.
    later: Option<LaterGrads>,
    /// All that is left for the second part, if there is one.
    left: Option<Vec<Left>>,
}

/// Something that is left for the second part of backward.
#[derive(Debug)]
enum Left {
    Grads(LaterGrads),
    Param(Param, Slot),
    Ready(ParamBucket),
}

/// The second part of backward: gradients of weights.
#[derive(Debug)]
#[must_use = "gradients of weights are missing until it runs"]
pub struct WeightWork {
    slots: GradSlots,
    left: Vec<Left>,
}

impl WeightWork {
    /// Computes the gradients, adds them to their buckets, and tells the listener of `tape`, whose first part this was, which are
    /// complete.
    ///
    /// # Errors
    /// Errors of the ops and of the listener.
    pub fn run(self, tape: &Tape) -> Result<()> {
        let Self { mut slots, left } = self;
        for left in left {
            match left {
                Left::Grads(grads) => grads.run(tape, &mut slots)?,
                Left::Param(param, slot) => add_to(&param, slot, tape, &mut slots)?,
                Left::Ready(bucket) => {
                    let told = tape.listener().gradients_ready(&bucket);
                    told.map_err(TensorError::hook("gradients ready"))?;
                }
            }
        }
        Ok(())
    }
}

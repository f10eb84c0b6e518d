//! The backward pass, from the loss to the parameters.

use super::Tape;
use super::block::backward_span;
use super::grads::{GradSlots, Grads, LaterGrads};
use super::node::{Action, Node};
use super::value::Value;
use crate::backend::Array;
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
        let seed = match factor.into().0 {
            Factor::Known(factor) => backend.full(factor, loss_array.shape(), dtype)?,
            Factor::At(factor) if factor.is_host() => {
                backend.full(factor.number()?, loss_array.shape(), dtype)?
            }
            Factor::At(factor) => backend.cast(&factor, dtype)?.reshape(loss_array.shape().clone())?,
        };
        self.backward_from([(loss, seed)])
    }

    /// Differentiates with given gradients of several values.
    ///
    /// # Errors
    /// Errors of [`Tape::backward`]; and if a gradient and its value have different shapes.
    pub fn backward_from<'a, A: Into<Array>>(
        &self,
        seeds: impl IntoIterator<Item = (&'a Value, A)>,
    ) -> Result<()> {
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
        let mut leaves = Vec::new();
        let mut later = None;
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
            self.pass(node, &mut slots, &mut leaves, &mut later)?;
            spans.extend(begins.map(|block| backward_span(&block).entered()));
        }
        if let Some(pending) = later {
            pending.run(self, &mut slots)?;
        }
        let mut inner = self.inner.borrow_mut();
        inner.leaf_grads = leaves;
        inner.num_blocks = 0;
        Ok(())
    }

    /// Runs one node backward and drops it with its saved arrays. `later` are gradients that the node before has left.
    fn pass(
        &self,
        node: Node,
        slots: &mut GradSlots,
        leaves: &mut Vec<(usize, Array)>,
        later: &mut Option<LaterGrads>,
    ) -> Result<()> {
        let Node { inputs, outputs, action, _recorded, .. } = node;
        let (listener, failed) = (self.listener(), TensorError::hook);
        // All others may need them.
        if !matches!(action, Action::Op(_))
            && let Some(pending) = later.take()
        {
            pending.run(self, slots)?;
        }
        match action {
            Action::BlockEnd(name) => listener.before_backward(&name).map_err(failed("before backward")),
            Action::BlockStart(name) => listener.after_backward(&name).map_err(failed("after backward")),
            Action::FirstUse(used) => listener.gradients_ready(&used).map_err(failed("gradients ready")),
            Action::Leaf => {
                leaves.extend(slots.take(outputs.start).map(|grad| (outputs.start, grad)));
                Ok(())
            }
            Action::Param(param) => match slots.take(outputs.start) {
                Some(grad) => param.accumulate_grad(self.context(), &grad),
                None => Ok(()),
            },
            Action::Op(run) => {
                let grads_out: Vec<_> = outputs.map(|slot| slots.take(slot)).collect();
                if grads_out.iter().all(Option::is_none) {
                    return Ok(());
                }
                let mut grads = Grads::new(self.context(), slots, &inputs, later.take());
                run(self, grads_out, &mut grads)?;
                *later = grads.finish(self)?;
                Ok(())
            }
        }
    }
}

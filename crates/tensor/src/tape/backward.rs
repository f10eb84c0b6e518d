//! The walk from the loss back to the parameters.

use super::Tape;
use super::grads::{GradSlots, Grads};
use super::node::{Action, Node};
use super::value::Value;
use crate::backend::Array;
use crate::store::FlatParam;
use crate::{Result, TensorError};

impl Tape {
    /// Differentiates a loss of one element with respect to everything that it was computed from.
    ///
    /// Gradients of parameters are added to those already in their flat memory. The tape is empty afterwards.
    ///
    /// # Errors
    /// [`TensorError::Backward`] if the loss has more than one element or needs no gradient, and the errors of
    /// the ops and of the listener.
    pub fn backward(&self, loss: &Value) -> Result<()> {
        self.backward_scaled(loss, 1.0)
    }

    /// Differentiates `scale` times a loss of one element, so that every gradient is larger by that factor: small ones then do
    /// not vanish in f16. See [`crate::optim::LossScale`].
    ///
    /// # Errors
    /// Those of [`Tape::backward`].
    pub fn backward_scaled(&self, loss: &Value, scale: f64) -> Result<()> {
        if loss.shape().elem_count() != 1 {
            let problem = format!("the loss must have one element; this one has shape {:?}", loss.shape());
            return Err(TensorError::Backward(problem));
        }
        if !loss.needs_grad() {
            let problem = "the loss does not depend on any trainable parameter or leaf of this tape";
            return Err(TensorError::Backward(problem.into()));
        }
        let loss_array = loss.array()?;
        let seed = loss_array.backend(self.context()).full(scale, loss_array.shape(), loss_array.dtype())?;
        self.backward_from([(loss, seed)])
    }

    /// Differentiates with given gradients of several values.
    ///
    /// # Errors
    /// Those of [`Tape::backward`]; and if a gradient's shape is not its value's.
    pub fn backward_from<'a, A: Into<Array>>(
        &self,
        seeds: impl IntoIterator<Item = (&'a Value, A)>,
    ) -> Result<()> {
        let id = self.id.get();
        let (nodes, types) = {
            let mut inner = self.inner.borrow_mut();
            inner.leaf_grads.clear();
            (std::mem::take(&mut inner.nodes), std::mem::take(&mut inner.slot_types))
        };
        // From here on, values of this recording are recognised as past.
        self.past_id.set(id);
        self.id.set(super::fresh_id());
        let params = nodes.iter().filter_map(|node| match &node.action {
            Action::Param(param) => Some((node.outputs.start, param.clone())),
            _ => None,
        });
        let mut slots = GradSlots::new(types, params.collect());
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
        for node in nodes.into_iter().rev() {
            self.pass(node, &mut slots, &mut leaves)?;
        }
        let mut inner = self.inner.borrow_mut();
        inner.leaf_grads = leaves;
        inner.num_blocks = 0;
        Ok(())
    }

    /// Runs one node backward and drops it, with everything it saved.
    fn pass(&self, node: Node, slots: &mut GradSlots, leaves: &mut Vec<(usize, Array)>) -> Result<()> {
        let Node { inputs, outputs, uses, action, .. } = node;
        match action {
            Action::BlockEnd(name) => {
                self.notify("before backward", |listener| listener.before_backward(&name))?;
            }
            Action::BlockStart(name) => {
                self.notify("after backward", |listener| listener.after_backward(&name))?;
            }
            Action::Leaf => {
                if let Some(grad) = slots.take(outputs.start) {
                    leaves.push((outputs.start, grad));
                }
            }
            Action::Param(param) => {
                if let Some(grad) = slots.take(outputs.start) {
                    param.accumulate_grad(self.context(), &grad)?;
                }
            }
            Action::Op(run) => {
                let grads_out: Vec<_> = outputs.map(|slot| slots.take(slot)).collect();
                if grads_out.iter().any(Option::is_some) {
                    run(self, grads_out, &mut Grads { context: self.context(), slots, inputs: &inputs })?;
                }
            }
        }
        uses.iter().try_for_each(|used| self.end_use(used))
    }

    /// Counts one use as passed, and tells the listener of the last.
    fn end_use(&self, used: &FlatParam) -> Result<()> {
        let last = {
            let uses = &mut self.inner.borrow_mut().uses;
            let at = uses.iter().rposition(|(known, _)| known.is(used));
            let last = at.filter(|at| {
                uses[*at].1 -= 1;
                uses[*at].1 == 0
            });
            last.map(|at| uses.remove(at)).is_some()
        };
        if last { self.notify("gradients ready", |listener| listener.gradients_ready(used)) } else { Ok(()) }
    }
}

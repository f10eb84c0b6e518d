//! Blocks: the units of strategies and of activation checkpointing.

use std::sync::Arc;

use tracing::Span;

use super::node::{Action, Node};
use super::placement::Placement;
use super::recorded::RecordedBytes;
use super::value::{SavedValue, Value};
use super::{Mode, NodeOutput, Tape};
use crate::backend::Array;
use crate::{Result, TensorError};

/// A named part of a model whose parameters are gathered, released and reduced together.
///
/// The name must be that of the [`crate::Scope::block`] in which its parameters were registered
/// ([`crate::Scope::block_name`]). `forward` must be repeatable: the same inputs on tapes of the same session give
/// the same result.
pub trait Block: std::fmt::Debug + Send + Sync {
    /// The name of the block, a prefix of its parameters' names.
    fn name(&self) -> &str;

    /// Runs the block.
    ///
    /// # Errors
    /// Errors of its ops.
    fn forward(&self, tape: &Tape, inputs: &[Value]) -> Result<Vec<Value>>;
}

/// An input of a block that is computed again in backward.
struct SavedInput {
    value: SavedValue,
    needs_grad: bool,
    placement: Option<Placement>,
}

impl SavedInput {
    fn of(value: &Value) -> Self {
        Self { value: value.save(), needs_grad: value.needs_grad(), placement: value.placement() }
    }

    /// Returns the input on the tape that computes the block again.
    fn value(&self, tape: &Tape) -> Result<Value> {
        let array = self.value.array()?;
        let value = if self.needs_grad { tape.leaf(array) } else { Value::constant(array) };
        Ok(value.placed(self.placement))
    }
}

/// Returns the trace span of a block's forward, without the listener's calls.
fn forward_span(block: &str) -> Span {
    tracing::trace_span!(target: "phalanx_trace::compute", "forward", block)
}

/// Returns the trace span of a block's backward, without the listener's calls.
pub(super) fn backward_span(block: &str) -> Span {
    tracing::trace_span!(target: "phalanx_trace::compute", "backward", block)
}

impl Tape {
    /// Runs a block and calls the listener before and after it, in forward and later in backward.
    ///
    /// # Errors
    /// Errors of the block and of the listener.
    pub fn run(&self, block: &Arc<dyn Block>, inputs: &[Value]) -> Result<Vec<Value>> {
        let name: Arc<str> = block.name().into();
        let index = self.count_block();
        self.in_call(&name, inputs, |inputs| {
            self.announced(&name, || match self.records() && self.session().recompute.applies(index) {
                true => self.run_recomputed(block.clone(), inputs),
                false => block.forward(self, inputs),
            })
        })
    }

    /// Runs the inside of a block between calls of the listener.
    fn announced<R>(&self, name: &Arc<str>, run: impl FnOnce() -> Result<R>) -> Result<R> {
        self.listener().before_forward(name).map_err(TensorError::hook("before forward"))?;
        let span = forward_span(name).entered();
        let start = self.begin_block(name);
        let result = run().map_err(|error| error.in_block(name))?;
        self.end_block(name, start);
        drop(span);
        self.listener().after_forward(name).map_err(TensorError::hook("after forward"))?;
        Ok(result)
    }

    /// Runs a block with one input and one output.
    ///
    /// # Errors
    /// Errors of the block and of the listener, or if the block returns another number of outputs.
    pub fn run1(&self, block: &Arc<dyn Block>, input: &Value) -> Result<Value> {
        let mut outputs = self.run(block, std::slice::from_ref(input))?;
        match (outputs.pop(), outputs.is_empty()) {
            (Some(output), true) => Ok(output),
            _ => Err(TensorError::shape("run1", format!("block `{}` must give one output", block.name()))),
        }
    }

    /// Runs blocks of one input and one output in sequence.
    ///
    /// # Errors
    /// As [`Tape::run1`].
    pub fn run_sequence(&self, blocks: &[Arc<dyn Block>], input: &Value) -> Result<Value> {
        blocks.iter().try_fold(input.clone(), |x, block| self.run1(block, &x))
    }

    /// Runs a function of one value as the block called `name`, which is not recomputed: a head that reads a table of another part of
    /// the model, or whose loss keeps little. The listener is called as by [`Tape::run`].
    ///
    /// # Errors
    /// Errors of the function and of the listener.
    pub fn run_as(
        &self,
        name: &str,
        input: &Value,
        run: impl FnOnce(&Value) -> Result<Value>,
    ) -> Result<Value> {
        let name: Arc<str> = name.into();
        self.count_block();
        let mut outputs = self.in_call(&name, std::slice::from_ref(input), |inputs| {
            self.announced(&name, || Ok(vec![run(&inputs[0])?]))
        })?;
        outputs
            .pop()
            .ok_or_else(|| TensorError::shape("run_as", format!("block `{name}` must give one output")))
    }

    /// As [`Tape::run_as`], of a function with any result. In a pipeline only passes whose values all ranks get ([`StageRole::Share`])
    /// have such calls, and what these find stays with the rank that computes the block: keys and values that later calls of it read.
    ///
    /// # Errors
    /// Errors of the function and of the listener.
    ///
    /// [`StageRole::Share`]: super::StageRole::Share
    pub fn in_block<R>(&self, name: &str, run: impl FnOnce() -> Result<R>) -> Result<R> {
        let name: Arc<str> = name.into();
        self.count_block();
        let Some(stage) = &self.stage else { return self.announced(&name, run) };
        if stage.share().is_none() {
            let problem =
                format!("block `{name}` runs a function whose values the ranks of a pipeline cannot send");
            return Err(TensorError::Backward(problem));
        }
        stage.enter(&name)?;
        let result = self.announced(&name, run);
        stage.leave();
        result
    }

    /// Runs the block without recording, and records one node that recomputes it in backward.
    fn run_recomputed(&self, block: Arc<dyn Block>, inputs: &[Value]) -> Result<Vec<Value>> {
        let keys_at = self.keys_drawn();
        let (frozen, split_length) = (self.frozen.get(), self.split_length.get());
        let (outputs, used) = self.without_recording(|| block.forward(self, inputs))?;
        let reads_elsewhere = std::mem::take(&mut self.inner.borrow_mut().collected_elsewhere);
        if used.is_empty() && !reads_elsewhere && !inputs.iter().any(Value::needs_grad) {
            return Ok(outputs);
        }
        const OP: &str = "recomputed block";
        let inputs_of_op: Vec<&Value> = inputs.iter().chain(&outputs).collect();
        let numbered = outputs.iter().map(|output| self.number(OP, &inputs_of_op, &output.part()?));
        let numbered = numbered.collect::<Result<Vec<_>>>()?;
        if self.is_elsewhere() {
            let made = outputs.iter().map(NodeOutput::of).collect::<Result<Vec<_>>>()?;
            let made = self.push_elsewhere(OP, &inputs.iter().collect::<Vec<_>>(), made)?;
            return made
                .into_iter()
                .zip(numbered)
                .map(|(value, number)| self.placed_in_chunk(value, number))
                .collect();
        }
        let saved: Vec<SavedInput> = inputs.iter().map(SavedInput::of).collect();
        let again = move |tape: &Tape, mut grads_out: Vec<Option<Array>>, grads: &mut super::Grads<'_>| {
            let inner = Tape::nested(tape, keys_at);
            inner.frozen.set(frozen);
            inner.split_length.set(split_length);
            let mut inputs = Vec::with_capacity(saved.len());
            for input in &saved {
                inputs.push(input.value(&inner)?);
            }
            let outputs = block.forward(&inner, &inputs)?;
            let seeds: Vec<(&Value, Array)> = outputs
                .iter()
                .zip(&mut grads_out)
                .filter_map(|(value, grad)| Some((value, grad.take()?)))
                .collect();
            let seeds: Vec<_> = seeds.into_iter().filter(|(value, _)| value.needs_grad()).collect();
            let work = match tape.leaves_weights() {
                true => Some(inner.backward_inputs(seeds)?),
                false => inner.backward_from(seeds).map(|()| None)?,
            };
            for (index, input) in inputs.iter().enumerate() {
                if let Some(grad) = inner.leaf_grad(input) {
                    grads.share(index, grad)?;
                }
            }
            drop(outputs);
            if let Some(work) = work {
                grads.later(move |_, _| work.run(&inner));
            }
            Ok(())
        };
        let outputs = outputs.iter().map(NodeOutput::of).collect::<Result<Vec<_>>>()?;
        let arrays: Vec<Array> = outputs.iter().map(|made| made.array.clone()).collect();
        let inputs: Vec<&Value> = inputs.iter().collect();
        let recorded = RecordedBytes::of(&inputs, &arrays);
        let made = self.push_node(OP, &inputs, outputs, &used, recorded, Box::new(again))?;
        made.into_iter().zip(numbered).map(|(value, number)| self.placed_in_chunk(value, number)).collect()
    }

    /// Runs `f` with recording off, and collects the buckets of the trainable parameters that it reads.
    fn without_recording<R>(&self, f: impl FnOnce() -> Result<R>) -> Result<(R, Vec<crate::ParamBucket>)> {
        let before = self.mode.replace(Mode::Collecting);
        let result = f();
        self.mode.set(before);
        let used = std::mem::take(&mut self.inner.borrow_mut().collected);
        Ok((result?, used))
    }

    /// Marks the start of a block, if ops are recorded. Returns the number of nodes before it.
    fn begin_block(&self, name: &Arc<str>) -> usize {
        let nodes = &mut self.inner.borrow_mut().nodes;
        let start = nodes.len();
        if self.records() {
            nodes.push(Node::bare(Action::BlockStart(name.clone())));
        }
        start
    }

    /// Marks the end of a block. Backward does not enter a block without recorded ops, such as frozen layers before the first
    /// trained one, so its parameters need not be gathered again.
    fn end_block(&self, name: &Arc<str>, start: usize) {
        let nodes = &mut self.inner.borrow_mut().nodes;
        if !self.records() {
            return;
        }
        match nodes.len() == start + 1 {
            true => drop(nodes.pop()),
            false => nodes.push(Node::bare(Action::BlockEnd(name.clone()))),
        }
    }
}

//! Graphs of traced forward passes, for exporters.

use candle_core::Shape;

use super::op::{GraphInput, Op};
use super::{Mode, Session, Tape, Value};
use crate::backend::Array;
use crate::{Result, TensorError};

/// A traced forward pass: its ops in the order in which they ran.
#[derive(Debug)]
pub struct Graph {
    /// The inputs.
    pub inputs: Vec<GraphPort>,
    /// The outputs.
    pub outputs: Vec<GraphPort>,
    /// The ops.
    pub nodes: Vec<GraphNode>,
}

/// An input or an output of a graph.
#[derive(Debug, Clone)]
pub struct GraphPort {
    /// The number of the value.
    pub value: usize,
    /// The shape.
    pub shape: Shape,
}

/// An op of a graph.
#[derive(Debug)]
pub struct GraphNode {
    /// The op with its attributes.
    pub op: Op,
    /// Its inputs, in the order of the op's function.
    pub inputs: Vec<GraphInput>,
    /// The number of its output among the values.
    pub output: usize,
    /// The shape of its output.
    pub shape: Shape,
}

impl Tape {
    /// Makes a tape that traces an evaluation: every op is recorded with its attributes, none for backward.
    /// [`Tape::leaf`] makes the inputs, and [`Tape::into_graph`] returns the record.
    pub fn tracing(session: Session) -> Self {
        Self::with_mode(session, Mode::Tracing)
    }

    /// Returns the graph of a tracing tape from `inputs` to `outputs`.
    ///
    /// # Errors
    /// [`TensorError::Trace`] if the tape does not trace, or a value was computed outside of it.
    pub fn into_graph(self, inputs: &[&Value], outputs: &[&Value]) -> Result<Graph> {
        if self.mode.get() != Mode::Tracing {
            return Err(TensorError::Trace(
                "the tape does not trace; `Tape::tracing` makes one that does".into(),
            ));
        }
        let id = self.id.get();
        let ports = |values: &[&Value]| -> Result<Vec<GraphPort>> {
            let port = |value: &&Value| {
                let outside = || TensorError::Trace("an output was not computed by ops on the tape".into());
                let slot = value.slot_on(id, "trace")?.ok_or_else(outside)?;
                Ok(GraphPort { value: slot, shape: value.shape().clone() })
            };
            values.iter().map(port).collect()
        };
        let (inputs, outputs) = (ports(inputs)?, ports(outputs)?);
        Ok(Graph { inputs, outputs, nodes: self.inner.into_inner().traced })
    }

    /// Adds an op to the graph.
    pub(super) fn trace(&self, op: Op, inputs: &[&Value], output: Array) -> Result<Value> {
        let (id, name) = (self.id.get(), op.name());
        let inputs = inputs.iter().map(|value| value.graph_input(id, name)).collect::<Result<Vec<_>>>()?;
        let mut inner = self.inner.borrow_mut();
        let slot = inner.new_slots([output.dtype()]);
        inner.traced.push(GraphNode { op, inputs, output: slot, shape: output.shape().clone() });
        Ok(Value::recorded(output, id, slot))
    }
}

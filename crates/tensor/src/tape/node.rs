//! Nodes of the tape, one for each op.

use std::ops::Range;
use std::sync::Arc;

use super::Tape;
use super::grads::Grads;
use super::recorded::RecordedBytes;
use super::value::Slot;
use crate::Result;
use crate::backend::Array;
use crate::store::{Param, ParamBucket};

/// Computes the gradients of an op's inputs from those of its outputs.
pub(super) type BackwardFn = Box<dyn FnOnce(&Tape, Vec<Option<Array>>, &mut Grads<'_>) -> Result<()>>;

/// The backward action of a node.
pub(super) enum Action {
    /// Runs an op's backward.
    Op(BackwardFn),
    /// Adds the gradient to a parameter's.
    Param(Param),
    /// Keeps the gradient for the caller.
    Leaf,
    /// An op of another chunk of a pipeline: keeps the gradient for it.
    Elsewhere,
    /// The start of a block.
    BlockStart(Arc<str>),
    /// The end of a block.
    BlockEnd(Arc<str>),
    /// Before the first use of a bucket: when backward gets here, it has passed all uses.
    FirstUse(ParamBucket),
}

/// An entry of the tape.
pub(super) struct Node {
    pub(super) op: &'static str,
    pub(super) inputs: Vec<Option<Slot>>,
    pub(super) outputs: Range<Slot>,
    pub(super) action: Action,
    /// Counts its outputs until it is dropped.
    pub(super) _recorded: RecordedBytes,
}

impl Node {
    pub(super) fn bare(action: Action) -> Self {
        Self { op: "mark", inputs: Vec::new(), outputs: 0..0, action, _recorded: RecordedBytes::default() }
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}({:?}) -> {:?}", self.op, self.inputs, self.outputs)
    }
}

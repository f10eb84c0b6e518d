//! Arithmetic of reductions.

use crate::dtype::{Element, ReduceOp};

/// acc ← acc ∘ other, elementwise.
pub(crate) fn reduce_into<T: Element>(op: ReduceOp, acc: &mut [T], other: &[T]) {
    // One loop for each operation, so that each vectorises.
    macro_rules! each {
        ($op:expr) => {
            acc.iter_mut().zip(other).for_each(|(a, b)| *a = T::combine($op, *a, *b))
        };
    }
    match op {
        ReduceOp::Sum | ReduceOp::Mean => each!(ReduceOp::Sum),
        ReduceOp::Min => each!(ReduceOp::Min),
        ReduceOp::Max => each!(ReduceOp::Max),
        ReduceOp::Product => each!(ReduceOp::Product),
    }
}

/// A reduction over a number of ranks. A mean is a sum that is divided once, when a value is complete.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reduction {
    pub(crate) op: ReduceOp,
    ranks: usize,
}

impl Reduction {
    pub(crate) fn new(op: ReduceOp, ranks: usize) -> Self {
        Self { op, ranks }
    }

    /// Returns this reduction for a phase whose results are reduced further: a mean is not divided yet.
    pub(crate) fn partial(self) -> Self {
        let op = if self.op == ReduceOp::Mean { ReduceOp::Sum } else { self.op };
        Self { op, ..self }
    }

    /// acc ← acc ∘ other.
    pub(crate) fn combine<T: Element>(self, acc: &mut [T], other: &[T]) {
        reduce_into(self.op, acc, other);
    }

    /// Completes values that contain the contributions of all ranks: divides a mean.
    pub(crate) fn complete<T: Element>(self, values: &mut [T]) {
        if self.op == ReduceOp::Mean {
            values.iter_mut().for_each(|value| *value = value.divide(self.ranks));
        }
    }
}

//! The arithmetic of reductions: one buffer into another.

use crate::dtype::{Element, ReduceOp};

/// acc ← acc ∘ other, elementwise.
pub(crate) fn reduce_into<T: Element>(op: ReduceOp, acc: &mut [T], other: &[T]) {
    // One loop an operation, so that each vectorises.
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

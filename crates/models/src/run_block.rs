//! Running a block of several inputs and one output.

use std::sync::Arc;

use phalanx_tensor::{Block, Result, Tape, TensorError, Value};

/// Runs a block that returns one value.
///
/// # Errors
/// Errors of the block, or if it returns another number of values.
pub(crate) fn run_block(tape: &Tape, block: &Arc<dyn Block>, inputs: &[Value]) -> Result<Value> {
    let mut outputs = tape.run(block, inputs)?;
    match (outputs.pop(), outputs.is_empty()) {
        (Some(value), true) => Ok(value),
        _ => Err(TensorError::Backward(format!("block {} must return one value", block.name()))),
    }
}

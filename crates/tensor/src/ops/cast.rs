//! Changes of the element type.

use candle_core::DType;

use crate::Result;
use crate::tape::{PlacementRule, Tape, Value};

/// Converts a value to another floating-point type. Its gradient is converted back.
///
/// # Errors
/// If memory cannot be allocated.
pub fn cast(tape: &Tape, x: &Value, dtype: DType) -> Result<Value> {
    let (input, before) = (x.part()?, x.dtype()?);
    if before == dtype {
        return Ok(x.clone());
    }
    let output = input.backend(tape.context()).cast(&input, dtype)?;
    tape.push_by(PlacementRule::Elementwise, "cast", &[x], output, move |tape, grad, grads| {
        grads.add(0, grad.backend(tape.context()).cast(grad, before)?)
    })
}

//! Constants like a value.

use crate::Result;
use crate::tape::{Tape, Value};

/// Makes a constant with the shape, the element type and the device of `like`, filled with `number`: the target of a
/// loss.
///
/// # Errors
/// If memory cannot be allocated.
pub fn full_like(tape: &Tape, like: &Value, number: f64) -> Result<Value> {
    let like = like.array()?;
    Ok(Value::constant(like.backend(tape.context()).full(number, like.shape(), like.dtype())?))
}

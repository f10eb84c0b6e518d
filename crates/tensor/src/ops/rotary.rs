//! Rotary position embeddings (Su et al. 2021).

use super::Indices;
use crate::backend::RotaryAngles;
use crate::tape::{Placement, PlacementRule, Tape, Value};
use crate::{Result, TensorError};

const OP: &str = "rotary";

/// Returns cosines and sines of each position times each frequency, times `scale`, as constants of shape
/// [..positions, frequencies], for [`rotary`].
///
/// # Errors
/// If memory cannot be allocated.
pub fn rotary_angles<'a>(
    tape: &Tape,
    positions: impl Into<Indices<'a>>,
    frequencies: &[f64],
    scale: f64,
) -> Result<[Value; 2]> {
    let backend = tape.backend();
    let positions = positions.into().on(OP, backend)?;
    let RotaryAngles { cos, sin } = backend.rotary_angles(&positions, frequencies, scale)?;
    Ok([Value::constant(cos), Value::constant(sin)])
}

/// Rotates the pairs (i, i + D/2) of `x` [.., heads, D], as a projection writes it, by the angles of each position,
/// [.., D/2]. Positions are those of the angles, not columns, so that packed texts and caches have their own.
///
/// # Errors
/// If the shapes do not match.
pub fn rotary(tape: &Tape, x: &Value, [cos, sin]: [&Value; 2]) -> Result<Value> {
    let expected = match x.dims() {
        [lead @ .., _, dim] if dim.is_multiple_of(2) => [lead, &[dim / 2]].concat(),
        _ => {
            return Err(TensorError::shape(
                OP,
                format!("expected [.., heads, D] with even D, not {:?}", x.shape()),
            ));
        }
    };
    for angles in [cos, sin] {
        if angles.dims() != expected {
            let problem = format!("angles {:?} for {:?}; expected {expected:?}", angles.shape(), x.shape());
            return Err(TensorError::shape(OP, problem));
        }
    }
    let rule = match x.placement() {
        // Pairs lie apart.
        Some(Placement::Shard { dim }) if dim + 1 == x.dims().len() => PlacementRule::Whole,
        _ => PlacementRule::Elementwise,
    };
    let input = x.contiguous_part()?;
    let angles = RotaryAngles { cos: cos.contiguous()?, sin: sin.contiguous()? };
    let output = input.backend(tape.context()).rotary(&input, &angles, false)?;
    tape.push_by(rule, OP, &[x], output, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        grads.add(0, grad.backend(tape.context()).rotary(&grad, &angles, true)?)
    })
}

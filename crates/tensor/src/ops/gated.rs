//! Gated linear units (Shazeer 2020).

use crate::backend::Array;
use crate::tape::{Placement, PlacementRule, Tape, Value};
use crate::{Context, Result, TensorError};

/// Computes value·gelu(gate) (GEGLU, Shazeer 2020): [.., 2·width] to [.., width]. The last dimension of `x` has the
/// values, then as many gates.
///
/// # Errors
/// If the last dimension is odd, or there is none.
pub fn geglu(tape: &Tape, x: &Value) -> Result<Value> {
    if !x.dims().last().is_some_and(|last| last.is_multiple_of(2)) {
        let problem = format!("{:?} has no last dimension of values and as many gates", x.shape());
        return Err(TensorError::shape("geglu", problem));
    }
    let last = x.dims().len() - 1;
    let rule = match x.placement() {
        Some(Placement::Joint { dim, parts: 2 }) if dim == last => {
            PlacementRule::Own(Placement::Shard { dim })
        }
        Some(cut @ Placement::Shard { dim }) if dim != last => PlacementRule::Own(cut),
        _ => PlacementRule::Whole,
    };
    let input = x.contiguous_part()?;
    let output = input.backend(tape.context()).geglu(&input)?;
    let again = input.clone();
    let compute = move |context: &Context| Ok(again.backend(context).geglu(&again)?);
    tape.push_remade(("geglu", rule), &[x], output, compute, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        grads.add(0, grad.backend(tape.context()).geglu_backward(&input, &grad)?)
    })
}

/// Computes silu(gate)·value (SwiGLU, Shazeer 2020) of equal shapes. Backward keeps only the inputs.
///
/// # Errors
/// If the shapes differ.
pub fn swiglu(tape: &Tape, gate: &Value, value: &Value) -> Result<Value> {
    if gate.shape() != value.shape() {
        return Err(TensorError::unequal("swiglu", gate.shape(), value.shape()));
    }
    let (gate_t, value_t) = (gate.contiguous_part()?, value.contiguous_part()?);
    let output = Array::backend_of(tape.context(), [&gate_t, &value_t]).swiglu(&gate_t, &value_t)?;
    let again = [gate_t.clone(), value_t.clone()];
    let compute = move |context: &Context| Ok(again[0].backend(context).swiglu(&again[0], &again[1])?);
    let op = ("swiglu", PlacementRule::Elementwise);
    tape.push_remade(op, &[gate, value], output, compute, move |tape, grad, grads| {
        let grad = grad.contiguous()?;
        let [dgate, dvalue] = grad.backend(tape.context()).swiglu_backward(&gate_t, &value_t, &grad)?;
        grads.add(0, dgate)?;
        grads.add(1, dvalue)
    })
}

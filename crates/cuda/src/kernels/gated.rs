//! Gated linear units (Shazeer 2020).

use super::grid::{backward_suffix, check, check_float, check_len, launch, over, pack};
use super::sources::GATED;
use crate::{Gpu, GpuError, Result, Slice};

/// Checks that `x` has rows of `width` values and as many gates.
fn check_rows(function: &'static str, x: &Slice, width: usize) -> Result<()> {
    if width == 0 || !x.len().is_multiple_of(2 * width) {
        let problem = format!("{} elements are not rows of {width} values and as many gates", x.len());
        return Err(GpuError::argument(function, problem));
    }
    Ok(())
}

/// Computes value·gelu(gate) of rows with `width` values and then as many gates (GEGLU, Shazeer 2020). The result has half as
/// many elements.
///
/// # Errors
/// If the elements are not floats, or no such rows.
pub fn geglu(gpu: &Gpu, x: &Slice, width: usize) -> Result<Slice> {
    const FUNCTION: &str = "geglu";
    check_float(FUNCTION, x.dtype())?;
    check_rows(FUNCTION, x, width)?;
    let y = gpu.unwritten(x.dtype(), x.len() / 2)?;
    launch(gpu, &GATED, &format!("geglu_{}", x.dtype()), over(y.len(), 1))
        .slice(x)
        .slice(&y)
        .number(y.len() as i64)
        .number(width as i64)
        .run()?;
    Ok(y)
}

/// Computes the gradient of the input of [`geglu`], of dy's type.
///
/// # Errors
/// If lengths do not match, or the gradient is neither of x's type nor of its compute type.
pub fn geglu_backward(gpu: &Gpu, x: &Slice, dy: &Slice, width: usize) -> Result<Slice> {
    const FUNCTION: &str = "geglu_backward";
    check_rows(FUNCTION, x, width)?;
    check_len(FUNCTION, "dy", dy, x.len() / 2)?;
    let suffix = backward_suffix(FUNCTION, x.dtype(), dy.dtype())?;
    let dx = gpu.unwritten(dy.dtype(), x.len())?;
    launch(gpu, &GATED, &format!("geglu_backward_{suffix}"), over(dy.len(), 1))
        .slice(x)
        .slice(dy)
        .slice(&dx)
        .number(dy.len() as i64)
        .number(width as i64)
        .run()?;
    Ok(dx)
}

/// Computes silu(gate)·value.
///
/// # Errors
/// If lengths or types differ, or the elements are not floats.
pub fn swiglu(gpu: &Gpu, gate: &Slice, value: &Slice) -> Result<Slice> {
    const FUNCTION: &str = "swiglu";
    let dtype = gate.dtype();
    check_float(FUNCTION, dtype)?;
    check(FUNCTION, "value", value, dtype, gate.len())?;
    let y = gpu.unwritten(dtype, gate.len())?;
    launch(gpu, &GATED, &format!("swiglu_{dtype}"), over(y.len(), pack(&[dtype])))
        .slice(gate)
        .slice(value)
        .slice(&y)
        .number(y.len() as i64)
        .run()?;
    Ok(y)
}

/// Computes the gradients of the gates and of the values of [`swiglu`], of dy's type.
///
/// # Errors
/// If lengths do not match, or the gradient is neither of the type of gates and values nor of its compute type.
pub fn swiglu_backward(gpu: &Gpu, gate: &Slice, value: &Slice, dy: &Slice) -> Result<[Slice; 2]> {
    const FUNCTION: &str = "swiglu_backward";
    check(FUNCTION, "value", value, gate.dtype(), gate.len())?;
    check_len(FUNCTION, "dy", dy, gate.len())?;
    let suffix = backward_suffix(FUNCTION, gate.dtype(), dy.dtype())?;
    let (dgate, dvalue) = (gpu.unwritten(dy.dtype(), dy.len())?, gpu.unwritten(dy.dtype(), dy.len())?);
    let grid = over(dy.len(), pack(&[gate.dtype(), dy.dtype()]));
    launch(gpu, &GATED, &format!("swiglu_backward_{suffix}"), grid)
        .slice(gate)
        .slice(value)
        .slice(dy)
        .slice(&dgate)
        .slice(&dvalue)
        .number(dy.len() as i64)
        .run()?;
    Ok([dgate, dvalue])
}

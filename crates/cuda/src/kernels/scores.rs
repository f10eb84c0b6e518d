//! Scaling and masking of attention scores before softmax.

use super::grid::{launch, narrow_size, over};
use super::sources::SCORES;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// Multiplies scores of matrices `[length, keys]` by `factor`, in place. With `causal`, scores of later keys become −∞.
///
/// # Errors
/// If the length is not that of whole matrices, or the elements are neither f32 nor f64.
pub fn scale_and_mask(
    gpu: &Gpu,
    scores: &Slice,
    [length, keys]: [usize; 2],
    factor: f64,
    causal: bool,
) -> Result<()> {
    const FUNCTION: &str = "scale_and_mask";
    if !matches!(scores.dtype(), ElementType::F32 | ElementType::F64) {
        return Err(GpuError::unsupported(FUNCTION, scores.dtype().to_string()));
    }
    if scores.is_empty() {
        return Ok(());
    }
    if !scores.len().is_multiple_of((length * keys).max(1)) {
        let problem = format!("{} elements are not matrices of {length}×{keys}", scores.len());
        return Err(GpuError::argument(FUNCTION, problem));
    }
    launch(gpu, &SCORES, &format!("{FUNCTION}_{}", scores.dtype()), over(scores.len(), 4))
        .slice(scores)
        .number(factor)
        .number(narrow_size(FUNCTION, length)?)
        .number(narrow_size(FUNCTION, keys)?)
        .number(i32::from(causal))
        .number(scores.len() as i64)
        .run()
}

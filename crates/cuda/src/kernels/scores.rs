//! Scaling and masking of attention scores before softmax, and dropout of the weights after it.

use super::attention_inputs::{AttentionMask, AttentionSizes};
use super::dropout::Dropout;
use super::grid::{check_len, launch, over};
use super::sources::SCORES;
use crate::{ElementType, Gpu, GpuError, Result, Slice};

/// Multiplies scores [samples, heads, length, keys] by `factor`, in place. Scores of hidden keys become −∞.
///
/// # Errors
/// If the lengths do not match, or the elements are neither f32 nor f64.
pub fn scale_and_mask(
    gpu: &Gpu,
    scores: &Slice,
    sizes: &AttentionSizes,
    mask: AttentionMask<'_>,
    factor: f64,
) -> Result<()> {
    const FUNCTION: &str = "scale_and_mask";
    if !matches!(scores.dtype(), ElementType::F32 | ElementType::F64) {
        return Err(GpuError::unsupported(FUNCTION, scores.dtype().to_string()));
    }
    check_len(FUNCTION, "scores", scores, sizes.rows() * sizes.keys)?;
    mask.check(FUNCTION, sizes)?;
    if scores.is_empty() {
        return Ok(());
    }
    launch(gpu, &SCORES, &format!("{FUNCTION}_{}", scores.dtype()), over(scores.len(), 4))
        .slice(scores)
        .optional(mask.lengths)
        .optional(mask.starts)
        .number(sizes.numbers(FUNCTION, [0; 3])?)
        .number(factor)
        .number(scores.len() as i64)
        .run()
}

/// Returns weights [samples, heads, length, keys], or their gradients, after dropout.
///
/// # Errors
/// If the lengths do not match, or memory runs out.
pub fn drop_weights(gpu: &Gpu, weights: &Slice, sizes: &AttentionSizes, dropout: Dropout) -> Result<Slice> {
    const FUNCTION: &str = "drop_weights";
    super::grid::check_float(FUNCTION, weights.dtype())?;
    check_len(FUNCTION, "weights", weights, sizes.rows() * sizes.keys)?;
    let dropped = gpu.unwritten(weights.dtype(), weights.len())?;
    let step = gpu.captured_step(dropout.key.step);
    launch(gpu, &SCORES, &format!("{FUNCTION}_{}", weights.dtype()), over(weights.len(), 4))
        .slice(weights)
        .slice(&dropped)
        .optional(step.as_ref())
        .number(sizes.numbers(FUNCTION, [0; 3])?)
        .number(dropout.numbers())
        .number(dropout.factor())
        .number(weights.len() as i64)
        .run()?;
    Ok(dropped)
}

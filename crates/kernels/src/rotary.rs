//! Rotary position embeddings (Su et al. 2021), by halves.

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;

/// Cosines and sines of positions, each `[positions, dim / 2]`.
#[derive(Debug, Clone, Copy)]
pub struct Rotation<'a> {
    /// The cosines.
    pub cos: &'a [f32],
    /// The sines.
    pub sin: &'a [f32],
    /// True to rotate back.
    pub inverse: bool,
}

/// Rotates the pairs (i, i + dim/2) of every head: `x` and `y` are [positions, heads, dim].
///
/// # Errors
/// If `dim` is odd, or a length does not match.
pub fn rotary<T: Float>(
    context: &Context,
    [positions, heads, dim]: [usize; 3],
    rotation: Rotation<'_>,
    x: &[T],
    y: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "rotary";
    let half = dim / 2;
    check_len(KERNEL, "dim", 2 * half, dim)?;
    check_len(KERNEL, "x", positions * heads * dim, x.len())?;
    check_len(KERNEL, "y", x.len(), y.len())?;
    check_len(KERNEL, "cos", positions * half, rotation.cos.len())?;
    check_len(KERNEL, "sin", positions * half, rotation.sin.len())?;
    if x.is_empty() {
        return Ok(());
    }
    let width = heads * dim;
    let piece = context.piece(y.len(), width);
    context.run_chunks(y, piece, |task, y| {
        let first = task * piece / width;
        context.simd(
            #[inline(always)]
            || {
                for (row, y) in y.chunks_exact_mut(width).enumerate() {
                    let at = first + row;
                    let cos = &rotation.cos[at * half..][..half];
                    let sin = &rotation.sin[at * half..][..half];
                    let x = &x[at * width..][..width];
                    for (x, y) in x.chunks_exact(dim).zip(y.chunks_exact_mut(dim)) {
                        rotate(x, y, cos, sin, rotation.inverse);
                    }
                }
            },
        );
    });
    Ok(())
}

#[inline(always)]
fn rotate<T: Float>(x: &[T], y: &mut [T], cos: &[f32], sin: &[f32], inverse: bool) {
    let half = cos.len();
    let ((a, b), (to_a, to_b)) = (x.split_at(half), y.split_at_mut(half));
    let sign = T::from_f64(if inverse { -1.0 } else { 1.0 });
    let wide = |value: f32| T::from_f64(f64::from(value));
    for i in 0..half {
        let (cos, sin) = (wide(cos[i]), wide(sin[i]) * sign);
        to_a[i] = a[i] * cos - b[i] * sin;
        to_b[i] = b[i] * cos + a[i] * sin;
    }
}

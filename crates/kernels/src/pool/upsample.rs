//! Nearest-neighbour resampling of planes to any size, by PyTorch's rule: source = ⌊target · from / to⌋.

use crate::context::Context;
use crate::error::{KernelError, Result, check_len};
use crate::float::Float;

fn check(
    kernel: &'static str,
    planes: usize,
    from: [usize; 2],
    to: [usize; 2],
    small: usize,
    large: usize,
) -> Result<()> {
    if from.contains(&0) || to.contains(&0) {
        let problem = format!("sizes must be at least 1, not {from:?} to {to:?}");
        return Err(KernelError::Shape { kernel, problem });
    }
    check_len(kernel, "input", planes * from[0] * from[1], small)?;
    check_len(kernel, "output", planes * to[0] * to[1], large)
}

/// Copies the nearest source pixel: `x` is [planes, from], `y` [planes, to], sizes as [height, width].
///
/// # Errors
/// If a length does not match the shape.
pub fn upsample_nearest2d_forward<T: Float>(
    context: &Context,
    planes: usize,
    from: [usize; 2],
    to: [usize; 2],
    x: &[T],
    y: &mut [T],
) -> Result<()> {
    check("upsample_nearest2d_forward", planes, from, to, x.len(), y.len())?;
    context.run_planes(y, to[0] * to[1], |plane, y| {
        let x = &x[plane * from[0] * from[1]..(plane + 1) * from[0] * from[1]];
        let doubling = to[1] == 2 * from[1];
        for (row, y) in y.chunks_exact_mut(to[1]).enumerate() {
            let x = &x[row * from[0] / to[0] * from[1]..][..from[1]];
            if doubling {
                for (y, x) in y.as_chunks_mut::<2>().0.iter_mut().zip(x) {
                    *y = [*x; 2];
                }
            } else {
                y.iter_mut().enumerate().for_each(|(col, y)| *y = x[col * from[1] / to[1]]);
            }
        }
    });
    Ok(())
}

/// Adds each target pixel's gradient to its source's; `dx` is overwritten.
///
/// # Errors
/// If a length does not match the shape.
pub fn upsample_nearest2d_backward<T: Float>(
    context: &Context,
    planes: usize,
    from: [usize; 2],
    to: [usize; 2],
    dy: &[T],
    dx: &mut [T],
) -> Result<()> {
    check("upsample_nearest2d_backward", planes, from, to, dx.len(), dy.len())?;
    context.run_planes(dx, from[0] * from[1], |plane, dx| {
        dx.fill(T::ZERO);
        let dy = &dy[plane * to[0] * to[1]..(plane + 1) * to[0] * to[1]];
        let doubling = to[1] == 2 * from[1];
        for (row, dy) in dy.chunks_exact(to[1]).enumerate() {
            let dx = &mut dx[row * from[0] / to[0] * from[1]..][..from[1]];
            if doubling {
                for (dx, dy) in dx.iter_mut().zip(dy.as_chunks::<2>().0) {
                    *dx += dy[0] + dy[1];
                }
            } else {
                dy.iter().enumerate().for_each(|(col, dy)| dx[col * from[1] / to[1]] += *dy);
            }
        }
    });
    Ok(())
}

//! Average pooling.

use super::Pool2dShape;
use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;

/// The factor of a window's sum.
#[inline(always)]
fn weight<T: Float>(shape: &Pool2dShape, include_pad: bool, rows: usize, cols: usize) -> T {
    let count = if include_pad { shape.kernel[0] * shape.kernel[1] } else { rows * cols };
    T::from_f64(1.0 / count.max(1) as f64)
}

/// Computes the mean of each window. With `include_pad` the border counts as zeros, otherwise it does not count.
///
/// # Errors
/// If a length does not match the shape.
pub fn avg_pool2d_forward<T: Float>(
    context: &Context,
    shape: &Pool2dShape,
    include_pad: bool,
    x: &[T],
    y: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "avg_pool2d_forward";
    shape.validate()?;
    check_len(KERNEL, "x", shape.input_len(), x.len())?;
    check_len(KERNEL, "y", shape.output_len(), y.len())?;
    let (in_plane, out_plane) = (shape.height * shape.width, shape.out_height() * shape.out_width());
    context.run_planes(y, out_plane, |plane, y| {
        let x = &x[plane * in_plane..(plane + 1) * in_plane];
        for (at, y) in y.iter_mut().enumerate() {
            let rows = shape.window(0, at / shape.out_width());
            let cols = shape.window(1, at % shape.out_width());
            let weight = weight::<T>(shape, include_pad, rows.len(), cols.len());
            let sum: T =
                rows.map(|row| x[row * shape.width..][cols.clone()].iter().copied().sum::<T>()).sum();
            *y = sum * weight;
        }
    });
    Ok(())
}

/// Spreads each output's gradient over its window; `dx` is overwritten.
///
/// # Errors
/// If a length does not match the shape.
pub fn avg_pool2d_backward<T: Float>(
    context: &Context,
    shape: &Pool2dShape,
    include_pad: bool,
    dy: &[T],
    dx: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "avg_pool2d_backward";
    shape.validate()?;
    check_len(KERNEL, "dx", shape.input_len(), dx.len())?;
    check_len(KERNEL, "dy", shape.output_len(), dy.len())?;
    let (in_plane, out_plane) = (shape.height * shape.width, shape.out_height() * shape.out_width());
    context.run_planes(dx, in_plane, |plane, dx| {
        dx.fill(T::ZERO);
        for (at, dy) in dy[plane * out_plane..(plane + 1) * out_plane].iter().enumerate() {
            let rows = shape.window(0, at / shape.out_width());
            let cols = shape.window(1, at % shape.out_width());
            let share = *dy * weight::<T>(shape, include_pad, rows.len(), cols.len());
            for row in rows {
                dx[row * shape.width..][cols.clone()].iter_mut().for_each(|dx| *dx += share);
            }
        }
    });
    Ok(())
}

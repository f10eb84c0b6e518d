//! Max pooling, with the index of each maximum for backward.

use super::Pool2dShape;
use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;

/// The largest element of each window, and its index in the input plane. NaN counts as largest, as in PyTorch;
/// of equal elements the first counts.
///
/// # Errors
/// If a length is not the shape's.
pub fn max_pool2d_forward<T: Float>(
    context: &Context,
    shape: &Pool2dShape,
    x: &[T],
    y: &mut [T],
    indices: &mut [u32],
) -> Result<()> {
    const KERNEL: &str = "max_pool2d_forward";
    shape.validate()?;
    check_len(KERNEL, "x", shape.input_len(), x.len())?;
    check_len(KERNEL, "y", shape.output_len(), y.len())?;
    check_len(KERNEL, "indices", shape.output_len(), indices.len())?;
    let (in_plane, out_plane) = (shape.height * shape.width, shape.out_height() * shape.out_width());
    let out_width = shape.out_width();
    context.run_chunks(indices, out_plane, |plane, indices| {
        let x = &x[plane * in_plane..(plane + 1) * in_plane];
        for (at, index) in indices.iter_mut().enumerate() {
            let rows = shape.window(0, at / out_width);
            let cols = shape.window(1, at % out_width);
            let mut best = rows.start * shape.width + cols.start;
            for row in rows {
                for i in row * shape.width + cols.start..row * shape.width + cols.end {
                    // The comparison with itself is false only for NaN.
                    #[allow(clippy::eq_op)]
                    if x[i] > x[best] || (x[i] != x[i] && x[best] == x[best]) {
                        best = i;
                    }
                }
            }
            *index = best as u32;
        }
    });
    let indices = &*indices;
    context.run_chunks(y, out_plane, |plane, y| {
        let x = &x[plane * in_plane..(plane + 1) * in_plane];
        let indices = &indices[plane * out_plane..(plane + 1) * out_plane];
        y.iter_mut().zip(indices).for_each(|(y, index)| *y = x[*index as usize]);
    });
    Ok(())
}

/// Sends each output's gradient to the element that was the maximum; `dx` is overwritten.
///
/// # Errors
/// If a length is not the shape's, or an index lies outside its plane.
pub fn max_pool2d_backward<T: Float>(
    context: &Context,
    shape: &Pool2dShape,
    dy: &[T],
    indices: &[u32],
    dx: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "max_pool2d_backward";
    shape.validate()?;
    check_len(KERNEL, "dx", shape.input_len(), dx.len())?;
    check_len(KERNEL, "dy", shape.output_len(), dy.len())?;
    check_len(KERNEL, "indices", shape.output_len(), indices.len())?;
    let (in_plane, out_plane) = (shape.height * shape.width, shape.out_height() * shape.out_width());
    if let Some(index) = indices.iter().find(|index| **index as usize >= in_plane) {
        let problem = format!("index {index} lies outside a plane of {in_plane} elements");
        return Err(crate::KernelError::Shape { kernel: KERNEL, problem });
    }
    context.run_chunks(dx, in_plane, |plane, dx| {
        dx.fill(T::ZERO);
        let range = plane * out_plane..(plane + 1) * out_plane;
        for (dy, index) in dy[range.clone()].iter().zip(&indices[range]) {
            dx[*index as usize] += *dy;
        }
    });
    Ok(())
}

//! Max pooling, with the index of each maximum for backward.

use super::Pool2dShape;
use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;

/// Computes the largest element of each window and its index in the input plane. NaN counts as the largest, as in PyTorch;
/// of equal elements the first counts.
///
/// # Errors
/// If a length does not match the shape.
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
    let pairs = y.chunks_mut(out_plane * PLANES).zip(indices.chunks_mut(out_plane * PLANES));
    let items = pairs.zip(x.chunks(in_plane * PLANES)).collect();
    context.run_each(items, |((y, indices), x)| {
        context.simd(
            #[inline(always)]
            || {
                let planes = y.chunks_exact_mut(out_plane).zip(indices.chunks_exact_mut(out_plane));
                for ((y, indices), x) in planes.zip(x.chunks_exact(in_plane)) {
                    plane_of_maxima(shape, x, y, indices);
                }
            },
        );
    });
    Ok(())
}

/// Computes the maxima of one plane and their indices.
#[inline(always)]
fn plane_of_maxima<T: Float>(shape: &Pool2dShape, x: &[T], y: &mut [T], indices: &mut [u32]) {
    let out_width = shape.out_width();
    let rows = y.chunks_exact_mut(out_width).zip(indices.chunks_exact_mut(out_width));
    for (row, (y, indices)) in rows.enumerate() {
        match shape.stride[1] {
            1 => row_of_maxima::<T, 1>(shape, x, row, y, indices),
            2 => row_of_maxima::<T, 2>(shape, x, row, y, indices),
            _ => row_of_maxima::<T, 0>(shape, x, row, y, indices),
        }
    }
}

/// Planes of a task.
const PLANES: usize = 16;

/// Computes a row of the output tap by tap, with the same comparison for all its elements. `STRIDE` is the step along the
/// row, or 0 if it is not known at compile time.
#[inline(always)]
fn row_of_maxima<T: Float, const STRIDE: usize>(
    shape: &Pool2dShape,
    x: &[T],
    row: usize,
    y: &mut [T],
    indices: &mut [u32],
) {
    let stride = if STRIDE == 0 { shape.stride[1] } else { STRIDE };
    let rows = shape.window(0, row);
    for (at, (y, index)) in y.iter_mut().zip(&mut *indices).enumerate() {
        let first = rows.start * shape.width + (at * stride).saturating_sub(shape.padding[1]);
        (*y, *index) = (x[first], first as u32);
    }
    for in_row in rows {
        for tap in 0..shape.kernel[1] {
            // The outputs whose window has this tap inside the image.
            let start = shape.padding[1].saturating_sub(tap).div_ceil(stride).min(y.len());
            let Some(room) = (shape.width + shape.padding[1]).checked_sub(tap + 1) else { continue };
            let end = (room / stride + 1).min(y.len()).max(start);
            if start == end {
                continue;
            }
            let first = in_row * shape.width + start * stride + tap - shape.padding[1];
            let x = &x[first..first + (end - start - 1) * stride + 1];
            let outputs = y[start..end].iter_mut().zip(&mut indices[start..end]);
            for (i, (best, index)) in outputs.enumerate() {
                let value = x[i * stride];
                // Comparisons with itself are false only for NaN.
                #[allow(clippy::eq_op)]
                let better = (value > *best) | ((value != value) & (*best == *best));
                *best = if better { value } else { *best };
                *index = if better { (first + i * stride) as u32 } else { *index };
            }
        }
    }
}

/// Adds each output's gradient to the element that was the maximum; `dx` is overwritten.
///
/// # Errors
/// If a length does not match the shape, or an index lies outside its plane.
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
    context.run_planes(dx, in_plane, |plane, dx| {
        dx.fill(T::ZERO);
        let range = plane * out_plane..(plane + 1) * out_plane;
        for (dy, index) in dy[range.clone()].iter().zip(&indices[range]) {
            dx[*index as usize] += *dy;
        }
    });
    Ok(())
}

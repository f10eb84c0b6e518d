//! Dimensions in another order.

use pulp::Arch;

use crate::context::Context;
use crate::error::{KernelError, Result, check_len};
use crate::transpose::{SIDE, Transposition};
use crate::vectorized::Vectorized as _;
use half::{bf16, f16};

/// Elements that can be moved.
pub trait Movable: Copy + Send + Sync {
    #[doc(hidden)]
    fn transpose(_: Arch, matrix: Transposition<'_, Self>) {
        let Transposition { from, from_stride, size: [rows, cols], to, to_stride } = matrix;
        for col in (0..cols).step_by(SIDE) {
            for row in (0..rows).step_by(SIDE) {
                for j in col..cols.min(col + SIDE) {
                    for i in row..rows.min(row + SIDE) {
                        to[j * to_stride + i] = from[i * from_stride + j];
                    }
                }
            }
        }
    }
}

impl Movable for f32 {
    fn transpose(arch: Arch, matrix: Transposition<'_, Self>) {
        matrix.dispatched(arch);
    }
}

impl Movable for f64 {}
impl Movable for bf16 {}
impl Movable for f16 {}

/// Copies `x`, of the sizes `sizes`, to `y` with its dimensions in the order `order`: dimension `i` of `y` is dimension
/// `order[i]` of `x`.
///
/// # Errors
/// If `order` does not name every dimension once, or a length does not match.
pub fn permute<T: Movable>(
    context: &Context,
    sizes: &[usize],
    order: &[usize],
    x: &[T],
    y: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "permute";
    let mut sorted = order.to_vec();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..sizes.len()) {
        let problem = format!("the order {order:?} must name each of {} dimensions once", sizes.len());
        return Err(KernelError::Shape { kernel: KERNEL, problem });
    }
    let len = sizes.iter().product();
    check_len(KERNEL, "x", len, x.len())?;
    check_len(KERNEL, "y", len, y.len())?;
    if len == 0 {
        return Ok(());
    }
    let axes = merged_axes(sizes, order);
    let Some(first) = axes.first().copied() else {
        y.copy_from_slice(x);
        return Ok(());
    };
    let piece = context.piece(len, first.to);
    context.run_chunks(y, piece, |task, y| {
        let mut axes = axes.clone();
        axes[0].size = y.len() / first.to;
        copy(context.arch(), &axes, &x[task * (piece / first.to) * first.from..], y);
    });
    Ok(())
}

/// A dimension of `y`: its size, and the distance of its elements in `x` and in `y`.
#[derive(Debug, Clone, Copy)]
struct Axis {
    size: usize,
    from: usize,
    to: usize,
}

/// The dimensions of `y` that have more than one element; those that follow each other in both are one.
fn merged_axes(sizes: &[usize], order: &[usize]) -> Vec<Axis> {
    let after = |dims: &[usize]| dims.iter().product::<usize>();
    let mut axes: Vec<Axis> = Vec::with_capacity(order.len());
    let mut to = after(sizes);
    for &dim in order {
        let (size, from) = (sizes[dim], after(&sizes[dim + 1..]));
        to /= size;
        match axes.last_mut() {
            _ if size == 1 => {}
            Some(last) if last.from == size * from => *last = Axis { size: last.size * size, from, to },
            _ => axes.push(Axis { size, from, to }),
        }
    }
    axes
}

/// Copies by rows that are contiguous in both, or transposes the dimension that is contiguous in `x` with the one that is
/// contiguous in `y`.
fn copy<T: Movable>(arch: Arch, axes: &[Axis], x: &[T], y: &mut [T]) {
    let Some((last, outer)) = axes.split_last() else { return };
    let Some(across) = outer.iter().position(|axis| axis.from == 1) else {
        each_offset(outer, 0, 0, &mut |from, to| {
            y[to..to + last.size].copy_from_slice(&x[from..from + last.size]);
        });
        return;
    };
    let columns = outer[across];
    let others = [&outer[..across], &outer[across + 1..]].concat();
    each_offset(&others, 0, 0, &mut |from, to| {
        let matrix = Transposition {
            from: &x[from..],
            from_stride: last.from,
            size: [last.size, columns.size],
            to: &mut y[to..],
            to_stride: columns.to,
        };
        T::transpose(arch, matrix);
    });
}

/// Calls `f` with the offsets in `x` and in `y` of all places along the axes.
fn each_offset(axes: &[Axis], from: usize, to: usize, f: &mut impl FnMut(usize, usize)) {
    match axes {
        [] => f(from, to),
        [axis, rest @ ..] => {
            for i in 0..axis.size {
                each_offset(rest, from + i * axis.from, to + i * axis.to, f);
            }
        }
    }
}

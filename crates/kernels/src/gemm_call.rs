//! The call of the `gemm` crate, which takes raw pointers, by `unsafe`.

#![allow(unsafe_code)]

use gemm::Parallelism;

use crate::columns::ColumnBlock;
use crate::error::{KernelError, Result};
use crate::float::Float;

/// A matrix inside a slice: element (r, c) is `data[r * row_stride + c * col_stride]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) row_stride: usize,
    pub(crate) col_stride: usize,
}

impl<T> View<'_, T> {
    /// Returns its transpose: rows and columns exchanged.
    pub(crate) fn transposed(self) -> Self {
        Self { row_stride: self.col_stride, col_stride: self.row_stride, ..self }
    }
}

/// Returns the index after the last element of a matrix of this size; `None` if it overflows.
fn extent(rows: usize, cols: usize, row_stride: usize, col_stride: usize) -> Option<usize> {
    if rows == 0 || cols == 0 {
        return Some(0);
    }
    let last = (rows - 1).checked_mul(row_stride)?.checked_add((cols - 1).checked_mul(col_stride)?)?;
    last.checked_add(1)
}

/// Checks that the strides stay inside the slices, and that the rows of c do not overlap.
fn check<T: Copy>(
    [m, n, k]: [usize; 3],
    a: View<'_, T>,
    b: View<'_, T>,
    c_len: usize,
    c_row_stride: usize,
) -> Result<()> {
    let covers = |what: &'static str, len: usize, extent: Option<usize>| match extent {
        Some(extent) if extent <= len && isize::try_from(extent).is_ok() => Ok(()),
        _ => Err(KernelError::Shape {
            kernel: "matmul",
            problem: format!("`{what}` has {len} elements, too few for {m}×{k} times {k}×{n}"),
        }),
    };
    covers("a", a.data.len(), extent(m, k, a.row_stride, a.col_stride))?;
    covers("b", b.data.len(), extent(k, n, b.row_stride, b.col_stride))?;
    covers("c", c_len, extent(m, n, c_row_stride, 1))?;
    if m > 1 && c_row_stride < n {
        let problem = format!("rows of `c` overlap: {n} columns, {c_row_stride} apart");
        return Err(KernelError::Shape { kernel: "matmul", problem });
    }
    Ok(())
}

/// Computes c = a·b, or c += a·b with `accumulate`. a is m×k, b is k×n, and c is m×n with rows `c_row_stride` apart.
pub(crate) fn gemm<T: Float>(
    size: [usize; 3],
    a: View<'_, T>,
    b: View<'_, T>,
    c: &mut [T],
    c_row_stride: usize,
    accumulate: bool,
) -> Result<()> {
    let [m, n, k] = size;
    check(size, a, b, c.len(), c_row_stride)?;
    if m == 0 || n == 0 {
        return Ok(());
    }
    if k == 0 {
        if !accumulate {
            c.chunks_mut(c_row_stride.max(1)).take(m).for_each(|row| row[..n].fill(T::ZERO));
        }
        return Ok(());
    }
    // SAFETY: `check` has shown that the strides stay inside the slices and that the rows of `c` do not overlap.
    unsafe { multiply(size, a, b, c.as_mut_ptr(), c_row_stride, accumulate) };
    Ok(())
}

/// As [`gemm`], with a block of columns of a larger matrix as c, which other threads may complete at the same time.
pub(crate) fn gemm_columns<T: Float>(
    [m, k]: [usize; 2],
    a: View<'_, T>,
    b: View<'_, T>,
    c: &mut ColumnBlock<'_, T>,
    accumulate: bool,
) -> Result<()> {
    let n = c.width();
    let (start, rows, row_len) = c.raw_parts();
    // The block ends where the last row does, at the latest.
    check([m, n, k], a, b, (rows * row_len).saturating_sub(row_len - n), row_len)?;
    if m == 0 || n == 0 {
        return Ok(());
    }
    if k == 0 {
        if !accumulate {
            (0..m).for_each(|row| c.row(row).fill(T::ZERO));
        }
        return Ok(());
    }
    // SAFETY: the elements from `start` on, `n` of each of `rows` rows that are `row_len` apart, are exclusively borrowed by `c`. `check`
    // has shown that m is at most `rows`, that n is at most `row_len`, and that the strides of a and b stay inside their slices.
    unsafe { multiply([m, n, k], a, b, start, row_len, accumulate) };
    Ok(())
}

/// Calls `gemm` with sizes above 0.
///
/// # Safety
/// The strides must stay inside the slices, and `c` must point to m rows of n elements, `c_row_stride` apart and at least as
/// many, that nothing else reads or writes.
unsafe fn multiply<T: Float>(
    [m, n, k]: [usize; 3],
    a: View<'_, T>,
    b: View<'_, T>,
    c: *mut T,
    c_row_stride: usize,
    accumulate: bool,
) {
    let one = T::ONE;
    let alpha = if accumulate { T::ONE } else { T::ZERO };
    // SAFETY: every element that the strides reach lies inside its matrix by the contract of this function; all offsets fit an
    // isize (strides are no larger than the extents of matrices with more than one row or column, and are not used otherwise).
    // `a` and `b` are shared borrows and `c` is exclusive, so they do not alias. `T` is f32 or f64 (`Float` is sealed), both
    // of which `gemm` implements, and reads of `c` happen only with `accumulate`; it is initialised anyhow.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            c,
            1,
            c_row_stride as isize,
            accumulate,
            a.data.as_ptr(),
            a.col_stride as isize,
            a.row_stride as isize,
            b.data.as_ptr(),
            b.col_stride as isize,
            b.row_stride as isize,
            alpha,
            one,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

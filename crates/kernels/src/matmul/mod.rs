//! Matrix products over contiguous matrices, single and batched.

mod rounded;
mod row;

pub use rounded::{RoundedFactor, RoundedResult, matmul_bf16};
pub use row::multiply_row_bf16;

use rounded::matmul_rounded;

use crate::columns::column_parts;
use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::gemm_call::{View, gemm, gemm_columns};

/// One or several contiguous row-major matrices of the same size.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a, T> {
    pub(crate) data: &'a [T],
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) transposed: bool,
}

impl<'a, T: Copy> Matrix<'a, T> {
    /// Views `data` as factors of `rows`×`cols`; if `transposed`, they are stored as `cols`×`rows`.
    pub fn batched(data: &'a [T], rows: usize, cols: usize, transposed: bool) -> Self {
        Self { data, rows, cols, transposed }
    }

    /// One of the matrices.
    pub(crate) fn at(&self, index: usize) -> Self {
        let size = self.rows * self.cols;
        Self { data: &self.data[index * size..(index + 1) * size], ..*self }
    }

    /// Their transposes.
    fn turned(self) -> Self {
        Self { rows: self.cols, cols: self.rows, transposed: !self.transposed, ..self }
    }

    fn view(&self, index: usize) -> View<'a, T> {
        let size = self.rows * self.cols;
        let data = &self.data[index * size..(index + 1) * size];
        if self.transposed {
            View { data, row_stride: 1, col_stride: self.rows }
        } else {
            View { data, row_stride: self.cols, col_stride: 1 }
        }
    }

    /// The first matrix without its columns before `column`.
    fn columns_from(&self, column: usize) -> View<'a, T> {
        let view = self.view(0);
        View { data: view.data.get(column * view.col_stride..).unwrap_or(&[]), ..view }
    }

    /// The first matrix without its rows before `row`.
    fn rows_from(&self, row: usize) -> View<'a, T> {
        let view = self.view(0);
        View { data: view.data.get(row * view.row_stride..).unwrap_or(&[]), ..view }
    }
}

/// The result of a product; like [`Matrix`].
#[derive(Debug)]
pub struct MatrixMut<'a, T> {
    pub(crate) data: &'a mut [T],
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

impl<'a, T> MatrixMut<'a, T> {
    /// Views `data` as row-major matrices of `rows`×`cols`.
    pub fn batched(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        Self { data, rows, cols }
    }
}

/// The size of matrices, and the number of elements of all.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    rows: usize,
    cols: usize,
    len: usize,
}

impl<T> Matrix<'_, T> {
    fn extent(&self) -> Extent {
        Extent { rows: self.rows, cols: self.cols, len: self.data.len() }
    }
}

impl<T> MatrixMut<'_, T> {
    fn extent(&self) -> Extent {
        Extent { rows: self.rows, cols: self.cols, len: self.data.len() }
    }
}

/// Checks that the sizes of two factors and their product match.
fn check_extents(kernel: &'static str, batch: usize, [a, b, c]: [Extent; 3]) -> Result<()> {
    check_len(kernel, "rows of b", a.cols, b.rows)?;
    check_len(kernel, "rows of c", a.rows, c.rows)?;
    check_len(kernel, "columns of c", b.cols, c.cols)?;
    check_len(kernel, "a", batch * a.rows * a.cols, a.len)?;
    check_len(kernel, "b", batch * b.rows * b.cols, b.len)?;
    check_len(kernel, "c", batch * c.rows * c.cols, c.len)
}

impl<'a, T: Float> Matrix<'a, T> {
    /// These matrices, if the elements are f32.
    fn singles(&self) -> Option<Matrix<'a, f32>> {
        let Self { rows, cols, transposed, .. } = *self;
        Some(Matrix { data: T::singles(self.data)?, rows, cols, transposed })
    }
}

impl<T: Float> MatrixMut<'_, T> {
    fn singles(&mut self) -> Option<MatrixMut<'_, f32>> {
        Some(MatrixMut { data: T::singles_mut(self.data)?, rows: self.rows, cols: self.cols })
    }
}

/// Rows of a thread are a multiple of this.
const ROWS: usize = 16;

/// Columns of a thread are a multiple of this: of the widest tiles.
const COLUMNS: usize = 64;

/// Elements of a result that `gemm` computes with sums in another order. No part of a larger result is as small, so that its bits
/// do not depend on the number of threads.
const SMALL: usize = 256;

/// `batch` products c = a·b, or c += a·b with `accumulate`.
///
/// # Errors
/// If the sizes do not go together or a slice has another length than `batch` matrices.
#[allow(clippy::needless_pass_by_value, reason = "the result is borrowed mutably for the call")]
pub fn matmul_batched<T: Float>(
    context: &Context,
    batch: usize,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    c: MatrixMut<'_, T>,
    accumulate: bool,
) -> Result<()> {
    check_extents("matmul", batch, [a.extent(), b.extent(), c.extent()])?;
    let mut c = c;
    if context.rounds()
        && let (Some(a), Some(b), Some(c)) = (a.singles(), b.singles(), c.singles())
    {
        matmul_rounded(context, batch, a, b, c, accumulate);
        return Ok(());
    }
    let (m, k, n) = (a.rows, a.cols, b.cols);
    if batch == 0 || m * n == 0 {
        return Ok(());
    }
    if batch == 1 && row::applies(m, &b) {
        row::multiply(context, a.data, b, c.data, accumulate);
        return Ok(());
    }
    // Each thread packs one factor whole and a part of the other: the smaller one should be whole.
    let width = n / context.parts() / COLUMNS * COLUMNS;
    if batch == 1 && n > m && context.parts() > 1 && width * m > SMALL {
        let blocks = column_parts(c.data, n, width, context.parts());
        context.run_each(blocks.into_iter().enumerate().collect(), |(task, mut block)| {
            let b = b.columns_from(task * width);
            let result = gemm_columns([m, k], a.view(0), b, &mut block, accumulate);
            debug_assert!(result.is_ok(), "{result:?}");
        });
        return Ok(());
    }
    if batch == 1 {
        // Threads take rows of the result: whole tiles of the products' kernels.
        let rows = m.div_ceil(context.parts()).next_multiple_of(ROWS);
        context.run_chunks(c.data, rows * n, |task, c| {
            let result = gemm([c.len() / n, n, k], a.rows_from(task * rows), b.view(0), c, n, accumulate);
            debug_assert!(result.is_ok(), "{result:?}");
        });
        return Ok(());
    }
    // Errors were ruled out above, so that the products of a batch cannot fail one by one.
    let size = m * n;
    let per_task = batch.div_ceil(context.parts() * 4).max(1);
    context.run_chunks(c.data, per_task * size, |task, out| {
        for (offset, out) in out.chunks_exact_mut(size).enumerate() {
            let index = task * per_task + offset;
            let result = gemm([m, n, k], a.view(index), b.view(index), out, n, accumulate);
            debug_assert!(result.is_ok(), "{result:?}");
        }
    });
    Ok(())
}

//! Matrix products over contiguous matrices, single and batched.

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::gemm_call::{View, gemm};

/// One or several contiguous row-major matrices of the same size, one after the other.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a, T> {
    data: &'a [T],
    rows: usize,
    cols: usize,
    transposed: bool,
}

impl<'a, T> Matrix<'a, T> {
    /// `data` as matrices that enter the product with `rows` rows and `cols` columns; if `transposed`, they are
    /// stored as `cols`×`rows`.
    pub fn batched(data: &'a [T], rows: usize, cols: usize, transposed: bool) -> Self {
        Self { data, rows, cols, transposed }
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

    /// The first matrix without its rows before `row`.
    fn rows_from(&self, row: usize) -> View<'a, T> {
        let view = self.view(0);
        View { data: view.data.get(row * view.row_stride..).unwrap_or(&[]), ..view }
    }
}

/// Like [`Matrix`], for the result.
#[derive(Debug)]
pub struct MatrixMut<'a, T> {
    data: &'a mut [T],
    rows: usize,
    cols: usize,
}

impl<'a, T> MatrixMut<'a, T> {
    /// `data` as row-major matrices of `rows`×`cols`.
    pub fn batched(data: &'a mut [T], rows: usize, cols: usize) -> Self {
        Self { data, rows, cols }
    }
}

/// Rows of a thread are a multiple of this.
const ROWS: usize = 16;

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
    const KERNEL: &str = "matmul";
    let (m, k, n) = (a.rows, a.cols, b.cols);
    check_len(KERNEL, "rows of b", k, b.rows)?;
    check_len(KERNEL, "rows of c", m, c.rows)?;
    check_len(KERNEL, "columns of c", n, c.cols)?;
    check_len(KERNEL, "a", batch * m * k, a.data.len())?;
    check_len(KERNEL, "b", batch * k * n, b.data.len())?;
    check_len(KERNEL, "c", batch * m * n, c.data.len())?;
    if batch == 0 || m * n == 0 {
        return Ok(());
    }
    if batch == 1 {
        // Threads take rows of the result: whole tiles of the products' kernels.
        let rows = m.div_ceil(context.threads()).next_multiple_of(ROWS);
        context.run_chunks(c.data, rows * n, |task, c| {
            let result = gemm([c.len() / n, n, k], a.rows_from(task * rows), b.view(0), c, n, accumulate);
            debug_assert!(result.is_ok(), "{result:?}");
        });
        return Ok(());
    }
    // Errors were ruled out above, so that the products of a batch cannot fail one by one.
    let size = m * n;
    let per_task = batch.div_ceil(context.threads() * 4).max(1);
    context.run_chunks(c.data, per_task * size, |task, out| {
        for (offset, out) in out.chunks_exact_mut(size).enumerate() {
            let index = task * per_task + offset;
            let result = gemm([m, n, k], a.view(index), b.view(index), out, n, accumulate);
            debug_assert!(result.is_ok(), "{result:?}");
        }
    });
    Ok(())
}

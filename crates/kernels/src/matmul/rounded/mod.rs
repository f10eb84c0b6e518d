//! Batched products of bf16 matrices.
//!
//! A factor is stored in bf16, or in f32 and rounded on its way into the cache; a result is stored in either. So an
//! activation of bf16 is read and written once, in 16 bits.
//!
//! Some CPUs have a fast instruction for pairs of bf16 numbers. For the others a factor is packed in f32.

mod multiply;
mod pack;
mod store;

use half::bf16;

use super::{Matrix, MatrixMut, check_matmul};
use crate::context::Context;
use crate::error::{Result, check_len};
use multiply::multiply;

/// A factor of a product of bf16 numbers.
#[derive(Debug, Clone, Copy)]
pub enum RoundedFactor<'a> {
    /// Numbers of bf16.
    Bf16(Matrix<'a, bf16>),
    /// Numbers that are rounded to bf16.
    F32(Matrix<'a, f32>),
}

impl<'a> RoundedFactor<'a> {
    /// Returns the matrices without their numbers.
    fn outline(&self) -> Matrix<'static, ()> {
        let (rows, cols, transposed) = match self {
            Self::Bf16(of) => (of.rows, of.cols, of.transposed),
            Self::F32(of) => (of.rows, of.cols, of.transposed),
        };
        Matrix { data: &[], rows, cols, transposed }
    }

    fn len(&self) -> usize {
        match self {
            Self::Bf16(of) => of.data.len(),
            Self::F32(of) => of.data.len(),
        }
    }
}

/// The place of a product of bf16 numbers, whose sums are f32.
#[derive(Debug)]
pub enum RoundedResult<'a> {
    /// The sums.
    F32(MatrixMut<'a, f32>),
    /// The sums are added to what is there.
    AddF32(MatrixMut<'a, f32>),
    /// The sums are rounded to bf16.
    Bf16(MatrixMut<'a, bf16>),
}

impl RoundedResult<'_> {
    /// Returns the rows, the columns and the number of elements.
    fn outline(&self) -> ([usize; 2], usize) {
        match self {
            Self::F32(c) | Self::AddF32(c) => ([c.rows, c.cols], c.data.len()),
            Self::Bf16(c) => ([c.rows, c.cols], c.data.len()),
        }
    }
}

/// Computes `batch` products c = a·b + bias of numbers rounded to bf16, with sums in f32; `bias` is added to every row.
///
/// # Errors
/// If the sizes do not match, or a slice has another length than `batch` matrices.
pub fn matmul_bf16(
    context: &Context,
    batch: usize,
    a: RoundedFactor<'_>,
    b: RoundedFactor<'_>,
    bias: Option<&[f32]>,
    mut c: RoundedResult<'_>,
) -> Result<()> {
    const KERNEL: &str = "matmul_bf16";
    let (of_a, of_b, ([rows, cols], len)) = (a.outline(), b.outline(), c.outline());
    check_len(KERNEL, "rows of b", of_a.cols, of_b.rows)?;
    check_len(KERNEL, "rows of c", of_a.rows, rows)?;
    check_len(KERNEL, "columns of c", of_b.cols, cols)?;
    check_len(KERNEL, "a", batch * rows * of_a.cols, a.len())?;
    check_len(KERNEL, "b", batch * of_a.cols * cols, b.len())?;
    check_len(KERNEL, "c", batch * rows * cols, len)?;
    if let Some(bias) = bias {
        check_len(KERNEL, "bias", cols, bias.len())?;
    }
    multiply(context, batch, a, b, bias, &mut c);
    Ok(())
}

/// Computes products of f32 factors rounded to bf16.
pub(crate) fn matmul_rounded(
    context: &Context,
    batch: usize,
    a: Matrix<'_, f32>,
    b: Matrix<'_, f32>,
    c: MatrixMut<'_, f32>,
    accumulate: bool,
) -> Result<()> {
    check_matmul("matmul", batch, &a, &b, &c)?;
    let mut c = if accumulate { RoundedResult::AddF32(c) } else { RoundedResult::F32(c) };
    multiply(context, batch, RoundedFactor::F32(a), RoundedFactor::F32(b), None, &mut c);
    Ok(())
}

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

use super::{Extent, Matrix, MatrixMut, check_extents};
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
    fn extent(&self) -> Extent {
        match self {
            Self::Bf16(of) => of.extent(),
            Self::F32(of) => of.extent(),
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
    fn extent(&self) -> Extent {
        match self {
            Self::F32(c) | Self::AddF32(c) => c.extent(),
            Self::Bf16(c) => c.extent(),
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
    let of = [a.extent(), b.extent(), c.extent()];
    check_extents(KERNEL, batch, of)?;
    if let Some(bias) = bias {
        check_len(KERNEL, "bias", of[2].cols, bias.len())?;
    }
    multiply(context, batch, a, b, bias, &mut c);
    Ok(())
}

/// Computes products of f32 factors rounded to bf16. The sizes have been checked.
pub(crate) fn matmul_rounded(
    context: &Context,
    batch: usize,
    a: Matrix<'_, f32>,
    b: Matrix<'_, f32>,
    c: MatrixMut<'_, f32>,
    accumulate: bool,
) {
    let mut c = if accumulate { RoundedResult::AddF32(c) } else { RoundedResult::F32(c) };
    multiply(context, batch, RoundedFactor::F32(a), RoundedFactor::F32(b), None, &mut c);
}

//! Orthogonalisation and reproducible products for PowerSGD.

use crate::context::Context;
use crate::error::{Result, check_len};

/// The number added to a column's norm, so that a column of zeros stays zero.
const EPSILON: f32 = 1e-8;

/// Makes the columns of a row-major matrix orthonormal by modified Gram-Schmidt, from left to right.
///
/// A column is divided by its L2 norm plus 1e-8, then its part is subtracted from every later column. Sums are in f64, in
/// the order of rows.
///
/// # Errors
/// If the matrix has no whole number of rows.
pub fn orthogonalise(matrix: &mut [f32], columns: usize) -> Result<()> {
    let rows = matrix.len() / columns.max(1);
    check_len("orthogonalise", "matrix", rows * columns, matrix.len())?;
    for own in 0..columns {
        let dot = |matrix: &[f32], other: usize| -> f64 {
            let row = |row: &[f32]| f64::from(row[own]) * f64::from(row[other]);
            matrix.chunks_exact(columns).map(row).sum()
        };
        let norm = dot(matrix, own).sqrt() as f32 + EPSILON;
        matrix.chunks_exact_mut(columns).for_each(|row| row[own] /= norm);
        for other in own + 1..columns {
            let along = dot(matrix, other) as f32;
            matrix.chunks_exact_mut(columns).for_each(|row| row[other] -= along * row[own]);
        }
    }
    Ok(())
}

/// Computes out = P·Qᵀ with P of rows×rank and Q of columns×rank, row-major.
///
/// Unlike a general product it gives the same bits on every CPU, so that ranks on different CPUs agree.
///
/// # Errors
/// If the sizes do not match.
pub fn low_rank_product(context: &Context, p: &[f32], q: &[f32], rank: usize, out: &mut [f32]) -> Result<()> {
    const KERNEL: &str = "low_rank_product";
    let (rows, columns) = (p.len() / rank.max(1), q.len() / rank.max(1));
    check_len(KERNEL, "p", rows * rank, p.len())?;
    check_len(KERNEL, "q", columns * rank, q.len())?;
    check_len(KERNEL, "out", rows * columns, out.len())?;
    if columns == 0 {
        return Ok(());
    }
    // The rows of Qᵀ, so that inner loops run over neighbours.
    let mut transposed = vec![0.0; q.len()];
    for (column, q) in q.chunks_exact(rank).enumerate() {
        q.iter().enumerate().for_each(|(at, value)| transposed[at * columns + column] = *value);
    }
    context.simd(
        #[inline(always)]
        || {
            for (out, p) in out.chunks_exact_mut(columns).zip(p.chunks_exact(rank)) {
                for (at, (factor, q)) in p.iter().zip(transposed.chunks_exact(columns)).enumerate() {
                    let pairs = out.iter_mut().zip(q);
                    match at {
                        0 => pairs.for_each(|(out, q)| *out = factor * q),
                        _ => pairs.for_each(|(out, q)| *out += factor * q),
                    }
                }
            }
        },
    );
    Ok(())
}

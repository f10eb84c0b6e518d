//! Batched products of bf16 matrices.

use half::bf16;
#[cfg(target_arch = "x86_64")]
use pulp::{Simd, WithSimd};

use super::{Matrix, MatrixMut, check_matmul, matmul_batched};
use crate::bfloat::pairs::ToBf16;
#[cfg(target_arch = "x86_64")]
use crate::bfloat::pairs::{transpose_pairs, zip_neighbours, zip_rows};
use crate::context::Context;
use crate::error::{Result, check_len};
#[cfg(target_arch = "x86_64")]
use crate::products::HasBf16;
#[cfg(target_arch = "x86_64")]
use crate::products::tile::{LANES, Segment, Tile, WIDEST};
#[cfg(target_arch = "x86_64")]
use crate::transpose::transpose;
#[cfg(target_arch = "x86_64")]
use crate::vectorized::Vectorized as _;

/// Computes `batch` products c = a·b of bf16 matrices, or c += a·b with `accumulate`; sums and results are f32.
///
/// # Errors
/// If the sizes do not match, or a slice has another length than `batch` matrices.
pub fn matmul_bf16(
    context: &Context,
    batch: usize,
    a: Matrix<'_, bf16>,
    b: Matrix<'_, bf16>,
    mut c: MatrixMut<'_, f32>,
    accumulate: bool,
) -> Result<()> {
    check_matmul("matmul_bf16", batch, &a, &b, &c)?;
    if multiply(context, batch, a, b, &mut c, accumulate) {
        return Ok(());
    }
    // Widened numbers are exact, and so are their products.
    let (mut wide_a, mut wide_b) = (context.scratch(a.data.len()), context.scratch(b.data.len()));
    crate::bfloat::widen(context, a.data, &mut wide_a)?;
    crate::bfloat::widen(context, b.data, &mut wide_b)?;
    let wide_a = Matrix::batched(&wide_a, a.rows, a.cols, a.transposed);
    matmul_batched(
        context,
        batch,
        wide_a,
        Matrix::batched(&wide_b, b.rows, b.cols, b.transposed),
        c,
        accumulate,
    )
}

/// Multiplies f32 operands rounded to bf16. Returns false without doing so if the CPU lacks the instruction.
pub(crate) fn matmul_rounded(
    context: &Context,
    batch: usize,
    a: Matrix<'_, f32>,
    b: Matrix<'_, f32>,
    c: &mut MatrixMut<'_, f32>,
    accumulate: bool,
) -> Result<bool> {
    check_len("matmul", "columns of c", b.cols, c.cols)?;
    Ok(multiply(context, batch, a, b, c, accumulate))
}

#[cfg(not(target_arch = "x86_64"))]
fn multiply<T: ToBf16>(
    _: &Context,
    _: usize,
    _: Matrix<'_, T>,
    _: Matrix<'_, T>,
    _: &mut MatrixMut<'_, f32>,
    _: bool,
) -> bool {
    false
}

/// Multiplies if the CPU has the instruction; returns false otherwise. The sizes have been checked.
#[cfg(target_arch = "x86_64")]
fn multiply<T: ToBf16>(
    context: &Context,
    batch: usize,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    c: &mut MatrixMut<'_, f32>,
    accumulate: bool,
) -> bool {
    let Some(has) = context.bf16() else { return false };
    let (m, n) = (a.rows, b.cols);
    if batch == 0 || m * n == 0 {
        return true;
    }
    context.run_chunks(c.data, m * n, |index, c| {
        one_product(context, has, a.at(index), b.at(index), c, accumulate);
    });
    true
}

/// Pairs of the sum that are added at a time: those of a panel stay in the first-level cache.
#[cfg(target_arch = "x86_64")]
const PAIRS: usize = 128;

/// The most rows of a task.
#[cfg(target_arch = "x86_64")]
const ROWS: usize = 128;

#[cfg(target_arch = "x86_64")]
fn one_product<T: ToBf16>(
    context: &Context,
    has: HasBf16,
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    c: &mut [f32],
    accumulate: bool,
) {
    let (m, n, k) = (a.rows, b.cols, a.cols);
    let pairs = k.div_ceil(2);
    let vectors = n.div_ceil(LANES);
    let mut packed = context.scratch(vectors * LANES * pairs);
    let per_panel = WIDEST * LANES * pairs;
    context.run_chunks(&mut packed, per_panel.max(1), |panel, to| {
        PackB { b, first: panel * WIDEST * LANES, pairs, to }.vectorized(has.simd());
    });
    let packed = pulp::bytemuck::cast_slice::<f32, u32>(&packed);
    let share = m.div_ceil(context.parts()).next_multiple_of(8).min(ROWS);
    context.run_chunks(c, share * n, |task, c| {
        let rows = Rows { has, context, a, packed, first: task * share, n, pairs, c, accumulate };
        rows.vectorized(has.simd());
    });
}

/// Packs a panel of b's columns as pairs along the sum.
#[cfg(target_arch = "x86_64")]
struct PackB<'a, T> {
    b: Matrix<'a, T>,
    first: usize,
    pairs: usize,
    to: &'a mut [f32],
}

#[cfg(target_arch = "x86_64")]
impl<T: ToBf16> WithSimd for PackB<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let PackB { b, first, pairs, to } = self;
        let (k, n) = (b.rows, b.cols);
        let width = to.len() / pairs.max(1);
        let columns = width.min(n - first);
        if columns < width {
            to.fill(0.0);
        }
        if b.transposed {
            let mut lines = vec![0.0; LANES * pairs];
            for lane in (0..columns).step_by(LANES) {
                let some = LANES.min(columns - lane);
                for (i, line) in lines.chunks_exact_mut(pairs.max(1)).take(some).enumerate() {
                    zip_neighbours(&b.data[(first + lane + i) * k..][..k], line);
                }
                transpose(simd, &lines, pairs, [some, pairs], &mut to[lane..], width);
            }
        } else {
            for (pair, to) in to.chunks_exact_mut(width.max(1)).enumerate() {
                let row = |index: usize| &b.data[index * n + first..][..columns];
                let second = (2 * pair + 1 < k).then(|| row(2 * pair + 1));
                zip_rows(row(2 * pair), second, &mut to[..columns]);
            }
        }
    }
}

/// A task: some rows of the result.
#[cfg(target_arch = "x86_64")]
struct Rows<'a, T> {
    has: HasBf16,
    context: &'a Context,
    a: Matrix<'a, T>,
    packed: &'a [u32],
    first: usize,
    n: usize,
    pairs: usize,
    c: &'a mut [f32],
    accumulate: bool,
}

#[cfg(target_arch = "x86_64")]
impl<T: ToBf16> WithSimd for Rows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Rows { has, context, a, packed, first, n, pairs, c, accumulate } = self;
        let (m, k) = (a.rows, a.cols);
        let rows = c.len() / n;
        let mut left = context.scratch(rows * pairs);
        if a.transposed {
            let mut scratch = context.scratch(pairs * rows);
            transpose_pairs(
                simd,
                &a.data[first.min(a.data.len())..],
                m,
                [k, rows],
                &mut left,
                pairs,
                &mut scratch,
            );
        } else {
            for (row, left) in left.chunks_exact_mut(pairs.max(1)).enumerate() {
                zip_neighbours(&a.data[(first + row) * k..][..k], left);
            }
        }
        let left = pulp::bytemuck::cast_slice::<f32, u32>(&left);
        let stride = n.next_multiple_of(LANES);
        let mut sums = context.scratch(rows * stride);
        if pairs == 0 {
            sums.fill(0.0);
        }
        for start in (0..pairs).step_by(PAIRS) {
            let depth = PAIRS.min(pairs - start);
            for column in (0..stride).step_by(WIDEST * LANES) {
                let vectors = WIDEST.min((stride - column) / LANES);
                let b = column * pairs + start * vectors * LANES;
                let mut row = 0;
                while row < rows {
                    let some = [8, 4, 2, 1].into_iter().find(|&some| row + some <= rows).unwrap_or(1);
                    let tile = Tile {
                        a: left,
                        row: row * pairs,
                        row_stride: pairs,
                        b: packed,
                        segments: &[Segment { a: start, b }],
                        pairs: depth,
                        out: row * stride + column,
                        out_stride: stride,
                        add: start > 0,
                    };
                    tile.run(has, some, vectors, &mut sums);
                    row += some;
                }
            }
        }
        for (c, sums) in c.chunks_exact_mut(n).zip(sums.chunks_exact(stride)) {
            if accumulate {
                c.iter_mut().zip(sums).for_each(|(c, sum)| *c += *sum);
            } else {
                c.copy_from_slice(&sums[..n]);
            }
        }
    }
}

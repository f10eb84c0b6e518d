//! The innermost product of f32 numbers that are packed.

use pulp::{Simd, WithSimd};

use crate::vectorized::Vectorized as _;

/// The most vectors of a tile.
const WIDEST: usize = 3;

/// Some rows of a product: of `a` times `depth` rows of `b`, which are as wide as the result's.
pub(crate) struct Singles<'a> {
    /// Rows of `depth` numbers.
    pub(crate) a: &'a [f32],
    pub(crate) b: &'a [f32],
    pub(crate) depth: usize,
    /// Elements of a row of `b` and `out`, a multiple of 16.
    pub(crate) width: usize,
    pub(crate) out: &'a mut [f32],
    /// True to add to the present sums.
    pub(crate) add: bool,
}

impl WithSimd for Singles<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { a, b, depth, width, out, add } = self;
        // As many sums as fit the registers: 32, or 16 of 8 numbers.
        let tallest = if S::F32_LANES == 8 { 4 } else { 8 };
        let (mut a, mut out) = (a, out);
        while !out.is_empty() {
            let rows = [8, 4, 2, 1].into_iter().find(|&rows| rows <= tallest && rows * width <= out.len());
            let rows = rows.unwrap_or(1);
            let (some, rest) = a.split_at(rows * depth);
            let (to, later) = out.split_at_mut(rows * width);
            let of = Strip { a: some, b, depth, width, out: to, add };
            match rows {
                8 => Rows::<8>(of).vectorized(simd),
                4 => Rows::<4>(of).vectorized(simd),
                2 => Rows::<2>(of).vectorized(simd),
                _ => Rows::<1>(of).vectorized(simd),
            }
            (a, out) = (rest, later);
        }
    }
}

/// The rows of a tile, over the whole width.
struct Strip<'a> {
    a: &'a [f32],
    b: &'a [f32],
    depth: usize,
    width: usize,
    out: &'a mut [f32],
    add: bool,
}

/// A strip of R rows.
struct Rows<'a, const R: usize>(Strip<'a>);

impl<const R: usize> WithSimd for Rows<'_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self(mut of) = self;
        let vectors = of.width / S::F32_LANES;
        let mut first = 0;
        while first < vectors {
            let some = WIDEST.min(vectors - first);
            match some {
                3 => tile::<S, R, 3>(simd, &mut of, first),
                2 => tile::<S, R, 2>(simd, &mut of, first),
                _ => tile::<S, R, 1>(simd, &mut of, first),
            }
            first += some;
        }
    }
}

/// Computes R rows by V vectors from vector `first` on.
#[inline(always)]
fn tile<S: Simd, const R: usize, const V: usize>(simd: S, of: &mut Strip<'_>, first: usize) {
    let (depth, width) = (of.depth, of.width);
    let mut sums = [[simd.splat_f32s(0.0); V]; R];
    if of.add {
        for (sums, row) in sums.iter_mut().zip(of.out.chunks_exact(width)) {
            sums.copy_from_slice(&S::as_simd_f32s(row).0[first..first + V]);
        }
    }
    let mut rows: [&[f32]; R] = [&[]; R];
    for (row, a) in rows.iter_mut().zip(of.a.chunks_exact(depth)) {
        *row = &a[..depth];
    }
    for (k, b) in of.b.chunks_exact(width).take(depth).enumerate() {
        let b = &S::as_simd_f32s(b).0[first..first + V];
        for i in 0..R {
            let value = simd.splat_f32s(rows[i][k]);
            for v in 0..V {
                sums[i][v] = simd.mul_add_f32s(value, b[v], sums[i][v]);
            }
        }
    }
    for (sums, row) in sums.iter().zip(of.out.chunks_exact_mut(width)) {
        S::as_mut_simd_f32s(row).0[first..first + V].copy_from_slice(sums);
    }
}

//! The innermost product of f32 numbers that are packed.

use pulp::{Simd, WithSimd};

use super::{LANES, WIDEST};
use crate::vectorized::Vectorized as _;

/// Rows of a group of packed rows.
pub(crate) const GROUP: usize = LANES;

/// Some rows of a product: of `a` times `depth` rows of `b`, which are as wide as the result's.
pub(crate) struct Singles<'a> {
    /// Groups of [`GROUP`] rows: for each number along the sum, that of all rows. The last group has unused rows.
    pub(crate) a: &'a [f32],
    pub(crate) b: &'a [f32],
    pub(crate) depth: usize,
    /// Elements of a row of `b` and `out`, a multiple of [`LANES`].
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
        for (a, out) in a.chunks_exact(GROUP * depth).zip(out.chunks_mut(GROUP * width)) {
            let rows = out.len() / width;
            let mut row = 0;
            while row < rows {
                let some = [8, 4, 2].into_iter().find(|&some| some <= tallest.min(rows - row)).unwrap_or(1);
                let out = &mut out[row * width..(row + some) * width];
                let of = Strip { a: &a[row..], b, width, out, add };
                match some {
                    8 => Rows::<8>(of).vectorized(simd),
                    4 => Rows::<4>(of).vectorized(simd),
                    2 => Rows::<2>(of).vectorized(simd),
                    _ => Rows::<1>(of).vectorized(simd),
                }
                row += some;
            }
        }
    }
}

/// The rows of a tile, over the whole width.
struct Strip<'a> {
    /// A group without its rows before the first.
    a: &'a [f32],
    b: &'a [f32],
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
    let width = of.width;
    let mut sums = [[simd.splat_f32s(0.0); V]; R];
    if of.add {
        for (sums, row) in sums.iter_mut().zip(of.out.chunks_exact(width)) {
            sums.copy_from_slice(&S::as_simd_f32s(row).0[first..first + V]);
        }
    }
    let numbers = of.a.chunks(GROUP).filter_map(|numbers| numbers.first_chunk::<R>());
    let vectors = of.b.chunks_exact(width).filter_map(|b| S::as_simd_f32s(b).0[first..].first_chunk::<V>());
    for (numbers, b) in numbers.zip(vectors) {
        for i in 0..R {
            let value = simd.splat_f32s(numbers[i]);
            for v in 0..V {
                sums[i][v] = simd.mul_add_f32s(value, b[v], sums[i][v]);
            }
        }
    }
    for (sums, row) in sums.iter().zip(of.out.chunks_exact_mut(width)) {
        S::as_mut_simd_f32s(row).0[first..first + V].copy_from_slice(sums);
    }
}

//! Products of small matrices that lie in the cache.

use pulp::{Arch, Simd, WithSimd};

use crate::context::Context;
use crate::float::Float;
use crate::gemm_call::{View, gemm};
use crate::products::LANES;
use crate::vectorized::Vectorized as _;

/// The left factor of a product.
#[derive(Debug, Clone, Copy)]
pub(super) enum Left<'a, T> {
    /// Rows, `stride` apart.
    Rows { data: &'a [T], stride: usize },
    /// Columns, `stride` apart: the transpose of a matrix that lies in rows.
    Columns { data: &'a [T], stride: usize },
}

/// c = a·b, or c += a·b.
pub(super) struct Product<'a, T> {
    /// Rows of a and c.
    pub(super) rows: usize,
    /// Columns of b and c.
    pub(super) width: usize,
    /// Columns of a, and rows of b.
    pub(super) depth: usize,
    pub(super) a: Left<'a, T>,
    /// Rows of `width` elements, one after the other.
    pub(super) b: &'a [T],
    /// True to add to `c`.
    pub(super) add: bool,
}

impl<T: Float> Product<'_, T> {
    /// Computes the product. Rows of `c` are `stride` apart.
    ///
    /// # Panics
    /// If a row lies outside its slice.
    pub(super) fn run(&self, context: &Context, c: &mut [T], stride: usize) {
        let by_vectors = self.width.is_multiple_of(LANES) && !matches!(context.arch(), Arch::Scalar);
        match (self.singles().filter(|_| by_vectors), T::singles_mut(c)) {
            (Some(of), Some(c)) => context.dispatch(Work { of, c, stride }),
            _ => self.by_gemm(c, stride),
        }
    }

    /// The product of f32 numbers that this is, if it is one.
    fn singles(&self) -> Option<Product<'_, f32>> {
        let Self { rows, width, depth, add, .. } = *self;
        let a = match self.a {
            Left::Rows { data, stride } => Left::Rows { data: T::singles(data)?, stride },
            Left::Columns { data, stride } => Left::Columns { data: T::singles(data)?, stride },
        };
        Some(Product { rows, width, depth, a, b: T::singles(self.b)?, add })
    }

    fn by_gemm(&self, c: &mut [T], stride: usize) {
        let a = match self.a {
            Left::Rows { data, stride } => View { data, row_stride: stride, col_stride: 1 },
            Left::Columns { data, stride } => View { data, row_stride: 1, col_stride: stride },
        };
        let b = View { data: self.b, row_stride: self.width, col_stride: 1 };
        let sizes = [self.rows, self.width, self.depth];
        gemm(sizes, a, b, c, stride, self.add).unwrap_or_else(|error| panic!("a tile of attention: {error}"));
    }
}

/// A product of f32 numbers, whose width is a multiple of [`LANES`].
struct Work<'a> {
    of: Product<'a, f32>,
    c: &'a mut [f32],
    stride: usize,
}

impl WithSimd for Work<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let mut row = 0;
        while row < self.of.rows {
            let left = self.of.rows - row;
            // As many sums as fit the registers together with the factors: 32, or 16 of 8 numbers.
            let some = [6, 4, 2].into_iter().find(|&some| some <= left).unwrap_or(1);
            let work = Strip { work: &mut self, row };
            match some {
                6 => Rows::<6>(work).vectorized(simd),
                4 => Rows::<4>(work).vectorized(simd),
                2 => Rows::<2>(work).vectorized(simd),
                _ => Rows::<1>(work).vectorized(simd),
            }
            row += some;
        }
    }
}

/// Some rows of a product, from `row` on.
struct Strip<'w, 'a> {
    work: &'w mut Work<'a>,
    row: usize,
}

/// A strip of R rows.
struct Rows<'w, 'a, const R: usize>(Strip<'w, 'a>);

impl<const R: usize> WithSimd for Rows<'_, '_, R> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self(Strip { work, row }) = self;
        let vectors = work.of.width / S::F32_LANES;
        let widest = if S::F32_LANES == 8 { 2 } else { 4 };
        let mut first = 0;
        while first < vectors {
            let some = if widest <= vectors - first { widest } else { 1 };
            match some {
                4 => tile::<S, R, 4>(simd, work, row, first),
                2 => tile::<S, R, 2>(simd, work, row, first),
                _ => tile::<S, R, 1>(simd, work, row, first),
            }
            first += some;
        }
    }
}

/// Computes R rows from `row` on by V vectors from vector `first` on.
#[inline(always)]
fn tile<S: Simd, const R: usize, const V: usize>(simd: S, work: &mut Work<'_>, row: usize, first: usize) {
    let Product { width, depth, a, b, add, .. } = work.of;
    let (column, len) = (first * S::F32_LANES, V * S::F32_LANES);
    let place = |i: usize| (row + i) * work.stride + column;
    let mut sums = [[simd.splat_f32s(0.0); V]; R];
    if add {
        for (i, sums) in sums.iter_mut().enumerate() {
            sums.copy_from_slice(S::as_simd_f32s(&work.c[place(i)..][..len]).0);
        }
    }
    let vectors = b[..depth * width].chunks_exact(width).map(|b| S::as_simd_f32s(&b[column..][..len]).0);
    match a {
        Left::Rows { data, stride } => {
            let mut rows: [&[f32]; R] = [&[]; R];
            for (i, to) in rows.iter_mut().enumerate() {
                *to = &data[(row + i) * stride..][..depth];
            }
            for (k, b) in vectors.enumerate() {
                let mut values = [0.0; R];
                for i in 0..R {
                    values[i] = rows[i][k];
                }
                multiply_add(simd, &values, b, &mut sums);
            }
        }
        Left::Columns { data, stride } => {
            for (values, b) in data.chunks(stride).zip(vectors) {
                if let Some(values) = values[row..].first_chunk::<R>() {
                    multiply_add(simd, values, b, &mut sums);
                }
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        S::as_mut_simd_f32s(&mut work.c[place(i)..][..len]).0.copy_from_slice(sums);
    }
}

/// Adds the products of a column of the left factor and a row of the right one.
#[inline(always)]
fn multiply_add<S: Simd, const R: usize, const V: usize>(
    simd: S,
    values: &[f32; R],
    b: &[S::f32s],
    sums: &mut [[S::f32s; V]; R],
) {
    let Some(b) = b.first_chunk::<V>() else { return };
    for (sums, value) in sums.iter_mut().zip(values) {
        let value = simd.splat_f32s(*value);
        for (sum, b) in sums.iter_mut().zip(b) {
            *sum = simd.mul_add_f32s(value, *b, *sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::Level;

    fn numbers(len: usize, seed: u64) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..len).map(|_| next()).collect()
    }

    /// The largest difference from plain sums.
    fn error(context: &Context, [rows, width, depth]: [usize; 3], is_turned: bool, add: bool) -> f64 {
        let (strides, data) = ([depth + 3, rows + 5], numbers((rows + 5) * (depth + 3), 1));
        let b = numbers(depth * width, 2);
        let stride = width + 7;
        let before = numbers(rows * stride, 3);
        let a = match is_turned {
            false => Left::Rows { data: &data, stride: strides[0] },
            true => Left::Columns { data: &data, stride: strides[1] },
        };
        let mut c = before.clone();
        Product { rows, width, depth, a, b: &b, add }.run(context, &mut c, stride);
        let mut largest = 0.0f64;
        for row in 0..rows {
            for column in 0..stride {
                let at = row * stride + column;
                let mut expected = if add || column >= width { f64::from(before[at]) } else { 0.0 };
                for k in (0..depth).take_while(|_| column < width) {
                    let left =
                        if is_turned { data[k * strides[1] + row] } else { data[row * strides[0] + k] };
                    expected += f64::from(left) * f64::from(b[k * width + column]);
                }
                largest = largest.max((expected - f64::from(c[at])).abs());
            }
        }
        largest
    }

    #[test]
    fn products_are_plain_sums_by_every_instruction_set() {
        for level in Level::ALL.iter().filter(|level| level.arch().is_some()) {
            let context = Context::with_level(1, *level).expect("this CPU has it");
            for sizes in [[64, 64, 64], [13, 48, 5], [1, 16, 1], [6, 128, 9], [3, 7, 4], [4, 80, 33]] {
                for (is_turned, add) in [(false, false), (false, true), (true, false), (true, true)] {
                    let error = error(&context, sizes, is_turned, add);
                    assert!(error < 1e-5, "{level:?} {sizes:?} turned {is_turned} add {add}: {error}");
                }
            }
        }
    }
}

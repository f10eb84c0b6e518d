//! Packed factors: in f32, or as pairs along the sum.

use pulp::{Simd, WithSimd};

use crate::bfloat::pairs::{ToBf16, zip_neighbours, zip_rows};
use crate::context::Context;
use crate::matmul::Matrix;
use crate::transpose::{SIDE, transpose};

/// The terms of the sum in a packed element: one number, or a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    Singles,
    Pairs,
}

impl Form {
    /// The terms of the sum in an element.
    pub(super) fn terms(self) -> usize {
        match self {
            Self::Singles => 1,
            Self::Pairs => 2,
        }
    }

    /// Packs a row along the sum.
    #[inline(always)]
    fn along<T: ToBf16>(self, row: &[T], to: &mut [f32]) {
        match self {
            Self::Singles => to.iter_mut().zip(row).for_each(|(to, value)| *to = single(*value)),
            Self::Pairs => zip_neighbours(row, to),
        }
    }

    /// Packs element `at` of the sum from the rows of a matrix, which lie across it.
    #[inline(always)]
    fn across<'a, T: ToBf16 + 'a>(
        self,
        at: usize,
        rows: usize,
        row: impl Fn(usize) -> &'a [T],
        to: &mut [f32],
    ) {
        match self {
            Self::Singles => self.along(row(at), to),
            Self::Pairs => zip_rows(row(2 * at), (2 * at + 1 < rows).then(|| row(2 * at + 1)), to),
        }
    }
}

#[inline(always)]
fn single(value: impl ToBf16) -> f32 {
    f32::from_bits(u32::from(value.bits()) << 16)
}

/// Packs a panel of b's columns: `depth` rows as wide as the panel.
pub(super) struct PackPanel<'a, T> {
    pub(super) form: Form,
    pub(super) b: Matrix<'a, T>,
    /// The panel's first column.
    pub(super) first: usize,
    pub(super) depth: usize,
    pub(super) to: &'a mut [f32],
}

impl<T: ToBf16> WithSimd for PackPanel<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { form, b, first, depth, to } = self;
        let (k, n) = (b.rows, b.cols);
        let width = to.len() / depth;
        let columns = width.min(n - first);
        if columns < width {
            to.fill(0.0);
        }
        if b.transposed {
            let mut lines = vec![0.0; SIDE * depth];
            for lane in (0..columns).step_by(SIDE) {
                let some = SIDE.min(columns - lane);
                for (i, line) in lines.chunks_exact_mut(depth).take(some).enumerate() {
                    form.along(&b.data[(first + lane + i) * k..][..k], line);
                }
                transpose(simd, &lines, depth, [some, depth], &mut to[lane..], width);
            }
        } else {
            let row = |index: usize| &b.data[index * n + first..][..columns];
            for (at, to) in to.chunks_exact_mut(width).enumerate() {
                form.across(at, k, row, &mut to[..columns]);
            }
        }
    }
}

/// Some rows of a, and the part of the sum that is packed: `count` rows of `depth` elements.
pub(super) struct PackLeft<'a, T> {
    pub(super) form: Form,
    pub(super) a: Matrix<'a, T>,
    pub(super) first: usize,
    pub(super) count: usize,
    /// The first element.
    pub(super) start: usize,
    pub(super) depth: usize,
}

impl<T: ToBf16> PackLeft<'_, T> {
    #[inline(always)]
    pub(super) fn run<S: Simd>(self, simd: S, context: &Context, to: &mut [f32]) {
        let Self { form, a, first, count, start, depth } = self;
        let (m, k) = (a.rows, a.cols);
        let begin = form.terms() * start;
        let terms = (form.terms() * depth).min(k - begin);
        if a.transposed {
            let mut lines = context.scratch(depth * count);
            let row = |index: usize| &a.data[(begin + index) * m + first..][..count];
            for (at, line) in lines.chunks_exact_mut(count).enumerate() {
                form.across(at, terms, row, line);
            }
            transpose(simd, &lines, count, [depth, count], to, depth);
        } else {
            for (row, to) in to.chunks_exact_mut(depth).enumerate() {
                form.along(&a.data[(first + row) * k + begin..][..terms], to);
            }
        }
    }
}

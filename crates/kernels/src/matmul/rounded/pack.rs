//! Packed factors: in f32, or as pairs along the sum.

use pulp::{Simd, WithSimd};

use crate::bfloat::pairs::{ToBf16, zip_neighbours, zip_rows};
use crate::bfloat::widen_bits;
use crate::context::Context;
use crate::matmul::Matrix;
use crate::products::singles::GROUP;
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
    widen_bits(value.bits())
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

/// The elements of a line that has a pair of each of `count` rows. An odd number of cache lines, so that a column of them lies in all
/// sets of the cache.
pub(super) fn line_len(count: usize) -> usize {
    (count.div_ceil(SIDE) | 1) * SIDE
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
    /// The elements that a block of at most `count` rows by `depth` needs.
    pub(super) fn room(form: Form, a: &Matrix<'_, T>, count: usize, depth: usize) -> usize {
        match (form, a.transposed) {
            (Form::Pairs, true) => line_len(count) * depth,
            (Form::Pairs, false) | (Form::Singles, _) => count.next_multiple_of(GROUP) * depth,
        }
    }

    /// Packs pairs in rows, or in lines of a pair of each row if the matrix is transposed, and singles in the groups of
    /// [`Singles`](crate::products::singles::Singles).
    #[inline(always)]
    pub(super) fn run<S: Simd>(self, simd: S, context: &Context, to: &mut [f32]) {
        match (self.form, self.a.transposed) {
            (Form::Pairs, true) => {
                for (at, line) in to.chunks_exact_mut(line_len(self.count)).take(self.depth).enumerate() {
                    self.line(at, &mut line[..self.count]);
                }
            }
            (Form::Pairs, false) => {
                for (row, to) in to.chunks_exact_mut(self.depth).take(self.count).enumerate() {
                    self.form.along(self.row(row), to);
                }
            }
            (Form::Singles, true) => {
                let mut line = context.scratch(self.count);
                for at in 0..self.depth {
                    self.line(at, &mut line);
                    for (group, line) in line.chunks(GROUP).enumerate() {
                        to[(group * self.depth + at) * GROUP..][..line.len()].copy_from_slice(line);
                    }
                }
            }
            (Form::Singles, false) => {
                let mut lines = context.scratch(GROUP * self.depth);
                for (group, to) in to.chunks_exact_mut(GROUP * self.depth).enumerate() {
                    let rows = GROUP.min(self.count - group * GROUP);
                    for (row, line) in lines.chunks_exact_mut(self.depth).take(rows).enumerate() {
                        self.form.along(self.row(group * GROUP + row), line);
                    }
                    transpose(simd, &lines, self.depth, [GROUP, self.depth], to, GROUP);
                }
            }
        }
    }

    /// The place of the part along the sum, and its terms.
    #[inline(always)]
    fn part(&self) -> (usize, usize) {
        let begin = self.form.terms() * self.start;
        (begin, (self.form.terms() * self.depth).min(self.a.cols - begin))
    }

    /// Returns the part of a row of a matrix that is not transposed.
    #[inline(always)]
    fn row(&self, row: usize) -> &[T] {
        let (begin, terms) = self.part();
        &self.a.data[(self.first + row) * self.a.cols + begin..][..terms]
    }

    /// Packs element `at` of all rows of a transposed matrix.
    #[inline(always)]
    fn line(&self, at: usize, line: &mut [f32]) {
        let (begin, terms) = self.part();
        let row = |index: usize| &self.a.data[(begin + index) * self.a.rows + self.first..][..self.count];
        self.form.across(at, terms, row, line);
    }
}

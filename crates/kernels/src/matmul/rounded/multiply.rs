//! Products of packed factors.
//!
//! The factor with fewer elements, b, is packed whole, in panels of columns. Of the other one, a task packs a block of rows
//! in the second-level cache, multiplies it with every panel, and writes each finished piece of the result once. If the
//! factors stand the other way round, the transpose is computed, whose pieces are turned as they are written.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::pack::{Form, PackLeft, PackPanel, line_len};
use super::store::{Place, Store, Stored};
use super::{RoundedFactor, RoundedResult};
use crate::context::Context;
use crate::matmul::Extent;
use crate::products::singles::Singles;
#[cfg(target_arch = "x86_64")]
use crate::products::tile::{Segment, Tile};
use crate::products::{HasBf16, LANES, WIDEST};
use crate::vectorized::Vectorized as _;

/// Elements along the sum that are added at a time: a block of rows and a panel of them stay in the second-level cache.
const DEPTH: usize = 512;

/// The rows of a block.
const ROWS: usize = 128;

/// Columns of a panel.
const COLUMNS: usize = WIDEST * LANES;

impl RoundedFactor<'_> {
    /// Returns one of the matrices.
    fn at(self, index: usize) -> Self {
        match self {
            Self::Bf16(of) => Self::Bf16(of.at(index)),
            Self::F32(of) => Self::F32(of.at(index)),
        }
    }

    /// Returns the transpose.
    fn turned(self) -> Self {
        match self {
            Self::Bf16(of) => Self::Bf16(of.turned()),
            Self::F32(of) => Self::F32(of.turned()),
        }
    }
}

/// Computes the products. The sizes have been checked.
pub(super) fn multiply(
    context: &Context,
    batch: usize,
    a: RoundedFactor<'_>,
    b: RoundedFactor<'_>,
    bias: Option<&[f32]>,
    c: &mut RoundedResult<'_>,
) {
    let Extent { rows, cols, len } = c.extent();
    if batch == 0 || len == 0 {
        return;
    }
    let has = context.bf16();
    let of = |index: usize| Product { context, has, a: a.at(index), b: b.at(index), bias, add: false };
    let size = rows * cols;
    match c {
        RoundedResult::F32(c) => context.run_chunks(c.data, size, |index, c| of(index).run(c)),
        RoundedResult::AddF32(c) => {
            context.run_chunks(c.data, size, |index, c| Product { add: true, ..of(index) }.run(c));
        }
        RoundedResult::Bf16(c) => context.run_chunks(c.data, size, |index, c| of(index).run(c)),
    }
}

/// A product.
#[derive(Clone, Copy)]
struct Product<'a> {
    context: &'a Context,
    has: Option<HasBf16>,
    a: RoundedFactor<'a>,
    b: RoundedFactor<'a>,
    bias: Option<&'a [f32]>,
    /// True to add to the present result.
    add: bool,
}

impl Product<'_> {
    fn run<C: Stored>(self, c: &mut [C]) {
        let turn = self.b.extent().cols > 2 * self.a.extent().rows;
        let of = if turn { Self { a: self.b.turned(), b: self.a.turned(), ..self } } else { self };
        let Self { context, has, a, b, bias, add } = of;
        let (of_a, n) = (a.extent(), b.extent().cols);
        let form = if has.is_some() { Form::Pairs } else { Form::Singles };
        let (m, depth) = (of_a.rows, of_a.cols.div_ceil(form.terms()));
        let mut packed = context.scratch(n.next_multiple_of(LANES) * depth);
        context.run_chunks(&mut packed, COLUMNS * depth, |panel, to| {
            let first = panel * COLUMNS;
            match b {
                RoundedFactor::Bf16(b) => context.dispatch(PackPanel { form, b, first, depth, to }),
                RoundedFactor::F32(b) => context.dispatch(PackPanel { form, b, first, depth, to }),
            }
        });
        // As many tasks for each thread, of at most a block each; of several whole blocks if there are many rows.
        let tasks = context.parts() * m.div_ceil(context.parts() * ROWS);
        let share = m.div_ceil(tasks).next_multiple_of(8).max(m.div_ceil(context.parts() * 8) / ROWS * ROWS);
        let packed = &packed;
        let block = |(index, place): (usize, Place<'_, C>)| {
            let rows = share.min(m - index * share);
            let first = index * share;
            context.dispatch(Rows { context, has, form, a, packed, first, rows, n, depth, bias, add, place });
        };
        let tasks = if turn { Place::turned(c, m, share) } else { Place::plain(c, n, share) };
        context.run_each(tasks.into_iter().enumerate().collect(), block);
    }
}

/// A task: some rows of a, times b.
struct Rows<'a, C> {
    context: &'a Context,
    has: Option<HasBf16>,
    form: Form,
    a: RoundedFactor<'a>,
    packed: &'a [f32],
    first: usize,
    rows: usize,
    n: usize,
    /// Elements along the sum.
    depth: usize,
    bias: Option<&'a [f32]>,
    add: bool,
    place: Place<'a, C>,
}

/// A block of rows and a part of the sum.
#[derive(Clone, Copy)]
struct Block {
    /// The first row of the task, and the number of rows.
    row: usize,
    count: usize,
    /// The first element along the sum, and the number of elements.
    start: usize,
    depth: usize,
}

impl<C: Stored> WithSimd for Rows<'_, C> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let Self { context, rows, n, depth, .. } = self;
        let (stride, most) = (n.next_multiple_of(LANES), rows.min(ROWS));
        let mut left = context.scratch(self.room(most, depth.min(DEPTH)));
        // With one part of the sum, a panel's piece of the result is finished at once.
        let columns = if depth > DEPTH { stride } else { stride.min(COLUMNS) };
        let mut sums = context.scratch(most * columns);
        let mut turned = context.scratch(most * COLUMNS);
        for row in (0..rows).step_by(ROWS) {
            let count = ROWS.min(rows - row);
            for start in (0..depth.max(1)).step_by(DEPTH) {
                let block = Block { row, count, start, depth: DEPTH.min(depth - start) };
                let left = &mut left[..self.room(count, block.depth)];
                self.pack(simd, block, left);
                for column in (0..stride).step_by(COLUMNS) {
                    let width = COLUMNS.min(stride - column);
                    if self.multiply_in_place(block, left, column..column + width) {
                        continue;
                    }
                    let at = if depth > DEPTH { column * count } else { 0 };
                    let sums = &mut sums[at..at + count * width];
                    self.multiply(simd, block, left, column, sums);
                    if start + block.depth == depth {
                        let (rows, columns) = (self.first + row, column..n.min(column + width));
                        let of = Store { sums, width, rows, columns, bias: self.bias, add: self.add };
                        of.store(simd, &mut self.place, row, &mut turned);
                    }
                }
            }
        }
    }
}

impl<C: Stored> Rows<'_, C> {
    /// The elements of a packed block.
    fn room(&self, count: usize, depth: usize) -> usize {
        match &self.a {
            RoundedFactor::Bf16(a) => PackLeft::room(self.form, a, count, depth),
            RoundedFactor::F32(a) => PackLeft::room(self.form, a, count, depth),
        }
    }

    /// The distance between pairs of a row of a packed block, and that between rows.
    fn left_strides(&self, block: Block) -> LeftStrides {
        let is_transposed = match &self.a {
            RoundedFactor::Bf16(a) => a.transposed,
            RoundedFactor::F32(a) => a.transposed,
        };
        match is_transposed {
            true => LeftStrides { step: line_len(block.count), row: 1 },
            false => LeftStrides { step: 1, row: block.depth },
        }
    }

    /// Multiplies a packed block and a panel of columns where the result is, without sums of its own, if that can be. Returns false
    /// if not.
    #[inline(always)]
    fn multiply_in_place(&mut self, block: Block, left: &[f32], columns: Range<usize>) -> bool {
        let strides = self.left_strides(block);
        let (Some(has), Some(c)) = (self.has, self.place.singles()) else { return false };
        let Block { row, count, start, depth } = block;
        let is_whole = start == 0 && depth == self.depth && depth > 0 && columns.end <= self.n;
        // A sum that began with the present result would be rounded otherwise.
        if !is_whole || self.bias.is_some() || self.add {
            return false;
        }
        let width = columns.len();
        let b = &self.packed[columns.start * depth..][..depth * width];
        let to = PairSums { first: row * self.n + columns.start, stride: self.n, count, width, add: false };
        multiply_pairs(has, [left, b], depth, strides, to, c);
        true
    }

    /// Packs a block.
    #[inline(always)]
    fn pack<S: Simd>(&self, simd: S, block: Block, to: &mut [f32]) {
        let Block { row, count, start, depth } = block;
        let (form, context, first) = (self.form, self.context, self.first + row);
        if depth == 0 {
            return;
        }
        match self.a {
            RoundedFactor::Bf16(a) => PackLeft { form, a, first, count, start, depth }.run(simd, context, to),
            RoundedFactor::F32(a) => PackLeft { form, a, first, count, start, depth }.run(simd, context, to),
        }
    }

    /// Adds the products of a packed block and a panel of columns to `sums`, which has the block's rows.
    #[inline(always)]
    fn multiply<S: Simd>(&self, simd: S, block: Block, left: &[f32], column: usize, sums: &mut [f32]) {
        let Block { count, start, depth, .. } = block;
        if depth == 0 {
            return sums.fill(0.0);
        }
        let (width, add) = (sums.len() / count, start > 0);
        let b = &self.packed[column * self.depth + start * width..][..depth * width];
        match self.has {
            None => Singles { a: left, b, depth, width, out: sums, add }.vectorized(simd),
            Some(has) => {
                let to = PairSums { first: 0, stride: width, count, width, add };
                multiply_pairs(has, [left, b], depth, self.left_strides(block), to, sums);
            }
        }
    }
}

/// The distance between pairs of a row of a packed block, and that between rows.
#[derive(Clone, Copy)]
struct LeftStrides {
    step: usize,
    row: usize,
}

/// The place of the sums of a block's rows and a panel's columns in a slice.
#[derive(Clone, Copy)]
struct PairSums {
    first: usize,
    /// The distance between rows.
    stride: usize,
    count: usize,
    width: usize,
    /// True to add to the present sums.
    add: bool,
}

#[cfg(not(target_arch = "x86_64"))]
fn multiply_pairs(has: HasBf16, _: [&[f32]; 2], _: usize, _: LeftStrides, _: PairSums, _: &mut [f32]) {
    match has {}
}

/// Multiplies pairs, tile by tile.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn multiply_pairs(
    has: HasBf16,
    factors: [&[f32]; 2],
    depth: usize,
    left: LeftStrides,
    to: PairSums,
    sums: &mut [f32],
) {
    let [a, b] = factors.map(pulp::bytemuck::cast_slice::<f32, u32>);
    let mut row = 0;
    while row < to.count {
        let some = [8, 4, 2, 1].into_iter().find(|&some| row + some <= to.count).unwrap_or(1);
        let tile = Tile {
            a,
            row: row * left.row,
            row_stride: left.row,
            step: left.step,
            b,
            segments: &[Segment { a: 0, b: 0 }],
            pairs: depth,
            out: to.first + row * to.stride,
            out_stride: to.stride,
            add: to.add,
        };
        tile.run(has, some, to.width / LANES, sums);
        row += some;
    }
}

//! Finished pieces of a product in their place.

use std::ops::Range;

use half::bf16;
use pulp::Simd;

use crate::bfloat::round_bits;
use crate::transpose::transpose;

/// The type of a result.
pub(super) trait Stored: Send + Sized {
    /// Writes sums, or adds them.
    fn store(to: &mut [Self], sums: &[f32], add: bool);
}

impl Stored for f32 {
    #[inline(always)]
    fn store(to: &mut [Self], sums: &[f32], add: bool) {
        if add {
            to.iter_mut().zip(sums).for_each(|(to, sum)| *to += *sum);
        } else {
            to.copy_from_slice(&sums[..to.len()]);
        }
    }
}

impl Stored for bf16 {
    #[inline(always)]
    fn store(to: &mut [Self], sums: &[f32], _: bool) {
        to.iter_mut().zip(sums).for_each(|(to, sum)| *to = Self::from_bits(round_bits(*sum)));
    }
}

/// The place of a task's rows in the result.
pub(super) struct Place<'a, C> {
    /// The rows, or if `turned`, the parts of all columns.
    lines: Vec<&'a mut [C]>,
    turned: bool,
}

impl<'a, C> Place<'a, C> {
    /// Splits a result of rows of `n` in tasks of `share` rows.
    pub(super) fn plain(c: &'a mut [C], n: usize, share: usize) -> Vec<Self> {
        let lines = |c: &'a mut [C]| c.chunks_exact_mut(n).collect();
        c.chunks_mut(share * n).map(|c| Self { lines: lines(c), turned: false }).collect()
    }

    /// Splits the transpose of a result, whose lines have `m` elements, in tasks of `share` of them.
    pub(super) fn turned(c: &'a mut [C], m: usize, share: usize) -> Vec<Self> {
        let count = c.len() / m;
        let empty = || Self { lines: Vec::with_capacity(count), turned: true };
        let mut places: Vec<Self> = (0..m.div_ceil(share)).map(|_| empty()).collect();
        for line in c.chunks_exact_mut(m) {
            for (place, part) in places.iter_mut().zip(line.chunks_mut(share)) {
                place.lines.push(part);
            }
        }
        places
    }
}

/// Sums of some rows, and of the columns of a panel.
pub(super) struct Store<'a> {
    /// [rows, width].
    pub(super) sums: &'a mut [f32],
    pub(super) width: usize,
    /// The first row of the whole product.
    pub(super) rows: usize,
    /// The columns; there may be fewer than `width`.
    pub(super) columns: Range<usize>,
    /// The bias of the result's columns.
    pub(super) bias: Option<&'a [f32]>,
    pub(super) add: bool,
}

impl Store<'_> {
    /// Writes the sums from row `row` of the task on. `turned` has room for them.
    #[inline(always)]
    pub(super) fn store<S: Simd, C: Stored>(
        self,
        simd: S,
        place: &mut Place<'_, C>,
        row: usize,
        turned: &mut [f32],
    ) {
        let Self { sums, width, rows, columns, bias, add } = self;
        let count = sums.len() / width;
        if place.turned {
            transpose(simd, sums, width, [count, columns.len()], turned, count);
            let bias = bias.map(|bias| &bias[rows..rows + count]);
            for (line, sums) in place.lines[columns].iter_mut().zip(turned.chunks_exact_mut(count)) {
                with_bias(sums, bias);
                C::store(&mut line[row..row + count], sums, add);
            }
            return;
        }
        let bias = bias.map(|bias| &bias[columns.clone()]);
        for (line, sums) in place.lines[row..].iter_mut().zip(sums.chunks_exact_mut(width)) {
            with_bias(sums, bias);
            C::store(&mut line[columns.clone()], sums, add);
        }
    }
}

#[inline(always)]
fn with_bias(sums: &mut [f32], bias: Option<&[f32]>) {
    if let Some(bias) = bias {
        sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += *bias);
    }
}

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
    /// The slice, if the type is f32.
    fn singles(values: &mut [Self]) -> Option<&mut [f32]>;
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

    fn singles(values: &mut [Self]) -> Option<&mut [f32]> {
        Some(values)
    }
}

impl Stored for bf16 {
    #[inline(always)]
    fn store(to: &mut [Self], sums: &[f32], _: bool) {
        to.iter_mut().zip(sums).for_each(|(to, sum)| *to = Self::from_bits(round_bits(*sum)));
    }

    fn singles(_: &mut [Self]) -> Option<&mut [f32]> {
        None
    }
}

/// The place of a task's rows in the result.
pub(super) enum Place<'a, C> {
    /// Rows of `n` elements, one after the other.
    Plain { rows: &'a mut [C], n: usize },
    /// The parts of all columns.
    Turned(Vec<&'a mut [C]>),
}

impl<'a, C: Stored> Place<'a, C> {
    /// Splits a result of rows of `n` in tasks of `share` rows.
    pub(super) fn plain(c: &'a mut [C], n: usize, share: usize) -> Vec<Self> {
        c.chunks_mut(share * n).map(|rows| Self::Plain { rows, n }).collect()
    }

    /// The rows, if they are of f32 and lie one after the other.
    pub(super) fn singles(&mut self) -> Option<&mut [f32]> {
        match self {
            Self::Plain { rows, .. } => C::singles(rows),
            Self::Turned(_) => None,
        }
    }

    /// Splits the transpose of a result, whose lines have `m` elements, in tasks of `share` of them.
    pub(super) fn turned(c: &'a mut [C], m: usize, share: usize) -> Vec<Self> {
        let count = c.len() / m;
        let mut places: Vec<Vec<&'a mut [C]>> = Vec::new();
        places.resize_with(m.div_ceil(share), || Vec::with_capacity(count));
        for line in c.chunks_exact_mut(m) {
            for (place, part) in places.iter_mut().zip(line.chunks_mut(share)) {
                place.push(part);
            }
        }
        places.into_iter().map(Self::Turned).collect()
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
        match place {
            Place::Turned(lines) => {
                transpose(simd, sums, width, [count, columns.len()], turned, count);
                let bias = bias.map(|bias| &bias[rows..rows + count]);
                for (line, sums) in lines[columns].iter_mut().zip(turned.chunks_exact_mut(count)) {
                    with_bias(sums, bias);
                    C::store(&mut line[row..row + count], sums, add);
                }
            }
            Place::Plain { rows, n } => {
                let bias = bias.map(|bias| &bias[columns.clone()]);
                let lines = rows.chunks_exact_mut(*n).skip(row);
                for (line, sums) in lines.zip(sums.chunks_exact_mut(width)) {
                    with_bias(sums, bias);
                    C::store(&mut line[columns.clone()], sums, add);
                }
            }
        }
    }
}

#[inline(always)]
fn with_bias(sums: &mut [f32], bias: Option<&[f32]>) {
    if let Some(bias) = bias {
        sums.iter_mut().zip(bias).for_each(|(sum, bias)| *sum += *bias);
    }
}

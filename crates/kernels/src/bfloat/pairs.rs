//! Operands of bf16 products as pairs along the sum, from bf16 or rounded f32.

#![cfg_attr(
    not(target_arch = "x86_64"),
    allow(dead_code, reason = "only x86 has an instruction for such pairs")
)]

use half::bf16;
use pulp::Simd;

use super::convert::round_bits;
use crate::transpose::transpose;

/// A conversion to bf16.
pub(crate) trait ToBf16: Copy + Send + Sync {
    /// Returns the bits of the bf16 number.
    fn bits(self) -> u16;
}

impl ToBf16 for f32 {
    #[inline(always)]
    fn bits(self) -> u16 {
        round_bits(self)
    }
}

impl ToBf16 for bf16 {
    #[inline(always)]
    fn bits(self) -> u16 {
        self.to_bits()
    }
}

/// Packs two numbers, the first in the lower half.
#[inline(always)]
pub(crate) fn pair(first: u16, second: u16) -> u32 {
    u32::from(first) | u32::from(second) << 16
}

/// Packs two rows element by element. A missing `second` counts as zeros.
#[inline(always)]
pub(crate) fn zip_rows<T: ToBf16>(first: &[T], second: Option<&[T]>, to: &mut [f32]) {
    match second {
        Some(second) => {
            for ((to, first), second) in to.iter_mut().zip(first).zip(second) {
                *to = f32::from_bits(pair(first.bits(), second.bits()));
            }
        }
        None => {
            for (to, first) in to.iter_mut().zip(first) {
                *to = f32::from_bits(pair(first.bits(), 0));
            }
        }
    }
}

/// Packs neighbours of a row. An odd last one is paired with zero.
#[inline(always)]
pub(crate) fn zip_neighbours<T: ToBf16>(row: &[T], to: &mut [f32]) {
    let (pairs, rest) = row.as_chunks::<2>();
    for (to, [first, second]) in to.iter_mut().zip(pairs) {
        *to = f32::from_bits(pair(first.bits(), second.bits()));
    }
    if let ([last], Some(to)) = (rest, to.get_mut(pairs.len())) {
        *to = f32::from_bits(pair(last.bits(), 0));
    }
}

/// Packs pairs of rows and transposes them.
///
/// `from` has `rows` rows of `cols` elements, `from_stride` apart. `to` gets `cols` rows, `to_stride` apart, of one pair for
/// every two rows. `scratch` has room for half the rows.
#[inline(always)]
pub(crate) fn transpose_pairs<S: Simd, T: ToBf16>(
    simd: S,
    from: &[T],
    from_stride: usize,
    [rows, cols]: [usize; 2],
    to: &mut [f32],
    to_stride: usize,
    scratch: &mut [f32],
) {
    for (pair, line) in scratch.chunks_exact_mut(cols).take(rows.div_ceil(2)).enumerate() {
        let row = |index: usize| &from[index * from_stride..][..cols];
        let second = (2 * pair + 1 < rows).then(|| row(2 * pair + 1));
        zip_rows(row(2 * pair), second, line);
    }
    transpose(simd, scratch, cols, [rows.div_ceil(2), cols], to, to_stride);
}

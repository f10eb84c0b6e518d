//! The element types of queries, keys and values.

use half::{bf16, f16};
use pulp::Arch;

use crate::bfloat::{round_bits, widen_bits};
use crate::float::Float;
use crate::half::Half as _;
use crate::vectorized::MOST_LANES;

/// An element type of attention's operands and results. Arithmetic on numbers of 16 bits is in f32, and each result is rounded once.
pub trait AttentionElement: Copy + Default + Send + Sync + 'static {
    /// The type of the arithmetic, and of the logarithms that forward saves.
    type Float: Float;
    /// Returns the slice if this type is that of the arithmetic.
    #[doc(hidden)]
    fn floats(values: &[Self]) -> Option<&[Self::Float]>;
    /// Widens the numbers of each pair of rows, which have equally many. A row has few, so all rows are one call.
    #[doc(hidden)]
    fn read<'a>(arch: Arch, rows: impl Iterator<Item = (&'a [Self], &'a mut [Self::Float])>);
    /// Rounds the numbers of each pair of rows.
    #[doc(hidden)]
    fn write<'a>(arch: Arch, rows: impl Iterator<Item = (&'a [Self::Float], &'a mut [Self])>);
}

macro_rules! as_it_is {
    ($float:ty) => {
        impl AttentionElement for $float {
            type Float = Self;

            fn floats(values: &[Self]) -> Option<&[Self]> {
                Some(values)
            }

            fn read<'a>(_: Arch, rows: impl Iterator<Item = (&'a [Self], &'a mut [Self])>) {
                rows.for_each(|(from, to)| to.copy_from_slice(from));
            }

            fn write<'a>(_: Arch, rows: impl Iterator<Item = (&'a [Self], &'a mut [Self])>) {
                rows.for_each(|(from, to)| to.copy_from_slice(from));
            }
        }
    };
}
as_it_is!(f32);
as_it_is!(f64);

impl AttentionElement for bf16 {
    type Float = f32;

    fn floats(_: &[Self]) -> Option<&[f32]> {
        None
    }

    fn read<'a>(arch: Arch, rows: impl Iterator<Item = (&'a [Self], &'a mut [f32])>) {
        arch.dispatch(
            #[inline(always)]
            || {
                for (from, to) in rows {
                    by_vectors(from, to, |from| widen_bits(from.to_bits()));
                }
            },
        );
    }

    fn write<'a>(arch: Arch, rows: impl Iterator<Item = (&'a [f32], &'a mut [Self])>) {
        arch.dispatch(
            #[inline(always)]
            || {
                for (from, to) in rows {
                    by_vectors(from, to, |from| Self::from_bits(round_bits(from)));
                }
            },
        );
    }
}

/// Converts a row. It has few vectors, and the compiler would unroll a loop over its numbers for more than it has.
#[inline(always)]
fn by_vectors<F: Copy, T: Copy + Default>(from: &[F], to: &mut [T], convert: impl Fn(F) -> T) {
    let (from_vectors, from_rest) = from.as_chunks::<MOST_LANES>();
    let (to_vectors, to_rest) = to.as_chunks_mut::<MOST_LANES>();
    for (to, from) in to_vectors.iter_mut().zip(from_vectors) {
        let (from, mut vector) = (*from, [T::default(); MOST_LANES]);
        for lane in 0..MOST_LANES {
            vector[lane] = convert(from[lane]);
        }
        *to = vector;
    }
    to_rest.iter_mut().zip(from_rest).for_each(|(to, from)| *to = convert(*from));
}

impl AttentionElement for f16 {
    type Float = f32;

    fn floats(_: &[Self]) -> Option<&[f32]> {
        None
    }

    fn read<'a>(arch: Arch, rows: impl Iterator<Item = (&'a [Self], &'a mut [f32])>) {
        rows.for_each(|(from, to)| Self::widen_slice(arch, from, to));
    }

    fn write<'a>(arch: Arch, rows: impl Iterator<Item = (&'a [f32], &'a mut [Self])>) {
        rows.for_each(|(from, to)| Self::round_slice(arch, from, to));
    }
}

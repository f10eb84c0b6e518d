//! Keys, values and queries of a head, copied to where a product reads them one after the other.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::element::AttentionElement;
use super::operands::Rows;
use crate::context::Context;
use crate::float::Float;
use crate::transpose::transpose;

/// Keys of a panel.
pub(super) const PANEL: usize = 64;

/// Takes `len` elements off the front of scratch memory.
///
/// # Panics
/// If there are fewer.
pub(super) fn take<'a, T>(rest: &mut &'a mut [T], len: usize) -> &'a mut [T] {
    rest.split_off_mut(..len).expect("the scratch memory was sized by its parts")
}

/// Some positions of a head, one after the other: [positions, dim].
#[derive(Debug, Clone, Copy)]
pub(super) struct Packed<'a, T> {
    data: &'a [T],
    first: usize,
    dim: usize,
}

impl<'a, T: Float> Packed<'a, T> {
    /// Copies the positions of a range.
    pub(super) fn copy<E: AttentionElement<Float = T>>(
        context: &Context,
        of: Rows<'_, E>,
        range: Range<usize>,
        dim: usize,
        to: &'a mut [T],
    ) -> Self {
        E::read(
            context.arch(),
            range.clone().map(|position| of.row(position, dim)).zip(to.chunks_exact_mut(dim)),
        );
        Self { data: to, first: range.start, dim }
    }

    /// Elements of a position.
    pub(super) fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the positions from one on.
    pub(super) fn from(&self, position: usize) -> &'a [T] {
        &self.data[(position - self.first) * self.dim..]
    }

    /// Returns the positions of a range.
    pub(super) fn range(&self, range: Range<usize>) -> &'a [T] {
        &self.from(range.start)[..range.len() * self.dim]
    }
}

/// Writes `count` positions of `dim` elements to the first columns of `dim` rows of [`PANEL`] elements.
fn turn<T: Float>(context: &Context, from: Rows<'_, T>, [count, dim]: [usize; 2], panel: &mut [T]) {
    if let (Some(data), Some(panel)) = (T::singles(from.data), T::singles_mut(panel)) {
        return context.dispatch(Turn { data, width: from.width, size: [count, dim], panel });
    }
    for position in 0..count {
        for (row, value) in panel.chunks_exact_mut(PANEL).zip(from.row(position, dim)) {
            row[position] = *value;
        }
    }
}

/// [`turn`] of f32 numbers.
struct Turn<'a> {
    data: &'a [f32],
    width: usize,
    size: [usize; 2],
    panel: &'a mut [f32],
}

impl WithSimd for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        transpose(simd, self.data, self.width, self.size, self.panel, PANEL);
    }
}

/// Some positions of a head, turned: panels of [`PANEL`] positions, each [dim, PANEL]. Positions that the last one lacks are 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Panels<'a, T> {
    data: &'a [T],
    first: usize,
    dim: usize,
}

impl<'a, T: Float> Panels<'a, T> {
    /// Copies the positions of a range, which begins at a panel.
    pub(super) fn copy<E: AttentionElement<Float = T>>(
        context: &Context,
        of: Rows<'_, E>,
        range: Range<usize>,
        dim: usize,
        to: &'a mut [T],
    ) -> Self {
        let first = range.start;
        context.with_scratch(of.room(PANEL, dim), |room: &mut [T]| {
            let starts = range.clone().step_by(PANEL);
            for (start, panel) in starts.zip(to.chunks_exact_mut(PANEL * dim)) {
                let size = [PANEL.min(range.end - start), dim];
                if size[0] < PANEL {
                    panel.fill(T::ZERO);
                }
                turn(context, of.from(start).floats(context, size, room), size, panel);
            }
        });
        Self { data: to, first, dim }
    }

    /// Elements of a position.
    pub(super) fn dim(&self) -> usize {
        self.dim
    }

    /// Returns the panel that begins at a position.
    pub(super) fn at(&self, position: usize) -> &'a [T] {
        &self.data[(position - self.first) * self.dim..][..PANEL * self.dim]
    }
}

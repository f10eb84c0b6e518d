//! Queries, keys, values and their gradients where a projection has or wants them.

use crate::context::Context;
use crate::error::{Result, check_len};

use super::AttentionShape;
use super::element::AttentionElement;

/// Queries, keys and values.
#[derive(Debug, Clone, Copy)]
pub enum AttentionOperands<'a, T> {
    /// The output of one projection, [samples, length, (heads + 2·key_heads)·dim]: queries, then keys, then values of a
    /// position.
    Joined(&'a [T]),
    /// The outputs of three projections.
    Apart {
        /// [samples, length, heads, dim].
        q: &'a [T],
        /// [samples, keys, key_heads, dim].
        k: &'a [T],
        /// [samples, keys, key_heads, dim].
        v: &'a [T],
    },
}

impl<'a, T: AttentionElement> AttentionOperands<'a, T> {
    pub(super) fn check(&self, kernel: &'static str, shape: &AttentionShape) -> Result<()> {
        match self {
            Self::Joined(all) => {
                check_len(kernel, "keys", shape.length, shape.keys)?;
                check_len(kernel, "q, k and v", shape.queries_len() + 2 * shape.keys_len(), all.len())
            }
            Self::Apart { q, k, v } => {
                check_len(kernel, "q", shape.queries_len(), q.len())?;
                check_len(kernel, "k", shape.keys_len(), k.len())?;
                check_len(kernel, "v", shape.keys_len(), v.len())
            }
        }
    }

    /// Returns the queries of a head.
    pub(super) fn q(&self, shape: &AttentionShape, sample: usize, head: usize) -> Rows<'a, T> {
        let (data, width) = match *self {
            Self::Joined(all) => (all, joined_width(shape)),
            Self::Apart { q, .. } => (q, shape.heads * shape.dim),
        };
        Rows { data: &data[(sample * shape.length * width) + head * shape.dim..], width }
    }

    /// Returns the keys of a head of keys.
    pub(super) fn k(&self, shape: &AttentionShape, sample: usize, head: usize) -> Rows<'a, T> {
        let (data, width, offset) = match *self {
            Self::Joined(all) => (all, joined_width(shape), shape.heads),
            Self::Apart { k, .. } => (k, shape.key_heads * shape.dim, 0),
        };
        Rows { data: &data[sample * shape.keys * width + (offset + head) * shape.dim..], width }
    }

    /// Returns the values of a head of keys.
    pub(super) fn v(&self, shape: &AttentionShape, sample: usize, head: usize) -> Rows<'a, T> {
        let (data, width, offset) = match *self {
            Self::Joined(all) => (all, joined_width(shape), shape.heads + shape.key_heads),
            Self::Apart { v, .. } => (v, shape.key_heads * shape.dim, 0),
        };
        Rows { data: &data[sample * shape.keys * width + (offset + head) * shape.dim..], width }
    }
}

/// Elements of a position in [`AttentionOperands::Joined`].
fn joined_width(shape: &AttentionShape) -> usize {
    (shape.heads + 2 * shape.key_heads) * shape.dim
}

/// The positions of a head: the first is at the start of `data`, the others are `width` apart.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a, T> {
    pub(super) data: &'a [T],
    pub(super) width: usize,
}

impl<'a, T> Rows<'a, T> {
    /// Returns a position.
    pub(super) fn row(&self, index: usize, dim: usize) -> &'a [T] {
        &self.data[index * self.width..][..dim]
    }

    /// Returns the positions from one on.
    pub(super) fn from(self, index: usize) -> Self {
        Self { data: &self.data[index * self.width..], width: self.width }
    }
}

impl<'a, T: AttentionElement> Rows<'a, T> {
    /// Elements of the room that [`Rows::floats`] needs for `count` positions.
    pub(super) fn room(&self, count: usize, dim: usize) -> usize {
        if T::floats(self.data).is_some() { 0 } else { count * dim }
    }

    /// Returns the first `count` positions in the type of the arithmetic: where they lie, or widened in `room`.
    pub(super) fn floats<'r>(
        self,
        context: &Context,
        [count, dim]: [usize; 2],
        room: &'r mut [T::Float],
    ) -> Rows<'r, T::Float>
    where
        'a: 'r,
    {
        if let Some(data) = T::floats(self.data) {
            return Rows { data, width: self.width };
        }
        let from = (0..count).map(|index| self.row(index, dim));
        T::read(context.arch(), from.zip(room.chunks_exact_mut(dim)));
        Rows { data: room, width: dim }
    }
}

/// The gradients of attention. All elements are overwritten.
#[derive(Debug)]
pub enum AttentionGrads<'a, T> {
    /// The gradient of [`AttentionOperands::Joined`].
    Joined(&'a mut [T]),
    /// The wanted gradients of [`AttentionOperands::Apart`].
    Apart {
        /// The gradient of q.
        q: Option<&'a mut [T]>,
        /// The gradient of k.
        k: Option<&'a mut [T]>,
        /// The gradient of v.
        v: Option<&'a mut [T]>,
    },
}

impl<'a, T: AttentionElement> AttentionGrads<'a, T> {
    pub(super) fn check(&self, kernel: &'static str, shape: &AttentionShape) -> Result<()> {
        match self {
            Self::Joined(all) => {
                check_len(kernel, "gradient", shape.queries_len() + 2 * shape.keys_len(), all.len())
            }
            Self::Apart { q, k, v } => {
                let (queries, keys) = (shape.queries_len(), shape.keys_len());
                for (name, grad, len) in [("dq", q, queries), ("dk", k, keys), ("dv", v, keys)] {
                    check_len(kernel, name, len, grad.as_ref().map_or(len, |grad| grad.len()))?;
                }
                Ok(())
            }
        }
    }

    pub(super) fn fill_with_zeros(self) {
        let all = match self {
            Self::Joined(all) => [Some(all), None, None],
            Self::Apart { q, k, v } => [q, k, v],
        };
        all.into_iter().flatten().for_each(|grad| grad.fill(T::default()));
    }

    /// Returns true for each of q, k and v whose gradient is wanted.
    pub(super) fn wanted(&self) -> [bool; 3] {
        match self {
            Self::Joined(_) => [true; 3],
            Self::Apart { q, k, v } => [q.is_some(), k.is_some(), v.is_some()],
        }
    }

    /// Returns the rows of each head of keys of each sample, with those of the heads of queries that it serves.
    pub(super) fn into_heads(self, shape: &AttentionShape) -> Vec<HeadGrads<'a, T>> {
        let (dim, heads, key_heads) = (shape.dim, shape.heads, shape.key_heads);
        let mut all: Vec<HeadGrads<'a, T>> = Vec::new();
        all.resize_with(shape.samples * key_heads, HeadGrads::default);
        match self {
            Self::Joined(values) => {
                for (position, row) in values.chunks_exact_mut(joined_width(shape)).enumerate() {
                    let first = position / shape.length * key_heads;
                    for (index, part) in row.chunks_exact_mut(dim).enumerate() {
                        match index.checked_sub(heads) {
                            None => all[first + index / shape.group()].q.push(part),
                            Some(index) if index < key_heads => all[first + index].k.push(part),
                            Some(index) => all[first + index - key_heads].v.push(part),
                        }
                    }
                }
            }
            Self::Apart { q, k, v } => {
                for (index, part) in q.into_iter().flat_map(|q| q.chunks_exact_mut(dim)).enumerate() {
                    let (position, head) = (index / heads, index % heads);
                    all[position / shape.length * key_heads + head / shape.group()].q.push(part);
                }
                let head_of = |index: usize| index / key_heads / shape.keys * key_heads + index % key_heads;
                for (index, part) in k.into_iter().flat_map(|k| k.chunks_exact_mut(dim)).enumerate() {
                    all[head_of(index)].k.push(part);
                }
                for (index, part) in v.into_iter().flat_map(|v| v.chunks_exact_mut(dim)).enumerate() {
                    all[head_of(index)].v.push(part);
                }
            }
        }
        all
    }
}

/// The gradients of a head of keys and of the heads of queries that it serves, a slice for each position.
#[derive(Debug)]
pub(super) struct HeadGrads<'a, T> {
    /// The heads of each query, one after the other; empty if not wanted, as the others.
    pub(super) q: Vec<&'a mut [T]>,
    pub(super) k: Vec<&'a mut [T]>,
    pub(super) v: Vec<&'a mut [T]>,
}

impl<T> Default for HeadGrads<'_, T> {
    fn default() -> Self {
        Self { q: Vec::new(), k: Vec::new(), v: Vec::new() }
    }
}

//! The backward pass.

use std::ops::Range;

use crate::context::Context;
use crate::dropout::RowDropout;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::reduce::dot_slice;

use super::operands::{HeadGrads, Rows};
use super::tile::{KEYS, QUERIES, parts, plain, product, turned, within};
use super::{AttentionGrads, AttentionInputs};

/// Computes the gradients of [`attention_forward`](super::attention_forward) from its `out` and `log_sums`, and from `dy`,
/// the gradient of `out`.
///
/// # Errors
/// If a length does not match the shape.
pub fn attention_backward<T: Float>(
    context: &Context,
    inputs: AttentionInputs<'_, T>,
    [out, dy]: [&[T]; 2],
    log_sums: &[T],
    grads: AttentionGrads<'_, T>,
) -> Result<()> {
    const KERNEL: &str = "attention_backward";
    let shape = inputs.shape;
    inputs.check(KERNEL, log_sums)?;
    check_len(KERNEL, "out", shape.queries_len(), out.len())?;
    check_len(KERNEL, "dy", shape.queries_len(), dy.len())?;
    grads.check(KERNEL, &shape)?;
    if out.is_empty() || shape.keys_len() == 0 {
        grads.fill_with_zeros();
        return Ok(());
    }
    let wanted = grads.wanted();
    let heads: Vec<_> = grads.into_heads(&shape).into_iter().enumerate().collect();
    let [queries, keys] = [shape.group() * shape.length, shape.keys].map(|rows| rows * shape.dim);
    context.run_each(heads, |(index, grads)| {
        let head = Head {
            inputs: &inputs,
            out,
            dy,
            log_sums,
            sample: index / shape.key_heads,
            key_head: index % shape.key_heads,
            wanted,
        };
        context.with_scratch(queries + 2 * keys + 2 * QUERIES * KEYS, |scratch: &mut [T]| {
            let (sums, tiles) = scratch.split_at_mut(queries + 2 * keys);
            sums.fill(T::ZERO);
            let (q, others) = sums.split_at_mut(queries);
            let (k, v) = others.split_at_mut(keys);
            let (weights, slopes) = tiles.split_at_mut(QUERIES * KEYS);
            let mut sums = Sums { q, k, v, weights, slopes };
            for member in 0..shape.group() {
                head.add_member(context, member, &mut sums);
            }
            sums.store(grads, shape.group(), shape.dim);
        });
    });
    Ok(())
}

/// Sums of gradients of a head of keys and of the heads of queries that it serves, and room for two tiles.
struct Sums<'a, T> {
    /// The gradients of queries, head by head.
    q: &'a mut [T],
    k: &'a mut [T],
    v: &'a mut [T],
    weights: &'a mut [T],
    slopes: &'a mut [T],
}

impl<T: Float> Sums<'_, T> {
    /// Writes the wanted gradients to their places.
    fn store(&self, grads: HeadGrads<'_, T>, group: usize, dim: usize) {
        let length = grads.q.len() / group;
        for (index, to) in grads.q.into_iter().enumerate() {
            let (query, member) = (index / group, index % group);
            to.copy_from_slice(&self.q[(member * length + query) * dim..][..dim]);
        }
        for (to, from) in grads.k.into_iter().zip(self.k.chunks_exact(dim)) {
            to.copy_from_slice(from);
        }
        for (to, from) in grads.v.into_iter().zip(self.v.chunks_exact(dim)) {
            to.copy_from_slice(from);
        }
    }
}

/// A head of keys of a sample.
struct Head<'a, T> {
    inputs: &'a AttentionInputs<'a, T>,
    out: &'a [T],
    dy: &'a [T],
    log_sums: &'a [T],
    sample: usize,
    key_head: usize,
    /// True for each of q, k and v whose gradient is wanted.
    wanted: [bool; 3],
}

/// A head of queries.
struct Member<'a, T> {
    index: usize,
    dropout: Option<RowDropout>,
    q: Rows<'a, T>,
    dy: Rows<'a, T>,
    log_sums: &'a [T],
    /// The product of each query's output and its gradient.
    deltas: Vec<T>,
    seen: Vec<Range<usize>>,
}

impl<'a, T: Float> Head<'a, T> {
    /// Returns the rows of a head of queries in an array like the output.
    fn rows(&self, data: &'a [T], head: usize) -> Rows<'a, T> {
        let shape = &self.inputs.shape;
        let first = (self.sample * shape.length * shape.heads + head) * shape.dim;
        Rows { data: &data[first..], width: shape.heads * shape.dim }
    }

    /// Adds the gradients by one of the heads of queries.
    fn add_member(&self, context: &Context, index: usize, sums: &mut Sums<'_, T>) {
        let shape = &self.inputs.shape;
        let head = self.key_head * shape.group() + index;
        let (out, dy) = (self.rows(self.out, head), self.rows(self.dy, head));
        let delta = |query| T::from_f64(dot_slice(out.row(query, shape.dim), dy.row(query, shape.dim)));
        let member = Member {
            index,
            dropout: self.inputs.dropout(self.sample, head),
            q: self.inputs.operands.q(shape, self.sample, head),
            dy,
            log_sums: &self.log_sums[(self.sample * shape.heads + head) * shape.length..][..shape.length],
            deltas: (0..shape.length).map(delta).collect(),
            seen: (0..shape.length).map(|query| self.inputs.mask.range(shape, self.sample, query)).collect(),
        };
        for queries in parts(0..shape.length, QUERIES) {
            let union = self.inputs.mask.union(shape, self.sample, queries.clone());
            for keys in parts(union, KEYS) {
                self.add_tile(context, &member, queries.clone(), keys, sums);
            }
        }
    }

    /// Adds the gradients by a tile.
    fn add_tile(
        &self,
        context: &Context,
        member: &Member<'_, T>,
        queries: Range<usize>,
        keys: Range<usize>,
        sums: &mut Sums<'_, T>,
    ) {
        let shape = &self.inputs.shape;
        let (count, span, dim) = (queries.len(), keys.len(), shape.dim);
        let k = self.inputs.operands.k(shape, self.sample, self.key_head).from(keys.start);
        let v = self.inputs.operands.v(shape, self.sample, self.key_head).from(keys.start);
        let (q, dy) = (member.q.from(queries.start), member.dy.from(queries.start));
        let (weights, slopes) = (&mut sums.weights[..count * span], &mut sums.slopes[..count * span]);
        let [wants_q, wants_k, wants_v] = self.wanted;
        product([count, span, dim], q, k.transposed(), weights, false);
        if wants_q || wants_k {
            product([count, span, dim], dy, v.transposed(), slopes, false);
        }
        context.simd(
            #[inline(always)]
            || {
                for (row, query) in queries.clone().enumerate() {
                    let (weights, slopes) =
                        (&mut weights[row * span..][..span], &mut slopes[row * span..][..span]);
                    weigh_again(
                        weights,
                        within(&member.seen[query], &keys),
                        shape.factor(),
                        member.log_sums[query],
                    );
                    self.slope(member, query, keys.start, weights, slopes);
                }
            },
        );
        if wants_v {
            let to = &mut sums.v[keys.start * dim..][..span * dim];
            product([span, dim, count], turned(weights, span), dy, to, true);
        }
        if wants_q {
            let first = member.index * shape.length + queries.start;
            let to = &mut sums.q[first * dim..][..count * dim];
            product([count, dim, span], plain(slopes, span), k, to, true);
        }
        if wants_k {
            let to = &mut sums.k[keys.start * dim..][..span * dim];
            product([span, dim, count], turned(slopes, span), q, to, true);
        }
    }

    /// Turns the gradients of a query's weights, before their dropout, into the gradients of its products, and applies the
    /// dropout to the weights. Gradients are zero for hidden keys, as the weights are.
    #[inline(always)]
    fn slope(
        &self,
        member: &Member<'_, T>,
        query: usize,
        first_key: usize,
        weights: &mut [T],
        slopes: &mut [T],
    ) {
        let shape = &self.inputs.shape;
        let (delta, factor) = (member.deltas[query], shape.factor::<T>());
        let Some(dropout) = member.dropout.map(|dropout| dropout.row(query)) else {
            for (slope, weight) in slopes.iter_mut().zip(weights) {
                *slope = *weight * (*slope - delta) * factor;
            }
            return;
        };
        dropout.apply(slopes, first_key);
        for (slope, weight) in slopes.iter_mut().zip(&*weights) {
            *slope = *weight * (*slope - delta) * factor;
        }
        dropout.apply(weights, first_key);
    }
}

/// Recomputes a query's weights from its products with the keys of a tile and its ln Σ e^score.
#[inline(always)]
fn weigh_again<T: Float>(scores: &mut [T], seen: Range<usize>, factor: T, log_sum: T) {
    scores[..seen.start].fill(T::ZERO);
    scores[seen.end..].fill(T::ZERO);
    for score in &mut scores[seen] {
        *score = (*score * factor - log_sum).exp();
    }
}

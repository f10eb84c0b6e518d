//! The backward pass.

use std::ops::Range;

use crate::context::Context;
use crate::dropout::RowDropout;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::reduce::dot_slice;

use super::element::AttentionElement;
use super::operands::{HeadGrads, Rows};
use super::packed::{PANEL, Packed, Panels, take};
use super::tile::{KEYS, QUERIES, add_turned, from_panel, parts, scores, weighted, within};
use super::{AttentionGrads, AttentionInputs};

/// Computes the gradients of [`attention_forward`](super::attention_forward) from its `out` and `log_sums`, and from `dy`,
/// the gradient of `out`.
///
/// # Errors
/// If a length does not match the shape.
pub fn attention_backward<E: AttentionElement>(
    context: &Context,
    inputs: AttentionInputs<'_, E>,
    [out, dy]: [&[E]; 2],
    log_sums: &[E::Float],
    grads: AttentionGrads<'_, E>,
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
    let (queries, keys) = (shape.length * shape.dim, shape.keys.next_multiple_of(PANEL) * shape.dim);
    let room = shape.group() * queries + 2 * queries + 5 * keys + 2 * QUERIES * KEYS;
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
        context.with_scratch(room, |mut rest: &mut [E::Float]| {
            let mut sums = Sums {
                q: take(&mut rest, shape.group() * queries),
                k: take(&mut rest, keys),
                v: take(&mut rest, keys),
            };
            [&mut sums.q, &mut sums.k, &mut sums.v].into_iter().for_each(|sum| sum.fill(Float::ZERO));
            let (k, v) = head.keys_and_values();
            let all = 0..shape.keys;
            let copied = Copied {
                k: Packed::copy(context, k, all.clone(), shape.dim, take(&mut rest, keys)),
                turned_k: Panels::copy(context, k, all.clone(), shape.dim, take(&mut rest, keys)),
                turned_v: Panels::copy(context, v, all, shape.dim, take(&mut rest, keys)),
            };
            let (q, dy) = (take(&mut rest, queries), take(&mut rest, queries));
            let mut tiles = Tiles { weights: take(&mut rest, QUERIES * KEYS), slopes: rest };
            for index in 0..shape.group() {
                let member = head.member(context, index, [&mut *q, &mut *dy]);
                head.add_member(context, &member, &copied, &mut tiles, &mut sums);
            }
            sums.store(context, grads, shape.group(), shape.dim);
        });
    });
    Ok(())
}

/// Sums of gradients of a head of keys and of the heads of queries that it serves.
struct Sums<'a, T> {
    /// The gradients of queries, head by head.
    q: &'a mut [T],
    k: &'a mut [T],
    v: &'a mut [T],
}

/// The keys and values of a head, as products read them.
struct Copied<'a, T> {
    k: Packed<'a, T>,
    turned_k: Panels<'a, T>,
    turned_v: Panels<'a, T>,
}

/// Room for the weights of a tile and for their gradients.
struct Tiles<'a, T> {
    weights: &'a mut [T],
    slopes: &'a mut [T],
}

impl<T: Float> Sums<'_, T> {
    /// Writes the wanted gradients to their places.
    fn store<E: AttentionElement<Float = T>>(
        &self,
        context: &Context,
        grads: HeadGrads<'_, E>,
        group: usize,
        dim: usize,
    ) {
        let arch = context.arch();
        let length = grads.q.len() / group;
        let of_query = |index: usize| {
            let (query, member) = (index / group, index % group);
            &self.q[(member * length + query) * dim..][..dim]
        };
        E::write(arch, grads.q.into_iter().enumerate().map(|(index, to)| (of_query(index), to)));
        E::write(arch, self.k.chunks_exact(dim).zip(grads.k));
        E::write(arch, self.v.chunks_exact(dim).zip(grads.v));
    }
}

/// A head of keys of a sample.
struct Head<'a, E: AttentionElement> {
    inputs: &'a AttentionInputs<'a, E>,
    out: &'a [E],
    dy: &'a [E],
    log_sums: &'a [E::Float],
    sample: usize,
    key_head: usize,
    /// True for each of q, k and v whose gradient is wanted.
    wanted: [bool; 3],
}

/// A head of queries.
struct Member<'a, T> {
    index: usize,
    dropout: Option<RowDropout>,
    q: Packed<'a, T>,
    dy: Packed<'a, T>,
    log_sums: &'a [T],
    /// The product of each query's output and its gradient.
    deltas: Vec<T>,
    seen: Vec<Range<usize>>,
}

impl<'a, E: AttentionElement> Head<'a, E> {
    /// Returns the rows of a head of queries in an array like the output.
    fn rows(&self, data: &'a [E], head: usize) -> Rows<'a, E> {
        let shape = &self.inputs.shape;
        let first = (self.sample * shape.length * shape.heads + head) * shape.dim;
        Rows { data: &data[first..], width: shape.heads * shape.dim }
    }

    /// Returns the keys and the values.
    fn keys_and_values(&self) -> (Rows<'a, E>, Rows<'a, E>) {
        let (shape, operands) = (&self.inputs.shape, &self.inputs.operands);
        (operands.k(shape, self.sample, self.key_head), operands.v(shape, self.sample, self.key_head))
    }

    /// Returns one of the heads of queries, with copies of its queries and of the gradients of its output.
    fn member<'m>(
        &self,
        context: &Context,
        index: usize,
        [q, dy]: [&'m mut [E::Float]; 2],
    ) -> Member<'m, E::Float>
    where
        'a: 'm,
    {
        let shape = &self.inputs.shape;
        let head = self.key_head * shape.group() + index;
        let all = 0..shape.length;
        let of = [self.inputs.operands.q(shape, self.sample, head), self.rows(self.dy, head)];
        let dy = Packed::copy(context, of[1], all.clone(), shape.dim, dy);
        let mut deltas = vec![E::Float::ZERO; shape.length];
        let (out, size) = (self.rows(self.out, head), [shape.length, shape.dim]);
        context.with_scratch(out.room(shape.length, shape.dim), |room: &mut [E::Float]| {
            let out = out.floats(context, size, room);
            context.simd(
                #[inline(always)]
                || {
                    let rows = dy.range(all.clone()).chunks_exact(shape.dim);
                    for (query, (delta, dy)) in deltas.iter_mut().zip(rows).enumerate() {
                        *delta = Float::from_f64(dot_slice(out.row(query, shape.dim), dy));
                    }
                },
            );
        });
        Member {
            index,
            dropout: self.inputs.dropout(self.sample, head),
            q: Packed::copy(context, of[0], all.clone(), shape.dim, q),
            dy,
            log_sums: &self.log_sums[(self.sample * shape.heads + head) * shape.length..][..shape.length],
            deltas,
            seen: all.map(|query| self.inputs.mask.range(shape, self.sample, query)).collect(),
        }
    }

    /// Adds the gradients by one of the heads of queries.
    fn add_member(
        &self,
        context: &Context,
        member: &Member<'_, E::Float>,
        copied: &Copied<'_, E::Float>,
        tiles: &mut Tiles<'_, E::Float>,
        sums: &mut Sums<'_, E::Float>,
    ) {
        let shape = &self.inputs.shape;
        for queries in parts(0..shape.length, QUERIES) {
            let union = from_panel(self.inputs.mask.union(shape, self.sample, queries.clone()));
            for keys in parts(union, KEYS) {
                self.weigh_tile(context, member, [&queries, &keys], copied, tiles);
                self.add_tile(context, member, [&queries, &keys], copied, tiles, sums);
            }
        }
    }

    /// Computes the weights of a tile again, and the gradients of its products of queries and keys.
    fn weigh_tile(
        &self,
        context: &Context,
        member: &Member<'_, E::Float>,
        [queries, keys]: [&Range<usize>; 2],
        copied: &Copied<'_, E::Float>,
        tiles: &mut Tiles<'_, E::Float>,
    ) {
        let factor = self.inputs.shape.factor();
        scores(context, member.q.range(queries.clone()), &copied.turned_k, keys, tiles.weights);
        if self.wanted[0] || self.wanted[1] {
            scores(context, member.dy.range(queries.clone()), &copied.turned_v, keys, tiles.slopes);
        }
        context.simd(
            #[inline(always)]
            || {
                let rows = tiles.weights.chunks_exact_mut(KEYS).zip(tiles.slopes.chunks_exact_mut(KEYS));
                for (query, (weights, slopes)) in queries.clone().zip(rows) {
                    let (weights, slopes) = (&mut weights[..keys.len()], &mut slopes[..keys.len()]);
                    let seen = within(&member.seen[query], keys);
                    weigh_again(weights, seen, factor, member.log_sums[query]);
                    self.slope(member, query, keys.start, weights, slopes);
                }
            },
        );
    }

    /// Adds the gradients by a tile.
    fn add_tile(
        &self,
        context: &Context,
        member: &Member<'_, E::Float>,
        [queries, keys]: [&Range<usize>; 2],
        copied: &Copied<'_, E::Float>,
        tiles: &Tiles<'_, E::Float>,
        sums: &mut Sums<'_, E::Float>,
    ) {
        let dim = self.inputs.shape.dim;
        let of_keys = keys.start * dim..keys.end * dim;
        let [wants_q, wants_k, wants_v] = self.wanted;
        if wants_v {
            let dy = member.dy.range(queries.clone());
            add_turned(context, tiles.weights, keys.len(), dy, dim, &mut sums.v[of_keys.clone()]);
        }
        if wants_q {
            let first = (member.index * self.inputs.shape.length + queries.start) * dim;
            let to = &mut sums.q[first..][..queries.len() * dim];
            weighted(context, tiles.slopes, queries.len(), keys, &copied.k, true, to);
        }
        if wants_k {
            let q = member.q.range(queries.clone());
            add_turned(context, tiles.slopes, keys.len(), q, dim, &mut sums.k[of_keys]);
        }
    }

    /// Turns the gradients of a query's weights, before their dropout, into the gradients of its products, and applies the
    /// dropout to the weights. Gradients are zero for hidden keys, as the weights are.
    #[inline(always)]
    fn slope(
        &self,
        member: &Member<'_, E::Float>,
        query: usize,
        first_key: usize,
        weights: &mut [E::Float],
        slopes: &mut [E::Float],
    ) {
        let shape = &self.inputs.shape;
        let (delta, factor) = (member.deltas[query], shape.factor::<E::Float>());
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
        *score = (*score * factor - log_sum).exp_up_to_1();
    }
}

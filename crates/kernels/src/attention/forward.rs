//! The forward pass.

use std::ops::Range;

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::reduce::sum_slice;
use crate::softmax::row_max;

use super::AttentionInputs;
use super::tile::{KEYS, QUERIES, parts, plain, product, within};

/// Computes out = softmax(q·kᵀ/√dim)·v of every head, over the keys that each query sees. A query that sees none gets 0.
///
/// `out` is [samples, length, heads, dim]. `log_sums` [samples, heads, length] gets ln Σ e^score of every query, for
/// backward.
///
/// # Errors
/// If a length does not match the shape.
pub fn attention_forward<T: Float>(
    context: &Context,
    inputs: AttentionInputs<'_, T>,
    out: &mut [T],
    log_sums: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "attention_forward";
    let shape = inputs.shape;
    inputs.check(KERNEL, log_sums)?;
    check_len(KERNEL, "out", shape.queries_len(), out.len())?;
    if out.is_empty() || shape.keys == 0 {
        out.fill(T::ZERO);
        log_sums.fill(T::from_f64(f64::NEG_INFINITY));
        return Ok(());
    }
    let blocks = shape.length.div_ceil(QUERIES);
    // One task for each block of queries of a head, so that threads share the work of a single head too.
    let mut tasks: Vec<Block<'_, T>> = Vec::with_capacity(shape.samples * shape.heads * blocks);
    for (index, log_sums) in log_sums.chunks_exact_mut(shape.length).enumerate() {
        let (sample, head) = (index / shape.heads, index % shape.heads);
        let blocks = log_sums.chunks_mut(QUERIES).enumerate();
        tasks.extend(blocks.map(|(block, log_sums)| Block {
            sample,
            head,
            first: block * QUERIES,
            out: Vec::with_capacity(log_sums.len()),
            log_sums,
        }));
    }
    for (index, row) in out.chunks_exact_mut(shape.dim).enumerate() {
        let (position, head) = (index / shape.heads, index % shape.heads);
        let (sample, query) = (position / shape.length, position % shape.length);
        tasks[(sample * shape.heads + head) * blocks + query / QUERIES].out.push(row);
    }
    context.run_each(tasks, |task| {
        context.with_scratch(QUERIES * (KEYS + shape.dim), |scratch: &mut [T]| {
            let (scores, sums) = scratch.split_at_mut(QUERIES * KEYS);
            task.run(context, &inputs, scores, sums);
        });
    });
    Ok(())
}

/// A block of queries of a head, and its results.
struct Block<'a, T> {
    sample: usize,
    head: usize,
    first: usize,
    out: Vec<&'a mut [T]>,
    log_sums: &'a mut [T],
}

/// The softmax of a query over the tiles so far.
#[derive(Clone)]
struct Row<T> {
    seen: Range<usize>,
    largest: T,
    /// Σ e^(score − largest).
    sum: f64,
}

impl<T: Float> Block<'_, T> {
    fn run(self, context: &Context, inputs: &AttentionInputs<'_, T>, scores: &mut [T], sums: &mut [T]) {
        let Self { sample, head, first, mut out, log_sums } = self;
        let shape = &inputs.shape;
        let (count, dim) = (log_sums.len(), shape.dim);
        let sums = &mut sums[..count * dim];
        let queries = first..first + count;
        let mut rows: Vec<Row<T>> = queries
            .clone()
            .map(|query| Row { seen: inputs.mask.range(shape, sample, query), largest: T::LOWEST, sum: 0.0 })
            .collect();
        let q = inputs.operands.q(shape, sample, head).from(first);
        let key_head = head / shape.group();
        let (k, v) = (inputs.operands.k(shape, sample, key_head), inputs.operands.v(shape, sample, key_head));
        let union = inputs.mask.union(shape, sample, queries);
        let dropout = inputs.dropout(sample, head);
        for tile in parts(union.clone(), KEYS) {
            let span = tile.len();
            let scores = &mut scores[..count * span];
            let begun = tile.start > union.start;
            product([count, span, dim], q, k.from(tile.start).transposed(), scores, false);
            context.simd(
                #[inline(always)]
                || {
                    let each = scores.chunks_exact_mut(span).zip(&mut rows).zip(sums.chunks_exact_mut(dim));
                    for (query, ((scores, row), sums)) in each.enumerate() {
                        let shrink = row.weigh(scores, &tile, shape.factor());
                        if begun && shrink < T::ONE {
                            sums.iter_mut().for_each(|sum| *sum = *sum * shrink);
                        }
                        if let Some(dropout) = dropout {
                            dropout.row(first + query).apply(scores, tile.start);
                        }
                    }
                },
            );
            product([count, dim, span], plain(scores, span), v.from(tile.start), sums, begun);
        }
        for (index, (row, out)) in rows.iter().zip(&mut out).enumerate() {
            if row.sum == 0.0 {
                out.fill(T::ZERO);
                log_sums[index] = T::from_f64(f64::NEG_INFINITY);
                continue;
            }
            let scale = T::from_f64(1.0 / row.sum);
            let sums = &sums[index * dim..][..dim];
            out.iter_mut().zip(sums).for_each(|(out, sum)| *out = *sum * scale);
            log_sums[index] = T::from_f64(row.largest.to_f64() + row.sum.ln());
        }
    }
}

impl<T: Float> Row<T> {
    /// Turns products with the keys of a tile into e^(score − largest), 0 for hidden keys. Returns the factor of earlier
    /// sums.
    #[inline(always)]
    fn weigh(&mut self, scores: &mut [T], tile: &Range<usize>, factor: T) -> T {
        let seen = within(&self.seen, tile);
        scores[..seen.start].fill(T::ZERO);
        scores[seen.end..].fill(T::ZERO);
        let scores = &mut scores[seen];
        if scores.is_empty() {
            return T::ONE;
        }
        let largest = (row_max(scores) * factor).max(self.largest);
        for score in scores.iter_mut() {
            *score = (*score * factor - largest).exp();
        }
        let shrink = (self.largest - largest).exp();
        self.sum = self.sum * shrink.to_f64() + sum_slice(scores);
        self.largest = largest;
        shrink
    }
}

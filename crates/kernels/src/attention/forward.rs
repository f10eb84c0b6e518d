//! The forward pass.

use std::ops::Range;

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::reduce::sum_slice;
use crate::softmax::row_max;

use super::AttentionInputs;
use super::few::{Positions, row_scores, weighted_rows};
use super::operands::Rows;
use super::packed::{PANEL, Packed, Panels, take};
use super::tile::{KEYS, QUERIES, from_panel, parts, scores, weighted, within};

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
    // As many queries of a head for a task as leave some tasks to each thread: the keys of a task are copied once.
    let blocks = shape.length.div_ceil(QUERIES);
    let all = shape.samples * shape.heads * blocks;
    let per_task = QUERIES * (all / (TASKS * context.parts())).clamp(1, blocks);
    let tasks_of_head = shape.length.div_ceil(per_task);
    let mut tasks: Vec<Queries<'_, T>> = Vec::with_capacity(shape.samples * shape.heads * tasks_of_head);
    for (index, log_sums) in log_sums.chunks_exact_mut(shape.length).enumerate() {
        let (sample, head) = (index / shape.heads, index % shape.heads);
        let parts = log_sums.chunks_mut(per_task).enumerate();
        tasks.extend(parts.map(|(part, log_sums)| Queries {
            sample,
            head,
            first: part * per_task,
            out: Vec::with_capacity(log_sums.len()),
            log_sums,
        }));
    }
    for (index, row) in out.chunks_exact_mut(shape.dim).enumerate() {
        let (position, head) = (index / shape.heads, index % shape.heads);
        let (sample, query) = (position / shape.length, position % shape.length);
        tasks[(sample * shape.heads + head) * tasks_of_head + query / per_task].out.push(row);
    }
    context.run_each(tasks, |task| task.run(context, &inputs));
    Ok(())
}

/// Tasks of a thread, if there are as many blocks of queries.
const TASKS: usize = 8;

/// Some queries of a head, and their results.
struct Queries<'a, T> {
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

/// Queries of a sample for which keys and values are not worth a copy, as when a text is written token by token.
const FEW: usize = 8;

/// Keys and values of a head.
enum KeysAndValues<'a, T> {
    Copied { keys: Panels<'a, T>, values: Packed<'a, T> },
    InPlace { keys: Rows<'a, T>, values: Rows<'a, T> },
}

/// Keys and values of a head, and room for a block of queries.
struct Room<'a, T> {
    of: KeysAndValues<'a, T>,
    queries: &'a mut [T],
    scores: &'a mut [T],
    sums: &'a mut [T],
}

impl<T: Float> Queries<'_, T> {
    fn run(mut self, context: &Context, inputs: &AttentionInputs<'_, T>) {
        let (shape, sample) = (&inputs.shape, self.sample);
        let dim = shape.dim;
        let queries = self.first..self.first + self.log_sums.len();
        let keys = from_panel(inputs.mask.union(shape, sample, queries.clone()));
        let are_few = shape.length < FEW;
        let copied = if are_few { 0 } else { keys.len().next_multiple_of(PANEL) * dim };
        let block = QUERIES * dim;
        context.with_scratch(2 * copied + 2 * block + QUERIES * KEYS, |mut rest: &mut [T]| {
            let key_head = self.head / shape.group();
            let (k, v) =
                (inputs.operands.k(shape, sample, key_head), inputs.operands.v(shape, sample, key_head));
            let of = match are_few {
                true => KeysAndValues::InPlace { keys: k, values: v },
                false => KeysAndValues::Copied {
                    keys: Panels::copy(context, k, keys.clone(), dim, take(&mut rest, copied)),
                    values: Packed::copy(v, keys, dim, take(&mut rest, copied)),
                },
            };
            let mut room =
                Room { of, queries: take(&mut rest, block), sums: take(&mut rest, block), scores: rest };
            for block in parts(queries, QUERIES) {
                self.run_block(context, inputs, block, &mut room);
            }
        });
    }

    /// Computes the output of a block of queries.
    fn run_block(
        &mut self,
        context: &Context,
        inputs: &AttentionInputs<'_, T>,
        queries: Range<usize>,
        room: &mut Room<'_, T>,
    ) {
        let (shape, sample) = (&inputs.shape, self.sample);
        let (count, dim) = (queries.len(), shape.dim);
        let q = inputs.operands.q(shape, sample, self.head);
        let q = Packed::copy(q, queries.clone(), dim, room.queries).range(queries.clone());
        let sums = &mut room.sums[..count * dim];
        let mut rows: Vec<Row<T>> = queries
            .clone()
            .map(|query| Row { seen: inputs.mask.range(shape, sample, query), largest: T::LOWEST, sum: 0.0 })
            .collect();
        let union = from_panel(inputs.mask.union(shape, sample, queries.clone()));
        let dropout = inputs.dropout(sample, self.head);
        for tile in parts(union.clone(), KEYS) {
            let begun = tile.start > union.start;
            match &room.of {
                KeysAndValues::Copied { keys, .. } => scores(context, q, keys, &tile, room.scores),
                KeysAndValues::InPlace { keys, .. } => {
                    row_scores(context, q, Positions::new(*keys, &tile, dim), room.scores);
                }
            }
            let scores = &mut room.scores[..count * KEYS];
            context.simd(
                #[inline(always)]
                || {
                    let each = scores.chunks_exact_mut(KEYS).zip(&mut rows).zip(sums.chunks_exact_mut(dim));
                    for (query, ((scores, row), sums)) in queries.clone().zip(each) {
                        let scores = &mut scores[..tile.len()];
                        let shrink = row.weigh(scores, &tile, shape.factor());
                        if begun && shrink < T::ONE {
                            sums.iter_mut().for_each(|sum| *sum = *sum * shrink);
                        }
                        if let Some(dropout) = dropout {
                            dropout.row(query).apply(scores, tile.start);
                        }
                    }
                },
            );
            match &room.of {
                KeysAndValues::Copied { values, .. } => {
                    weighted(context, scores, count, &tile, values, begun, sums);
                }
                KeysAndValues::InPlace { values, .. } => {
                    weighted_rows(context, scores, Positions::new(*values, &tile, dim), begun, sums);
                }
            }
        }
        let first = queries.start - self.first;
        let results = self.out[first..].iter_mut().zip(&mut self.log_sums[first..]);
        for ((row, sums), (out, log_sum)) in rows.iter().zip(sums.chunks_exact(dim)).zip(results) {
            row.finish(sums, out, log_sum);
        }
    }
}

impl<T: Float> Row<T> {
    /// Writes the output of the query, and ln Σ e^score. A query that sees no key has 0 and −∞.
    fn finish(&self, sums: &[T], out: &mut [T], log_sum: &mut T) {
        if self.sum == 0.0 {
            out.fill(T::ZERO);
            *log_sum = T::from_f64(f64::NEG_INFINITY);
            return;
        }
        let scale = T::from_f64(1.0 / self.sum);
        out.iter_mut().zip(sums).for_each(|(out, sum)| *out = *sum * scale);
        *log_sum = T::from_f64(self.largest.to_f64() + self.sum.ln());
    }

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
            *score = (*score * factor - largest).exp_up_to_1();
        }
        let shrink = (self.largest - largest).exp_up_to_1();
        self.sum = self.sum * shrink.to_f64() + sum_slice(scores);
        self.largest = largest;
        shrink
    }
}

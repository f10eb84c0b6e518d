//! The forward pass.

use std::ops::Range;

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::reduce::sum_slice;
use crate::softmax::row_max;

use super::AttentionInputs;
use super::element::AttentionElement;
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
pub fn attention_forward<E: AttentionElement>(
    context: &Context,
    inputs: AttentionInputs<'_, E>,
    out: &mut [E],
    log_sums: &mut [E::Float],
) -> Result<()> {
    const KERNEL: &str = "attention_forward";
    let shape = inputs.shape;
    inputs.check(KERNEL, log_sums)?;
    check_len(KERNEL, "out", shape.queries_len(), out.len())?;
    if out.is_empty() || shape.keys == 0 {
        out.fill(E::default());
        log_sums.fill(Float::from_f64(f64::NEG_INFINITY));
        return Ok(());
    }
    // As many queries of a head for a task as leave some tasks to each thread: the keys of a task are copied once.
    let blocks = shape.length.div_ceil(QUERIES);
    let all = shape.samples * shape.heads * blocks;
    let per_task = QUERIES * (all / (TASKS * context.parts())).clamp(1, blocks);
    let tasks_of_head = shape.length.div_ceil(per_task);
    let mut tasks: Vec<Queries<'_, E>> = Vec::with_capacity(shape.samples * shape.heads * tasks_of_head);
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
struct Queries<'a, E: AttentionElement> {
    sample: usize,
    head: usize,
    first: usize,
    out: Vec<&'a mut [E]>,
    log_sums: &'a mut [E::Float],
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
enum KeysAndValues<'a, E: AttentionElement> {
    Copied { keys: Panels<'a, E::Float>, values: Packed<'a, E::Float> },
    InPlace { keys: Rows<'a, E>, values: Rows<'a, E> },
}

impl<E: AttentionElement> KeysAndValues<'_, E> {
    /// Multiplies queries, one after the other, with the keys of a tile.
    fn scores(
        &self,
        context: &Context,
        queries: &[E::Float],
        tile: &Range<usize>,
        dim: usize,
        to: &mut [E::Float],
    ) {
        match self {
            Self::Copied { keys, .. } => scores(context, queries, keys, tile, to),
            Self::InPlace { keys, .. } => {
                Positions::with(context, *keys, tile, dim, |keys| row_scores(context, queries, keys, to));
            }
        }
    }

    /// Multiplies rows of weights, [`KEYS`] apart, with the values of a tile. Sums begin at 0 unless `add`.
    fn weighted(
        &self,
        context: &Context,
        weights: &[E::Float],
        tile: &Range<usize>,
        add: bool,
        sums: &mut [E::Float],
    ) {
        let count = weights.len() / KEYS;
        match self {
            Self::Copied { values, .. } => weighted(context, weights, count, tile, values, add, sums),
            Self::InPlace { values, .. } => {
                Positions::with(context, *values, tile, sums.len() / count, |values| {
                    weighted_rows(context, weights, values, add, sums);
                });
            }
        }
    }
}

/// Keys and values of a head, and room for a block of queries.
struct Room<'a, E: AttentionElement> {
    of: KeysAndValues<'a, E>,
    queries: &'a mut [E::Float],
    scores: &'a mut [E::Float],
    sums: &'a mut [E::Float],
}

impl<E: AttentionElement> Queries<'_, E> {
    fn run(mut self, context: &Context, inputs: &AttentionInputs<'_, E>) {
        let (shape, sample) = (&inputs.shape, self.sample);
        let dim = shape.dim;
        let queries = self.first..self.first + self.log_sums.len();
        let keys = from_panel(inputs.mask.union(shape, sample, queries.clone()));
        let are_few = shape.length < FEW;
        let copied = if are_few { 0 } else { keys.len().next_multiple_of(PANEL) * dim };
        let block = QUERIES * dim;
        context.with_scratch(2 * copied + 2 * block + QUERIES * KEYS, |mut rest: &mut [E::Float]| {
            let key_head = self.head / shape.group();
            let (k, v) =
                (inputs.operands.k(shape, sample, key_head), inputs.operands.v(shape, sample, key_head));
            let of = match are_few {
                true => KeysAndValues::InPlace { keys: k, values: v },
                false => KeysAndValues::Copied {
                    keys: Panels::copy(context, k, keys.clone(), dim, take(&mut rest, copied)),
                    values: Packed::copy(context, v, keys, dim, take(&mut rest, copied)),
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
        inputs: &AttentionInputs<'_, E>,
        queries: Range<usize>,
        room: &mut Room<'_, E>,
    ) {
        let (shape, sample) = (&inputs.shape, self.sample);
        let (count, dim) = (queries.len(), shape.dim);
        let q = inputs.operands.q(shape, sample, self.head);
        let q = Packed::copy(context, q, queries.clone(), dim, room.queries).range(queries.clone());
        let sums = &mut room.sums[..count * dim];
        let mut rows: Vec<Row<E::Float>> = queries
            .clone()
            .map(|query| Row {
                seen: inputs.mask.range(shape, sample, query),
                largest: Float::LOWEST,
                sum: 0.0,
            })
            .collect();
        let union = from_panel(inputs.mask.union(shape, sample, queries.clone()));
        let dropout = inputs.dropout(sample, self.head);
        for tile in parts(union.clone(), KEYS) {
            let begun = tile.start > union.start;
            room.of.scores(context, q, &tile, dim, room.scores);
            let scores = &mut room.scores[..count * KEYS];
            context.simd(
                #[inline(always)]
                || {
                    let each = scores.chunks_exact_mut(KEYS).zip(&mut rows).zip(sums.chunks_exact_mut(dim));
                    for (query, ((scores, row), sums)) in queries.clone().zip(each) {
                        let scores = &mut scores[..tile.len()];
                        let shrink = row.weigh(scores, &tile, shape.factor());
                        if begun && shrink < E::Float::ONE {
                            sums.iter_mut().for_each(|sum| *sum = *sum * shrink);
                        }
                        if let Some(dropout) = dropout {
                            dropout.row(query).apply(scores, tile.start);
                        }
                    }
                },
            );
            room.of.weighted(context, scores, &tile, begun, sums);
        }
        let first = queries.start - self.first;
        let finished = rows.iter().zip(sums.chunks_exact_mut(dim));
        for ((row, sums), log_sum) in finished.zip(&mut self.log_sums[first..]) {
            *log_sum = row.finish(sums);
        }
        let out = self.out[first..].iter_mut().map(|row| &mut **row);
        E::write(context.arch(), sums.chunks_exact(dim).zip(out));
    }
}

impl<T: Float> Row<T> {
    /// Turns the query's sums into its output, and returns ln Σ e^score. A query that sees no key has 0 and −∞.
    fn finish(&self, sums: &mut [T]) -> T {
        if self.sum == 0.0 {
            sums.fill(T::ZERO);
            return T::from_f64(f64::NEG_INFINITY);
        }
        let scale = T::from_f64(1.0 / self.sum);
        sums.iter_mut().for_each(|sum| *sum = *sum * scale);
        T::from_f64(self.largest.to_f64() + self.sum.ln())
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

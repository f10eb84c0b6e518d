//! Scaled dot-product attention (Vaswani et al. 2017) by blocks of queries.
//!
//! The scores of a block stay in the cache and are not saved: backward recomputes them from one logarithm a query
//! (Dao et al. 2022). Keys that no query of a block sees take no part in its products. Products are of the element type throughout. Weights are not rounded to 16 bits between the two
//! products, also in a context with [`Products::Bf16`](crate::Products::Bf16).

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::gemm_call::{View, gemm};
use crate::reduce::{dot_slice, sum_slice};
use crate::softmax::row_max;

/// Scores of a block of queries. They fit the second-level cache together with their operands.
const SCORES: usize = 1 << 15;

/// The sizes of attention over the heads of all samples, and its mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// Heads of all samples.
    pub heads: usize,
    /// Queries of a head.
    pub length: usize,
    /// Keys of a head.
    pub keys: usize,
    /// Elements of a query and of a key.
    pub dim: usize,
    /// True if query t sees only keys 0..=t.
    pub causal: bool,
}

impl AttentionShape {
    /// Elements of a head's queries.
    fn queries(&self) -> usize {
        self.length * self.dim
    }

    /// Elements of a head's keys.
    fn seen(&self) -> usize {
        self.keys * self.dim
    }

    /// The scale of the scores, 1/√dim.
    fn factor<T: Float>(&self) -> T {
        T::from_f64(1.0 / (self.dim as f64).sqrt())
    }

    /// Queries whose scores are computed together.
    fn rows(&self) -> usize {
        (SCORES / self.keys.max(1)).clamp(1, self.length.max(1))
    }

    /// The number of keys that a query sees.
    fn visible(&self, query: usize) -> usize {
        if self.causal { (query + 1).min(self.keys) } else { self.keys }
    }

    fn check<T>(&self, kernel: &'static str, q: &[T], k: &[T], v: &[T]) -> Result<()> {
        check_len(kernel, "q", self.heads * self.queries(), q.len())?;
        check_len(kernel, "k", self.heads * self.seen(), k.len())?;
        check_len(kernel, "v", self.heads * self.seen(), v.len())
    }
}

/// A row-major matrix.
fn plain<T>(data: &[T], cols: usize) -> View<'_, T> {
    View { data, row_stride: cols, col_stride: 1 }
}

/// The transpose of a row-major matrix.
fn turned<T>(data: &[T], cols: usize) -> View<'_, T> {
    View { data, row_stride: 1, col_stride: cols }
}

/// Multiplies matrices whose lengths were checked.
fn product<T: Float>(sizes: [usize; 3], a: View<'_, T>, b: View<'_, T>, c: &mut [T], accumulate: bool) {
    let result = gemm(sizes, a, b, c, sizes[1], accumulate);
    debug_assert!(result.is_ok(), "{result:?}");
}

/// Computes out = softmax(q·kᵀ/√dim)·v of every head.
///
/// `q` and `out` are [heads, length, dim], `k` and `v` are [heads, keys, dim]. `log_sums` [heads, length] gets
/// ln Σ e^score of every query, for backward.
///
/// # Errors
/// If a length does not match the shape.
pub fn attention_forward<T: Float>(
    context: &Context,
    shape: AttentionShape,
    q: &[T],
    k: &[T],
    v: &[T],
    out: &mut [T],
    log_sums: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "attention_forward";
    shape.check(KERNEL, q, k, v)?;
    check_len(KERNEL, "out", q.len(), out.len())?;
    check_len(KERNEL, "log_sums", shape.heads * shape.length, log_sums.len())?;
    let AttentionShape { length, dim, .. } = shape;
    let (queries, seen, rows) = (shape.queries(), shape.seen(), shape.rows());
    if queries == 0 || seen == 0 {
        out.fill(T::ZERO);
        log_sums.fill(T::from_f64(f64::NEG_INFINITY));
        return Ok(());
    }
    // One task for each block of queries, so that threads share the work of a single head too.
    let heads = out.chunks_exact_mut(queries).zip(log_sums.chunks_exact_mut(length)).enumerate();
    let blocks = heads.flat_map(|(head, (out, log_sums))| {
        let blocks = out.chunks_mut(rows * dim).zip(log_sums.chunks_mut(rows)).enumerate();
        blocks.map(move |(block, (out, log_sums))| (head, block * rows, out, log_sums))
    });
    context.run_each(blocks.collect(), |(head, first, out, log_sums)| {
        let count = log_sums.len();
        let q = &q[head * queries + first * dim..][..count * dim];
        let (k, v) = (&k[head * seen..][..seen], &v[head * seen..][..seen]);
        let span = shape.visible(first + count - 1);
        context.with_scratch(count * span, |scores: &mut [T]| {
            product([count, span, dim], plain(q, dim), turned(k, dim), scores, false);
            context.simd(
                #[inline(always)]
                || {
                    for (row, scores) in scores.chunks_exact_mut(span).enumerate() {
                        log_sums[row] = weigh(scores, shape.visible(first + row), shape.factor());
                    }
                },
            );
            product([count, dim, span], plain(scores, span), plain(v, dim), out, false);
        });
    });
    Ok(())
}

/// Turns a query's products into weights, 0 for hidden keys. Returns ln Σ e^score.
#[inline(always)]
fn weigh<T: Float>(scores: &mut [T], visible: usize, factor: T) -> T {
    let (scores, hidden) = scores.split_at_mut(visible);
    hidden.fill(T::ZERO);
    let shift = row_max(scores) * factor;
    for score in scores.iter_mut() {
        *score = (*score * factor - shift).exp();
    }
    let sum = sum_slice(scores);
    let scale = T::from_f64(1.0 / sum);
    for score in scores.iter_mut() {
        *score = *score * scale;
    }
    T::from_f64(shift.to_f64() + sum.ln())
}

/// The wanted gradients of attention, of the shapes of q, k and v. All elements are overwritten.
#[derive(Debug)]
pub struct AttentionGrads<'a, T> {
    /// The gradient of q.
    pub q: Option<&'a mut [T]>,
    /// The gradient of k.
    pub k: Option<&'a mut [T]>,
    /// The gradient of v.
    pub v: Option<&'a mut [T]>,
}

/// Computes the gradients of [`attention_forward`] from `dy`, the gradient of its output, and its `log_sums`.
///
/// # Errors
/// If a length does not match the shape.
pub fn attention_backward<T: Float>(
    context: &Context,
    shape: AttentionShape,
    [q, k, v]: [&[T]; 3],
    log_sums: &[T],
    dy: &[T],
    grads: AttentionGrads<'_, T>,
) -> Result<()> {
    const KERNEL: &str = "attention_backward";
    shape.check(KERNEL, q, k, v)?;
    check_len(KERNEL, "dy", q.len(), dy.len())?;
    check_len(KERNEL, "log_sums", shape.heads * shape.length, log_sums.len())?;
    for (name, grad, of) in [("dq", &grads.q, q), ("dk", &grads.k, k), ("dv", &grads.v, v)] {
        check_len(KERNEL, name, of.len(), grad.as_ref().map_or(of.len(), |grad| grad.len()))?;
    }
    let AttentionShape { length, keys, .. } = shape;
    let (queries, seen, rows) = (shape.queries(), shape.seen(), shape.rows());
    if queries == 0 || seen == 0 {
        [grads.q, grads.k, grads.v].into_iter().flatten().for_each(|grad| grad.fill(T::ZERO));
        return Ok(());
    }
    let mut dq = Heads { rest: grads.q, len: queries };
    let [mut dk, mut dv] = [grads.k, grads.v].map(|rest| Heads { rest, len: seen });
    let heads: Vec<_> = (0..shape.heads).map(|head| (head, dq.next(), dk.next(), dv.next())).collect();
    context.run_each(heads, |(head, q_grad, k_grad, v_grad)| {
        let own = Head {
            q: &q[head * queries..][..queries],
            k: &k[head * seen..][..seen],
            v: &v[head * seen..][..seen],
            log_sums: &log_sums[head * length..][..length],
            dy: &dy[head * queries..][..queries],
        };
        let grads = AttentionGrads { q: q_grad, k: k_grad, v: v_grad };
        context.with_scratch(2 * rows * keys, |scratch: &mut [T]| {
            let (weights, slopes) = scratch.split_at_mut(rows * keys);
            own.backward(context, shape, [weights, slopes], grads);
        });
    });
    Ok(())
}

/// The inputs of backward of one head.
struct Head<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    log_sums: &'a [T],
    dy: &'a [T],
}

impl<T: Float> Head<'_, T> {
    /// Computes the gradients, block by block; `weights` and `slopes` have room for the scores of a block.
    fn backward(
        &self,
        context: &Context,
        shape: AttentionShape,
        [weights, slopes]: [&mut [T]; 2],
        mut grads: AttentionGrads<'_, T>,
    ) {
        let dim = shape.dim;
        let Self { q, k, v, log_sums, dy } = *self;
        let rows = shape.rows();
        // No query sees the keys behind.
        let seen = shape.visible(shape.length - 1) * dim;
        [&mut grads.k, &mut grads.v].into_iter().flatten().for_each(|grad| grad[seen..].fill(T::ZERO));
        // The last block sees most keys, so that it overwrites the gradients and the others add to them.
        for (block, log_sums) in log_sums.chunks(rows).enumerate().rev() {
            let (first, count) = (block * rows, log_sums.len());
            let more = first + count < shape.length;
            let span = shape.visible(first + count - 1);
            let (q, dy) = (&q[first * dim..][..count * dim], &dy[first * dim..][..count * dim]);
            let (weights, slopes) = (&mut weights[..count * span], &mut slopes[..count * span]);
            product([count, span, dim], plain(q, dim), turned(k, dim), weights, false);
            context.simd(
                #[inline(always)]
                || {
                    for (row, weights) in weights.chunks_exact_mut(span).enumerate() {
                        weigh_again(weights, shape.visible(first + row), shape.factor(), log_sums[row]);
                    }
                },
            );
            if let Some(dv) = &mut grads.v {
                product([span, dim, count], turned(weights, span), plain(dy, dim), dv, more);
            }
            if grads.q.is_none() && grads.k.is_none() {
                continue;
            }
            product([count, span, dim], plain(dy, dim), turned(v, dim), slopes, false);
            context.simd(
                #[inline(always)]
                || {
                    for (weights, slopes) in weights.chunks_exact(span).zip(slopes.chunks_exact_mut(span)) {
                        slope(weights, slopes, shape.factor());
                    }
                },
            );
            if let Some(dq) = &mut grads.q {
                let dq = &mut dq[first * dim..][..count * dim];
                product([count, dim, span], plain(slopes, span), plain(k, dim), dq, false);
            }
            if let Some(dk) = &mut grads.k {
                product([span, dim, count], turned(slopes, span), plain(q, dim), dk, more);
            }
        }
    }
}

/// Recomputes the weights of [`weigh`] from a query's products and its ln Σ e^score.
#[inline(always)]
fn weigh_again<T: Float>(scores: &mut [T], visible: usize, factor: T, log_sum: T) {
    let (scores, hidden) = scores.split_at_mut(visible);
    hidden.fill(T::ZERO);
    for score in scores.iter_mut() {
        *score = (*score * factor - log_sum).exp();
    }
}

/// Turns the gradients of a query's weights into the gradients of its products. They are zero for hidden keys, as the
/// weights are.
#[inline(always)]
fn slope<T: Float>(weights: &[T], slopes: &mut [T], factor: T) {
    let along = T::from_f64(dot_slice(weights, slopes));
    for (slope, weight) in slopes.iter_mut().zip(weights) {
        *slope = *weight * (*slope - along) * factor;
    }
}

/// A wanted gradient, taken head by head.
struct Heads<'a, T> {
    rest: Option<&'a mut [T]>,
    len: usize,
}

impl<'a, T> Heads<'a, T> {
    fn next(&mut self) -> Option<&'a mut [T]> {
        let (head, rest) = self.rest.take()?.split_at_mut(self.len);
        self.rest = Some(rest);
        Some(head)
    }
}

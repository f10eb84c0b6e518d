//! Scaled dot-product attention (Vaswani et al. 2017) by blocks of queries, so that scores stay in the cache and none are kept
//! for backward: a logarithm for each query is enough to have them again (Dao et al. 2022).

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;
use crate::gemm_call::{View, gemm};
use crate::reduce::{dot_slice, sum_slice};
use crate::softmax::row_max;

/// Scores of a block of queries: as many as stay in a core's second cache beside what they are made of.
const SCORES: usize = 1 << 15;

/// The sizes of attention, over heads of all samples, and what a query sees.
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
    /// Whether query t sees only keys 0..=t.
    pub causal: bool,
}

impl AttentionShape {
    fn queries(&self) -> usize {
        self.length * self.dim
    }

    fn seen(&self) -> usize {
        self.keys * self.dim
    }

    fn factor<T: Float>(&self) -> T {
        T::from_f64(1.0 / (self.dim as f64).sqrt())
    }

    /// Queries whose scores are computed together.
    fn rows(&self) -> usize {
        (SCORES / self.keys.max(1)).clamp(1, self.length.max(1))
    }

    /// How many keys a query sees.
    fn visible(&self, query: usize) -> usize {
        if self.causal { (query + 1).min(self.keys) } else { self.keys }
    }

    fn check<T>(&self, kernel: &'static str, q: &[T], k: &[T], v: &[T]) -> Result<()> {
        check_len(kernel, "q", self.heads * self.queries(), q.len())?;
        check_len(kernel, "k", self.heads * self.seen(), k.len())?;
        check_len(kernel, "v", self.heads * self.seen(), v.len())
    }
}

/// Rows one after the other.
fn plain<T>(data: &[T], cols: usize) -> View<'_, T> {
    View { data, row_stride: cols, col_stride: 1 }
}

/// Rows one after the other, read as columns.
fn turned<T>(data: &[T], cols: usize) -> View<'_, T> {
    View { data, row_stride: 1, col_stride: cols }
}

/// A product of matrices whose sizes are those of slices that were checked.
fn product<T: Float>(sizes: [usize; 3], a: View<'_, T>, b: View<'_, T>, c: &mut [T], accumulate: bool) {
    let result = gemm(sizes, a, b, c, sizes[1], accumulate);
    debug_assert!(result.is_ok(), "{result:?}");
}

/// out = softmax(q·kᵀ/√dim)·v of every head; `q` and `out` are [heads, length, dim], `k` and `v` [heads, keys, dim]. `log_sums`
/// [heads, length] gets ln Σ e^score of every query, which backward takes.
///
/// # Errors
/// If a length is not the shape's.
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
    let AttentionShape { length, keys, dim, .. } = shape;
    let (queries, seen, rows) = (shape.queries(), shape.seen(), shape.rows());
    if queries == 0 || seen == 0 {
        out.fill(T::ZERO);
        log_sums.fill(T::from_f64(f64::NEG_INFINITY));
        return Ok(());
    }
    let heads: Vec<_> =
        out.chunks_exact_mut(queries).zip(log_sums.chunks_exact_mut(length)).enumerate().collect();
    context.run_each(heads, |(head, (out, log_sums))| {
        let q = &q[head * queries..][..queries];
        let (k, v) = (&k[head * seen..][..seen], &v[head * seen..][..seen]);
        context.with_scratch(rows * keys, |scores: &mut [T]| {
            let blocks = out.chunks_mut(rows * dim).zip(log_sums.chunks_mut(rows));
            for (block, (out, log_sums)) in blocks.enumerate() {
                let (first, count) = (block * rows, log_sums.len());
                let (q, scores) = (&q[first * dim..][..count * dim], &mut scores[..count * keys]);
                product([count, keys, dim], plain(q, dim), turned(k, dim), scores, false);
                context.simd(
                    #[inline(always)]
                    || {
                        for (row, scores) in scores.chunks_exact_mut(keys).enumerate() {
                            log_sums[row] = weigh(scores, shape.visible(first + row), shape.factor());
                        }
                    },
                );
                product([count, dim, keys], plain(scores, keys), plain(v, dim), out, false);
            }
        });
    });
    Ok(())
}

/// Turns a query's products into weights, 0 for keys that it does not see; gives ln Σ e^score.
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

/// Where gradients of attention go: those that are wanted, of the shapes of q, k and v. All elements are overwritten.
#[derive(Debug)]
pub struct AttentionGrads<'a, T> {
    /// That of q.
    pub q: Option<&'a mut [T]>,
    /// That of k.
    pub k: Option<&'a mut [T]>,
    /// That of v.
    pub v: Option<&'a mut [T]>,
}

/// The gradients of [`attention_forward`] from `dy`, that of its output, and `log_sums`.
///
/// # Errors
/// If a length is not the shape's.
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
    let AttentionShape { length, keys, dim, .. } = shape;
    let (queries, seen, rows) = (shape.queries(), shape.seen(), shape.rows());
    if queries == 0 || seen == 0 {
        [grads.q, grads.k, grads.v].into_iter().flatten().for_each(|grad| grad.fill(T::ZERO));
        return Ok(());
    }
    let mut dq = Heads { rest: grads.q, len: queries };
    let [mut dk, mut dv] = [grads.k, grads.v].map(|rest| Heads { rest, len: seen });
    let heads: Vec<_> = (0..shape.heads).map(|head| (head, dq.next(), dk.next(), dv.next())).collect();
    context.run_each(heads, |(head, mut dq, mut dk, mut dv)| {
        let (q, dy) = (&q[head * queries..][..queries], &dy[head * queries..][..queries]);
        let (k, v) = (&k[head * seen..][..seen], &v[head * seen..][..seen]);
        let log_sums = &log_sums[head * length..][..length];
        context.with_scratch(2 * rows * keys, |scratch: &mut [T]| {
            let (weights, slopes) = scratch.split_at_mut(rows * keys);
            for (block, log_sums) in log_sums.chunks(rows).enumerate() {
                let (first, count, more) = (block * rows, log_sums.len(), block > 0);
                let (q, dy) = (&q[first * dim..][..count * dim], &dy[first * dim..][..count * dim]);
                let (weights, slopes) = (&mut weights[..count * keys], &mut slopes[..count * keys]);
                product([count, keys, dim], plain(q, dim), turned(k, dim), weights, false);
                context.simd(
                    #[inline(always)]
                    || {
                        for (row, weights) in weights.chunks_exact_mut(keys).enumerate() {
                            weigh_again(weights, shape.visible(first + row), shape.factor(), log_sums[row]);
                        }
                    },
                );
                if let Some(dv) = &mut dv {
                    product([keys, dim, count], turned(weights, keys), plain(dy, dim), dv, more);
                }
                if dq.is_none() && dk.is_none() {
                    continue;
                }
                product([count, keys, dim], plain(dy, dim), turned(v, dim), slopes, false);
                context.simd(
                    #[inline(always)]
                    || {
                        for (weights, slopes) in weights.chunks_exact(keys).zip(slopes.chunks_exact_mut(keys))
                        {
                            slope(weights, slopes, shape.factor());
                        }
                    },
                );
                if let Some(dq) = &mut dq {
                    let dq = &mut dq[first * dim..][..count * dim];
                    product([count, dim, keys], plain(slopes, keys), plain(k, dim), dq, false);
                }
                if let Some(dk) = &mut dk {
                    product([keys, dim, count], turned(slopes, keys), plain(q, dim), dk, more);
                }
            }
        });
    });
    Ok(())
}

/// The weights that [`weigh`] gave, from a query's products and its ln Σ e^score.
#[inline(always)]
fn weigh_again<T: Float>(scores: &mut [T], visible: usize, factor: T, log_sum: T) {
    let (scores, hidden) = scores.split_at_mut(visible);
    hidden.fill(T::ZERO);
    for score in scores.iter_mut() {
        *score = (*score * factor - log_sum).exp();
    }
}

/// Turns the gradients of a query's weights into those of its products with keys. Weights of hidden keys are zero, and so are
/// these then.
#[inline(always)]
fn slope<T: Float>(weights: &[T], slopes: &mut [T], factor: T) {
    let along = T::from_f64(dot_slice(weights, slopes));
    for (slope, weight) in slopes.iter_mut().zip(weights) {
        *slope = *weight * (*slope - along) * factor;
    }
}

/// A gradient, head by head, if it is wanted.
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

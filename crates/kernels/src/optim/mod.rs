//! Optimizer steps over flat slices, each in one pass, with the arithmetic of `torch.optim`, or of the paper of those that it
//! lacks.

mod lamb;
mod lion;

pub use lamb::{LambOptions, lamb_direction, lamb_step, trust_ratio};
pub use lion::{LionOptions, lion_step};

use crate::context::Context;
use crate::error::{Result, check_len};
use crate::float::Float;

/// Options of stochastic gradient descent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdOptions {
    /// Learning rate.
    pub lr: f64,
    /// The decay of the momentum buffer.
    pub momentum: f64,
    /// Nesterov's variant (Sutskever et al. 2013).
    pub nesterov: bool,
    /// The weight decay, added to the gradient as weight_decay·w.
    pub weight_decay: f64,
    /// True for the first step, in which the momentum buffer becomes the gradient.
    pub first: bool,
}

/// Options of Adam and AdamW.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamOptions {
    /// Learning rate.
    pub lr: f64,
    /// Decay rates of the two moments.
    pub betas: (f64, f64),
    /// The number added to √v̂.
    pub eps: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// True to subtract the decay from the weights (AdamW, Loshchilov & Hutter 2019), false to add it to the gradient.
    pub decoupled: bool,
    /// The number of this step from 1, for the bias correction of the moments.
    pub step: u64,
}

/// Options of an exponential moving average of weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmaOptions {
    /// The largest decay.
    pub decay: f64,
    /// The number of updates before this one.
    pub updates: u64,
}

impl EmaOptions {
    /// The decay of this update: min(decay, (1 + n)/(10 + n)) for the n-th from 0, so that the initial weights are forgotten
    /// quickly (as in the reference code of latent diffusion).
    pub fn keep(&self) -> f64 {
        let n = self.updates as f64;
        self.decay.min((1.0 + n) / (10.0 + n))
    }
}

/// Splits several slices of equal length into the same pieces, and runs `f` on the pieces.
fn zipped<T: Float, const N: usize>(
    context: &Context,
    mutable: [&mut [T]; N],
    grads: &[T],
    f: impl Fn([&mut [T]; N], &[T]) + Sync + Send,
) {
    let piece = context.piece(grads.len(), 16);
    let mut cuts: Vec<([&mut [T]; N], &[T])> = Vec::new();
    let mut rest = mutable;
    let mut at = 0;
    while at < grads.len() {
        let end = (at + piece).min(grads.len());
        let mut cut = [const { None }; N];
        rest = std::array::from_fn(|i| {
            let (head, tail) = std::mem::take(&mut rest[i]).split_at_mut(end - at);
            cut[i] = Some(head);
            tail
        });
        cuts.push((cut.map(Option::unwrap_or_default), &grads[at..end]));
        at = end;
    }
    context.run_chunks(&mut cuts, 1, |_, cuts| {
        for (mutable, grads) in cuts {
            let mutable = std::mem::replace(mutable, std::array::from_fn(|_| <&mut [T]>::default()));
            context.simd(
                #[inline(always)]
                || f(mutable, grads),
            );
        }
    });
}

/// Computes w ← w − lr·d with d = g + weight_decay·w, or with the momentum buffer of d.
///
/// Without momentum, `buffer` is not used and may be empty.
///
/// # Errors
/// If the lengths differ.
pub fn sgd_step<T: Float>(
    context: &Context,
    options: SgdOptions,
    weights: &mut [T],
    grads: &[T],
    buffer: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "sgd_step";
    check_len(KERNEL, "grads", weights.len(), grads.len())?;
    let (lr, decay) = (T::from_f64(options.lr), T::from_f64(options.weight_decay));
    if options.momentum == 0.0 {
        zipped(context, [weights], grads, |[w], g| {
            w.iter_mut().zip(g).for_each(|(w, g)| *w -= lr * (*g + decay * *w));
        });
        return Ok(());
    }
    check_len(KERNEL, "buffer", weights.len(), buffer.len())?;
    let (momentum, nesterov) = (T::from_f64(options.momentum), options.nesterov);
    // The first step ignores the buffer.
    let keep = if options.first { T::ZERO } else { momentum };
    zipped(context, [weights, buffer], grads, |[w, b], g| {
        for ((w, b), g) in w.iter_mut().zip(b).zip(g) {
            let d = *g + decay * *w;
            *b = if options.first { d } else { keep * *b + d };
            *w -= lr * if nesterov { d + momentum * *b } else { *b };
        }
    });
    Ok(())
}

/// Computes one step of Adam (Kingma & Ba 2015) or AdamW; `first` and `second` are the moments.
///
/// # Errors
/// If the lengths differ.
pub fn adam_step<T: Float>(
    context: &Context,
    options: AdamOptions,
    weights: &mut [T],
    grads: &[T],
    first: &mut [T],
    second: &mut [T],
) -> Result<()> {
    const KERNEL: &str = "adam_step";
    check_len(KERNEL, "grads", weights.len(), grads.len())?;
    check_len(KERNEL, "first", weights.len(), first.len())?;
    check_len(KERNEL, "second", weights.len(), second.len())?;
    let (beta1, beta2) = options.betas;
    let power = i32::try_from(options.step).unwrap_or(i32::MAX);
    let correction1 = 1.0 - beta1.powi(power);
    let correction2 = (1.0 - beta2.powi(power)).sqrt();
    let step = T::from_f64(options.lr / correction1);
    let inverse2 = T::from_f64(1.0 / correction2);
    let eps = T::from_f64(options.eps);
    let (keep1, take1) = (T::from_f64(beta1), T::from_f64(1.0 - beta1));
    let (keep2, take2) = (T::from_f64(beta2), T::from_f64(1.0 - beta2));
    let shrink = T::from_f64(if options.decoupled { 1.0 - options.lr * options.weight_decay } else { 1.0 });
    let decay = T::from_f64(if options.decoupled { 0.0 } else { options.weight_decay });
    zipped(context, [weights, first, second], grads, |[w, m, v], g| {
        for (((w, m), v), g) in w.iter_mut().zip(m).zip(v).zip(g) {
            let g = *g + decay * *w;
            *m = keep1 * *m + take1 * g;
            *v = keep2 * *v + take2 * g * g;
            *w = *w * shrink - step * *m / (v.sqrt() * inverse2 + eps);
        }
    });
    Ok(())
}

/// Computes average ← decay·average + (1 − decay)·weights.
///
/// # Errors
/// If the lengths differ.
pub fn ema_step<T: Float>(context: &Context, decay: f64, average: &mut [T], weights: &[T]) -> Result<()> {
    check_len("ema_step", "weights", average.len(), weights.len())?;
    let (keep, take) = (T::from_f64(decay), T::from_f64(1.0 - decay));
    zipped(context, [average], weights, |[average], weights| {
        average.iter_mut().zip(weights).for_each(|(a, w)| *a = keep * *a + take * *w);
    });
    Ok(())
}

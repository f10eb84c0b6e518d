//! Cross-entropy of logits with class labels, and with mixtures of two labels.

use super::LossDivisor;
use crate::backend::CrossEntropy;
use crate::ops::Indices;
use crate::tape::{Tape, Value};
use crate::{Result, TensorError, ops};

/// Computes the mean of −log softmax(logits) at the label. `logits` is [N, K], `labels` N classes below K, on the
/// host or on the logits' device.
///
/// With `label_smoothing` s the target is 1 − s on the label plus s/K everywhere, as in PyTorch.
///
/// # Errors
/// If the shapes do not match, a label is out of range (named with its row, where the back end can tell), or s is not
/// in [0, 1).
pub fn cross_entropy<'a>(
    tape: &Tape,
    logits: &Value,
    labels: impl Into<Indices<'a>>,
    label_smoothing: f64,
    over: LossDivisor,
) -> Result<Value> {
    const OP: &str = "cross_entropy";
    let &[batch, _] = logits.dims() else {
        return Err(TensorError::shape(OP, format!("expected logits [N, K], not {:?}", logits.shape())));
    };
    let labels = labels.into();
    if labels.len() != batch {
        return Err(TensorError::shape(OP, format!("{} labels for {batch} rows of logits", labels.len())));
    }
    if !(0.0..1.0).contains(&label_smoothing) {
        let (value, expected) = (label_smoothing.to_string(), "expected 0 ≤ s < 1");
        return Err(TensorError::Argument { name: "label_smoothing", value, expected });
    }
    let factor = over.factor(batch);
    let input = logits.array()?.contiguous()?;
    let backend = input.backend(tape.context());
    let labels = labels.on(OP, backend)?;
    let smoothing = label_smoothing;
    let of = CrossEntropy { labels: &labels, smoothing, factor };
    let (loss, softmax) = backend.cross_entropy(&input, of)?;
    tape.push(OP, &[logits], loss, move |tape, grad, grads| {
        let backend = grad.backend(tape.context());
        let of = CrossEntropy { labels: &labels, smoothing, factor };
        grads.add(0, backend.cross_entropy_backward(&softmax, of, grad)?)
    })
}

/// The labels of samples that were mixed in pairs, as by MixUp and CutMix.
#[derive(Debug, Clone, Copy)]
pub struct LabelPairs<'a> {
    /// The label of each sample.
    pub labels: &'a [u32],
    /// The label of each sample's partner.
    pub partners: &'a [u32],
    /// The share of a sample's own label, 0 to 1; the rest is the partner's.
    pub share: f64,
}

/// Computes share·[`cross_entropy`] with the labels plus (1 − share) times that with the partners' labels. This is the
/// cross-entropy with the mixture of both smoothed targets (Zhang et al. 2018).
///
/// # Errors
/// Errors of [`cross_entropy`], and if the share is not in [0, 1].
pub fn mixed_cross_entropy(
    tape: &Tape,
    logits: &Value,
    pairs: LabelPairs<'_>,
    label_smoothing: f64,
    over: LossDivisor,
) -> Result<Value> {
    let LabelPairs { labels, partners, share } = pairs;
    if !(0.0..=1.0).contains(&share) {
        let (value, expected) = (share.to_string(), "expected 0 ≤ share ≤ 1");
        return Err(TensorError::Argument { name: "share", value, expected });
    }
    let own = cross_entropy(tape, logits, labels, label_smoothing, over)?;
    let other = cross_entropy(tape, logits, partners, label_smoothing, over)?;
    ops::add(tape, &ops::scale(tape, &own, share)?, &ops::scale(tape, &other, 1.0 - share)?)
}

//! CLIP's contrastive loss, over the samples of all ranks.

use std::sync::Arc;

use super::{LossDivisor, cross_entropy};
use crate::group::{ProcessGroup, gather_counts};
use crate::ops::LinearWeight;
use crate::tape::{Tape, Value};
use crate::{Result, TensorError, ops};
use phalanx_array::wide;

/// Computes the symmetric cross-entropy of similarities of images and texts (Radford et al. 2021): row i of images
/// belongs to row i of texts. Features are [N, E] of unit length. `scale` is a scalar, the inverse temperature, which
/// multiplies the similarities.
///
/// With a [`crate::Session::batch_group`], a rank contrasts its images with the texts of all ranks, and its texts with
/// all images, as OpenCLIP with `local_loss` and `gather_with_grad`. With [`LossDivisor::Count`] of the global batch,
/// losses and gradients sum over ranks to those of one rank with the whole batch. Ranks may have different numbers of
/// samples.
///
/// # Errors
/// If the shapes do not match, or a rank of the group has no sample; and errors of the transport.
pub fn clip_contrastive(
    tape: &Tape,
    image_features: &Value,
    text_features: &Value,
    scale: &Value,
    over: LossDivisor,
) -> Result<Value> {
    const OP: &str = "clip_contrastive";
    if image_features.shape() != text_features.shape() {
        return Err(TensorError::unequal(OP, image_features.shape(), text_features.shape()));
    }
    let &[samples, _] = image_features.dims() else {
        let problem = format!("expected features [N, E], not {:?}", image_features.shape());
        return Err(TensorError::shape(OP, problem));
    };
    // Sums of products are f32 before they are rounded, and a large scale would magnify the rounding.
    let dtype = wide(image_features.dtype()?);
    let (by_image, by_text, labels) = match &tape.session().batch_group {
        Some(group) if group.size() > 1 => {
            let all = GatheredFeatures::of(tape, image_features, text_features, group)?;
            let by_image = ops::linear_stored(tape, image_features, LinearWeight::new(&all.texts), dtype)?;
            let by_text = ops::linear_stored(tape, text_features, LinearWeight::new(&all.images), dtype)?;
            let labels = all.first..all.first + samples;
            (ops::broadcast_mul(tape, &by_image, scale)?, ops::broadcast_mul(tape, &by_text, scale)?, labels)
        }
        _ => {
            let logits = ops::linear_stored(tape, image_features, LinearWeight::new(text_features), dtype)?;
            let logits = ops::broadcast_mul(tape, &logits, scale)?;
            let transposed = ops::transpose(tape, &logits, 0, 1)?;
            (logits, transposed, 0..samples)
        }
    };
    let logits = by_image.array()?;
    let labels = logits.backend(tape.context()).progression(labels.start as u32, 1, labels.len())?;
    let by_image = cross_entropy(tape, &by_image, &labels, 0.0, over)?;
    let by_text = cross_entropy(tape, &by_text, &labels, 0.0, over)?;
    ops::scale(tape, &ops::add(tape, &by_image, &by_text)?, 0.5)
}

/// The features of all ranks, in rank order.
struct GatheredFeatures {
    images: Value,
    texts: Value,
    /// The row of this rank's first sample.
    first: usize,
}

impl GatheredFeatures {
    fn of(tape: &Tape, images: &Value, texts: &Value, group: &Arc<dyn ProcessGroup>) -> Result<Self> {
        const OP: &str = "clip_contrastive";
        let (samples, width) = (images.dims()[0], images.dims()[1]);
        let counts = gather_counts(group.as_ref(), samples);
        let counts = counts.map_err(TensorError::hook(OP))?;
        if let Some(rank) = counts.iter().position(|count| *count == 0) {
            // Every rank reports this error, so that none waits for the others.
            let problem =
                format!("rank {rank} of the batch's group has no sample; leave it out of the group");
            return Err(TensorError::shape(OP, problem));
        }
        // One gather moves both, in f32: gradients of all ranks are added before they are rounded.
        let both = ops::cat(tape, &[images, texts], 1)?;
        let all = ops::all_gather_stored(tape, &both, (0, &counts), group, wide(both.dtype()?))?;
        Ok(Self {
            images: ops::narrow(tape, &all, 1, 0, width)?,
            texts: ops::narrow(tape, &all, 1, width, width)?,
            first: counts[..group.rank()].iter().sum(),
        })
    }
}

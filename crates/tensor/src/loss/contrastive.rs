//! CLIP's contrastive loss.

use super::{Over, cross_entropy};
use crate::storage::wide;
use crate::tape::{Tape, Value};
use crate::{Result, TensorError, ops};

/// The symmetric cross-entropy over the similarities of images and texts (Radford et al. 2021): row i of the
/// one belongs to row i of the other. Features are [N, E] of unit length; `scale` is a scalar, the inverse
/// temperature, that the similarities are multiplied by.
///
/// # Errors
/// If the shapes do not go together.
pub fn clip_contrastive(
    tape: &Tape,
    image_features: &Value,
    text_features: &Value,
    scale: &Value,
    over: Over,
) -> Result<Value> {
    if image_features.shape() != text_features.shape() {
        return Err(TensorError::unequal("clip_contrastive", image_features.shape(), text_features.shape()));
    }
    // Sums of products are f32 before they are rounded, and a large scale would magnify the rounding.
    let dtype = wide(image_features.dtype()?);
    let logits = ops::linear_stored(tape, image_features, text_features, None, dtype)?;
    let logits = ops::broadcast_mul(tape, &logits, scale)?;
    let logits_t = logits.array()?;
    let labels = logits_t.backend(tape.context()).progression(0, 1, image_features.dims()[0])?;
    let by_image = cross_entropy(tape, &logits, &labels, 0.0, over)?;
    let by_text = cross_entropy(tape, &ops::transpose(tape, &logits, 0, 1)?, &labels, 0.0, over)?;
    ops::scale(tape, &ops::add(tape, &by_image, &by_text)?, 0.5)
}

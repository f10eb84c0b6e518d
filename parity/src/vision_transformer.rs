//! `vit_b.json`: the Vision Transformer.

use phalanx_models::{VisionTransformer, VisionTransformerConfig};
use phalanx_tensor::loss::{LossDivisor, cross_entropy};
use phalanx_tensor::{Result, Tape, Value};

use crate::network::{self, ReferenceNetwork, filled, real, size, sym};
use crate::report::numbers;
use crate::{ParityError, Quantity, Reference};

/// Compares the network with its file.
pub(super) fn check(reference: &Reference<'_>) -> Result<Vec<Quantity>, ParityError> {
    let config = VisionTransformerConfig {
        image_size: size(reference, "image_size")?,
        patch_size: size(reference, "patch_size")?,
        num_classes: size(reference, "num_classes")?,
        width: size(reference, "hidden_dim")?,
        layers: size(reference, "num_layers")?,
        heads: size(reference, "num_heads")?,
        inner: size(reference, "mlp_dim")?,
        dropout: 0.0,
        attention_dropout: 0.0,
        eps: real(reference, "layer_norm_eps")?,
    };
    let (model, store) = filled(reference, |scope| VisionTransformer::new(scope, &config))?;
    let labels: Vec<u32> =
        numbers(&reference.json["inputs"]["labels"]).iter().map(|label| *label as u32).collect();
    let images = sym(reference, "input", &[labels.len(), 3, config.image_size, config.image_size], 1.0)?;
    let (again, images_again) = (model.clone(), images.clone());
    let subject = ReferenceNetwork {
        store,
        run: Box::new(move |tape, watch| {
            let logits = watch_blocks(&model, tape, &images, watch)?;
            watch("logits", &logits);
            Ok(())
        }),
        loss: Box::new(move |tape| {
            let logits = again.forward(tape, &images_again)?;
            let over = LossDivisor::Count(labels.len());
            Ok((cross_entropy(tape, &logits, &labels, 0.0, over)?, Vec::new()))
        }),
        outputs: &["logits"],
        after: Some("logits_after"),
    };
    network::check(reference, subject)
}

/// Runs the blocks one by one.
fn watch_blocks(
    model: &VisionTransformer,
    tape: &Tape,
    images: &Value,
    watch: &mut dyn FnMut(&str, &Value),
) -> Result<Value> {
    model.blocks().iter().try_fold(images.clone(), |x, block| {
        let x = tape.run_sequence(std::slice::from_ref(block), &x)?;
        watch(block.name(), &x);
        Ok(x)
    })
}

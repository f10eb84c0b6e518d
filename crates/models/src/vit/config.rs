//! The sizes of a Vision Transformer.

use phalanx_tensor::{Result, TensorError, TensorPlan};

use crate::projected_attention::check_sizes;

/// The settings of a Vision Transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct VisionTransformerConfig {
    /// The height and width of images, in pixels.
    pub image_size: usize,
    /// The height and width of a patch, in pixels. It divides the image.
    pub patch_size: usize,
    /// The number of classes.
    pub num_classes: usize,
    /// The width of the states.
    pub width: usize,
    /// The number of layers.
    pub layers: usize,
    /// The number of attention heads.
    pub heads: usize,
    /// The width of the hidden layer of each feed-forward part.
    pub inner: usize,
    /// The dropout of the embeddings and of the layers' outputs and hidden layers; 0 in torchvision.
    pub dropout: f64,
    /// The dropout of attention weights; 0 in torchvision.
    pub attention_dropout: f64,
    /// Added to the variance in layer norms: 1e-6 in torchvision and timm, 1e-12 in transformers.
    pub eps: f64,
}

impl VisionTransformerConfig {
    /// Returns the settings of torchvision's `vit_b_16`, for images of 224 pixels.
    pub fn base(num_classes: usize) -> Self {
        Self {
            image_size: 224,
            patch_size: 16,
            num_classes,
            width: 768,
            layers: 12,
            heads: 12,
            inner: 3072,
            dropout: 0.0,
            attention_dropout: 0.0,
            eps: 1e-6,
        }
    }

    /// Returns the number of patches of an image.
    pub fn patches(&self) -> usize {
        (self.image_size / self.patch_size.max(1)).pow(2)
    }

    /// Returns how the layers can be cut over ranks: attention by heads, and the feed-forward parts by their hidden layer.
    ///
    /// # Errors
    /// None that is known.
    pub fn tensor_plan(&self) -> Result<TensorPlan> {
        let plan = TensorPlan::new([
            "encoder.layers.*.self_attention.in_proj_weight = column:projection",
            "encoder.layers.*.self_attention.in_proj_bias = column:projection",
            "encoder.layers.*.self_attention.out_proj = row:heads",
            "encoder.layers.*.mlp.0 = column",
            "encoder.layers.*.mlp.3 = row",
        ])?;
        Ok(plan.with_heads(self.heads, self.heads))
    }

    /// Checks that the sizes make a model.
    pub(super) fn check(&self) -> Result<()> {
        let Self { image_size, patch_size, num_classes, width, layers, inner, .. } = *self;
        let sizes = [
            ("image_size", image_size),
            ("patch_size", patch_size),
            ("num_classes", num_classes),
            ("width", width),
            ("layers", layers),
            ("inner", inner),
        ];
        check_sizes("vit", &sizes, width, self.heads)?;
        if !image_size.is_multiple_of(patch_size) {
            let problem = format!("patches of {patch_size} pixels do not divide images of {image_size}");
            return Err(TensorError::Shape { op: "vit", problem });
        }
        Ok(())
    }
}

//! Vision Transformers as classifiers.

use phalanx_config::{Config, Relations};
use phalanx_models::foreign_names::{vision_transformer_of_hugging_face, vision_transformer_of_timm};
use phalanx_models::{VisionTransformer, VisionTransformerConfig};
use phalanx_trainer::engine::{ReferenceModel, TaskSpec};

use super::classifier::{Classifier, ClassifierSettings};

phalanx_config::settings! {
    /// The settings of a Vision Transformer.
    pub(super) struct VitSettings {
        /// Height and width of a patch, in pixels.
        patch: usize = 4;
        /// Width of the states.
        width: usize = 192;
        /// Number of layers.
        layers: usize = 6;
        /// Number of attention heads.
        heads: usize = 3;
        /// Width of the hidden layer of a feed-forward part; 0 = four times the width.
        inner: usize = 0;
        /// Probability of dropping an element of the embeddings, and of what a layer adds to its input.
        dropout: f64 = 0.0;
        /// Probability of dropping an attention weight.
        attention_dropout: f64 = 0.0;
        /// Added to the variance in layer norms; weights of transformers have 1e-12.
        eps: f64 = 1e-6;
        flatten classifier: ClassifierSettings;
    }
}

impl VitSettings {
    fn config(&self, image_size: usize, num_classes: usize) -> VisionTransformerConfig {
        VisionTransformerConfig {
            image_size,
            patch_size: self.patch,
            num_classes,
            width: self.width,
            layers: self.layers,
            heads: self.heads,
            inner: if self.inner == 0 { 4 * self.width } else { self.inner },
            dropout: self.dropout,
            attention_dropout: self.attention_dropout,
            eps: self.eps,
        }
    }

    fn check(&self, config: &Config, relations: &mut Relations<'_>) {
        let Self { patch, width, layers, heads, .. } = *self;
        for (key, size) in
            [("model.patch", patch), ("model.width", width), ("model.layers", layers), ("model.heads", heads)]
        {
            relations.positive(key, size as u64);
        }
        let size = config.model.image_size;
        relations.require(
            size.is_multiple_of(patch.max(1)),
            "model.patch",
            format!("model.patch = {patch} does not divide model.image_size = {size}"),
        );
        relations.require(
            width.is_multiple_of(heads.max(1)),
            "model.heads",
            format!("model.heads = {heads} does not divide model.width = {width}"),
        );
        relations.fraction("model.dropout", self.dropout);
        relations.fraction("model.attention_dropout", self.attention_dropout);
        relations.not_negative("model.eps", self.eps);
        self.classifier.check(relations);
    }
}

/// The Vision Transformer.
pub(super) fn spec() -> TaskSpec<VitSettings> {
    const NAME: &str = "vit";
    TaskSpec::new(NAME, "Classifier: Vision Transformer", |setup, settings: &VitSettings| {
        let (num_classes, size) = (setup.classes()?, setup.config().model.image_size);
        let config = settings.config(size, num_classes);
        setup.cut_by(|| config.tensor_plan())?;
        let model = setup.model(|scope| VisionTransformer::new(scope, &config))?;
        let features = model.clone();
        let classifier =
            Classifier::new(&settings.classifier, move |tape, images| model.forward(tape, images))
                .with_features(move |tape, images| features.features_and_logits(tape, images));
        let description = format!("{NAME} of {} patches for {num_classes} classes", config.patches());
        let training = classifier.training(description, (num_classes, size), "heads");
        // torchvision has the names that it has here.
        Ok(training
            .names_of(vision_transformer_of_timm)
            .names_of_parts(vision_transformer_of_hugging_face)
            .positions_of_patches("encoder.pos_embedding")
            .shape_advice("conv_proj", "model.patch is the size of a patch in pixels")
            .shape_advice(
                "encoder.pos_embedding",
                "there is a position for each patch of a square image and one for the class: model.image_size and model.patch",
            ))
    })
    .mixes_labels()
    .validate(VitSettings::check)
    .reference(|settings, config, classes| {
        Some(reference(&settings.config(config.model.image_size, classes)))
    })
}

/// Returns the Vision Transformer of torchvision with the same weights.
fn reference(config: &VisionTransformerConfig) -> ReferenceModel {
    let VisionTransformerConfig { image_size, patch_size, layers, heads, width, inner, num_classes, .. } =
        config;
    let sizes =
        format!("{image_size}, {patch_size}, {layers}, {heads}, {width}, {inner}, num_classes={num_classes}");
    let eps = config.eps;
    let mut lines = vec!["from torchvision.models import VisionTransformer".to_owned()];
    if eps == VisionTransformerConfig::base(1).eps {
        lines.push(format!("model = VisionTransformer({sizes})"));
    } else {
        lines.push("import functools, torch".to_owned());
        let norm = format!("functools.partial(torch.nn.LayerNorm, eps={eps:e})");
        lines.push(format!("model = VisionTransformer({sizes}, norm_layer={norm})"));
    }
    ReferenceModel::of_python(lines)
}

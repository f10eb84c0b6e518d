//! ResNets as classifiers.

use phalanx_models::{ResNet, ResNetConfig, ResNetVariant};

use super::classifier::{Classifier, ClassifierSettings};
use phalanx_trainer::engine::TaskSpec;

phalanx_trainer::settings! {
    /// The settings of a ResNet.
    pub(super) struct ResNetSettings {
        /// Channels of the first stage; the reference has 64.
        width: usize = 64;
        /// The network starts with a 3x3 convolution of stride 1 made for small images.
        cifar_stem: bool = true;
        /// Batch norm uses the statistics of the global batch instead of each rank's own.
        sync_batch_norm: bool = false;
        flatten classifier: ClassifierSettings;
    }
}

/// The ResNet of this name.
pub(super) fn spec(name: &'static str, variant: ResNetVariant) -> TaskSpec<ResNetSettings> {
    TaskSpec::new(name, "Classifier: a residual network", move |setup, settings: &ResNetSettings| {
        let num_classes = setup.classes()?;
        let config = ResNetConfig {
            width: settings.width,
            cifar_stem: settings.cifar_stem,
            sync_batch_norm: settings.sync_batch_norm,
            ..ResNetConfig::new(variant, num_classes)
        };
        let model = setup.model(|scope| ResNet::new(scope, &config))?;
        let features = model.clone();
        let classifier =
            Classifier::new(&settings.classifier, move |tape, images| model.forward(tape, images))
                .with_features(move |tape, images| features.features_and_logits(tape, images));
        Ok(classifier.training(num_classes, format!("{name} for {num_classes} classes")))
    })
    .validate(|settings, _, relations| {
        relations.positive("model.width", settings.width as u64);
        settings.classifier.check(relations);
    })
}

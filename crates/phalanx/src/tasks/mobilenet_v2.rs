//! MobileNetV2 as a classifier.

use phalanx_models::{MobileNetV2, MobileNetV2Config};

use super::classifier::{Classifier, ClassifierSettings};
use phalanx_trainer::engine::TaskSpec;

phalanx_trainer::settings! {
    /// The settings of MobileNetV2.
    pub(super) struct MobileNetSettings {
        /// The network starts with a 3x3 convolution of stride 1 made for small images.
        cifar_stem: bool = true;
        /// Probability of dropping a feature before the classifier.
        dropout: f64 = 0.2;
        /// Batch norm uses the statistics of the global batch instead of each rank's own.
        sync_batch_norm: bool = false;
        flatten classifier: ClassifierSettings;
    }
}

/// MobileNetV2.
pub(super) fn spec() -> TaskSpec<MobileNetSettings> {
    const NAME: &str = "mobilenetv2";
    TaskSpec::new(NAME, "Classifier: MobileNetV2", |setup, settings: &MobileNetSettings| {
        let num_classes = setup.classes()?;
        let config = MobileNetV2Config {
            dropout: settings.dropout,
            cifar_stem: settings.cifar_stem,
            sync_batch_norm: settings.sync_batch_norm,
            ..MobileNetV2Config::new(num_classes)
        };
        let model = setup.model(|scope| MobileNetV2::new(scope, &config))?;
        let classifier =
            Classifier::new(&settings.classifier, move |tape, images| model.forward(tape, images));
        Ok(classifier.training(num_classes, format!("{NAME} for {num_classes} classes")))
    })
    .validate(|settings, _, relations| {
        relations.fraction("model.dropout", settings.dropout);
        settings.classifier.check(relations);
    })
}

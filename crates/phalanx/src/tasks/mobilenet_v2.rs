//! MobileNetV2 as a classifier.

use phalanx_models::foreign_names::mobilenet_v2_of_timm;
use phalanx_models::{MobileNetV2, MobileNetV2Config};

use super::classifier::{Classifier, ClassifierSettings};
use phalanx_trainer::engine::{ReferenceModel, TaskSpec};

phalanx_config::settings! {
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
        let (num_classes, size) = (setup.classes()?, setup.config().model.image_size);
        let config = MobileNetV2Config {
            dropout: settings.dropout,
            cifar_stem: settings.cifar_stem,
            sync_batch_norm: settings.sync_batch_norm,
            ..MobileNetV2Config::new(num_classes)
        };
        setup.cut_by(|| config.tensor_plan())?;
        let model = setup.model(|scope| MobileNetV2::new(scope, &config))?;
        let classifier =
            Classifier::new(&settings.classifier, move |tape, images| model.forward(tape, images));
        let description = format!("{NAME} for {num_classes} classes");
        let training = classifier.training(description, (num_classes, size), "classifier");
        // torchvision has the names that it has here.
        Ok(training.names_of(mobilenet_v2_of_timm))
    })
    .mixes_labels()
    .validate(|settings, _, relations| {
        relations.fraction("model.dropout", settings.dropout);
        settings.classifier.check(relations);
    })
    .reference(|settings, _, classes| {
        let make = format!("model = torchvision.models.mobilenet_v2(num_classes={classes})");
        let lines = ["import torchvision".to_owned(), make];
        // For small images the stem and the stage of 24 channels have stride 1.
        let strides =
            ["model.features[0][0].stride = (1, 1)", "model.features[2].conv[1][0].stride = (1, 1)"];
        let strides = strides.into_iter().filter(|_| settings.cifar_stem).map(str::to_owned);
        Some(ReferenceModel::of_python(lines.into_iter().chain(strides)))
    })
}

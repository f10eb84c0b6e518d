//! A multilayer perceptron on flattened images as a classifier.

use phalanx_models::{Mlp, MlpConfig};

use super::classifier::{Classifier, ClassifierSettings};
use phalanx_trainer::engine::TaskSpec;

phalanx_config::settings! {
    /// The settings of a multilayer perceptron.
    pub(super) struct MlpSettings {
        /// Features of each hidden layer.
        mlp_width: usize = 512;
        /// Hidden layers.
        mlp_depth: usize = 3;
        flatten classifier: ClassifierSettings;
    }
}

/// Returns the task of the multilayer perceptron.
pub(super) fn spec() -> TaskSpec<MlpSettings> {
    TaskSpec::new("mlp", "Classifier: a multilayer perceptron", |setup, settings: &MlpSettings| {
        let (num_classes, size) = (setup.classes()?, setup.config().model.image_size);
        let (width, depth) = (settings.mlp_width, settings.mlp_depth);
        let config = MlpConfig { inputs: 3 * size * size, width, depth, num_classes };
        setup.cut_by(|| config.tensor_plan())?;
        let model = setup.model(|scope| Mlp::new(scope, &config))?;
        let classifier =
            Classifier::new(&settings.classifier, move |tape, images| model.forward(tape, images));
        let description = format!("mlp of {depth} hidden layers of {width} for {num_classes} classes");
        // Each hidden layer and its ReLU take a number.
        Ok(classifier.training(description, (num_classes, size), &(2 * depth).to_string()))
    })
    .mixes_labels()
    .validate(|settings, _, relations| {
        relations.positive("model.mlp_width", settings.mlp_width as u64);
        relations.positive("model.mlp_depth", settings.mlp_depth as u64);
        settings.classifier.check(relations);
    })
}

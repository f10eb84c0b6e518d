//! ResNets as classifiers.

use phalanx_models::foreign_names::resnet_of_hugging_face;
use phalanx_models::{ResNet, ResNetConfig, ResNetVariant};

use super::classifier::{Classifier, ClassifierSettings};
use phalanx_trainer::engine::{ReferenceModel, TaskSpec, Training};

phalanx_config::settings! {
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
        let (num_classes, size) = (setup.classes()?, setup.config().model.image_size);
        let config = ResNetConfig {
            width: settings.width,
            cifar_stem: settings.cifar_stem,
            sync_batch_norm: settings.sync_batch_norm,
            ..ResNetConfig::new(variant, num_classes)
        };
        setup.cut_by(|| config.tensor_plan())?;
        let model = setup.model(|scope| ResNet::new(scope, &config))?;
        let features = model.clone();
        let classifier =
            Classifier::new(&settings.classifier, move |tape, images| model.forward(tape, images))
                .with_features(move |tape, images| features.features_and_logits(tape, images));
        let description = format!("{name} for {num_classes} classes");
        Ok(named(classifier.training(description, (num_classes, size), "fc"), settings.cifar_stem))
    })
    .mixes_labels()
    .validate(|settings, _, relations| {
        relations.positive("model.width", settings.width as u64);
        settings.classifier.check(relations);
    })
    .reference(move |settings, _, classes| reference(name, settings, classes))
}

/// Returns the ResNet of torchvision with the same weights: it has 64 channels in the first stage. timm's has the same names and
/// the stride in the 3x3 convolution, too, but no stem for small images.
fn reference(name: &str, settings: &ResNetSettings, classes: usize) -> Option<ReferenceModel> {
    if settings.width != 64 {
        return None;
    }
    let make = format!("model = torchvision.models.{name}(num_classes={classes})");
    Some(match settings.cifar_stem {
        false => ReferenceModel::of_python(["import torchvision".to_owned(), make]).in_timm(name),
        true => ReferenceModel::of_python([
            "import torch, torchvision".to_owned(),
            make,
            "model.conv1 = torch.nn.Conv2d(3, 64, 3, padding=1, bias=False)".to_owned(),
            "model.maxpool = torch.nn.Identity()".to_owned(),
        ]),
    })
}

/// Adds the names of a ResNet in files of weights. torchvision and timm have the names that it has here.
fn named<M>(training: Training<M>, cifar_stem: bool) -> Training<M> {
    let stem = match cifar_stem {
        true => "model.cifar_stem = false has the stem of ImageNet, a kernel of 7x7",
        false => "model.cifar_stem = true has the stem for small images, a kernel of 3x3",
    };
    training.names_of(resnet_of_hugging_face).shape_advice("conv1", stem)
}

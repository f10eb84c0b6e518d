//! Classifiers: ResNet, MobileNetV2 and the multilayer perceptron with cross-entropy.

use phalanx_models::{Mlp, MlpConfig, MobileNetV2, MobileNetV2Config, ResNet, ResNetConfig, ResNetVariant};
use phalanx_tensor::loss::cross_entropy;
use phalanx_tensor::{Scope, Tape, TensorError, Value};

use crate::config::{Config, ModelKind};
use crate::engine::TrainError;
use crate::engine::training::{Loss, Setup, Step, Training, number};

enum Network {
    ResNet(ResNet),
    MobileNetV2(MobileNetV2),
    Mlp(Mlp),
}

impl Network {
    fn new(config: &Config, scope: &Scope, num_classes: usize) -> Result<Self, TensorError> {
        let model = &config.model;
        let variant = match model.kind {
            ModelKind::Resnet18 => ResNetVariant::R18,
            ModelKind::Resnet34 => ResNetVariant::R34,
            ModelKind::MobileNetV2 => {
                let config = MobileNetV2Config {
                    dropout: model.dropout,
                    cifar_stem: model.cifar_stem,
                    sync_batch_norm: model.sync_batch_norm,
                    ..MobileNetV2Config::new(num_classes)
                };
                return Ok(Self::MobileNetV2(MobileNetV2::new(scope, &config)?));
            }
            ModelKind::Mlp => {
                let (width, depth) = (model.mlp_width, model.mlp_depth);
                let inputs = 3 * model.image_size * model.image_size;
                let config = MlpConfig { inputs, width, depth, num_classes };
                return Ok(Self::Mlp(Mlp::new(scope, &config)?));
            }
            _ => ResNetVariant::R50,
        };
        let config = ResNetConfig {
            width: model.width,
            cifar_stem: model.cifar_stem,
            sync_batch_norm: model.sync_batch_norm,
            ..ResNetConfig::new(variant, num_classes)
        };
        Ok(Self::ResNet(ResNet::new(scope, &config)?))
    }

    fn forward(&self, tape: &Tape, images: &Value) -> Result<Value, TensorError> {
        match self {
            Self::ResNet(model) => model.forward(tape, images),
            Self::MobileNetV2(model) => model.forward(tape, images),
            Self::Mlp(model) => model.forward(tape, images),
        }
    }
}

/// A network with cross-entropy.
pub(super) struct Classifier {
    network: Network,
    label_smoothing: f64,
}

/// The configured classifier.
pub(super) fn classifier(setup: &mut Setup<'_>) -> Result<Training<Classifier>, TrainError> {
    let (config, num_classes) = (setup.config(), setup.classes());
    let network = setup.model(|scope| Network::new(config, scope, num_classes))?;
    let model = &config.model;
    let name = match model.kind {
        ModelKind::Mlp => {
            format!(
                "mlp of {} hidden layers of {} for {num_classes} classes",
                model.mlp_depth, model.mlp_width
            )
        }
        kind => format!("{kind} for {num_classes} classes"),
    };
    let classifier = Classifier { network, label_smoothing: config.train.label_smoothing };
    Ok(Training::new(name, classifier)
        .loss(Classifier::loss)
        .measures(["accuracy"])
        .evaluate(["loss", "accuracy"], Classifier::evaluate))
}

impl Classifier {
    fn logits(&self, step: &Step<'_>) -> Result<Value, TrainError> {
        Ok(self.network.forward(step.tape, &step.value("images")?)?)
    }

    fn loss(&self, step: &Step<'_>) -> Result<Loss, TrainError> {
        let (logits, labels) = (self.logits(step)?, step.classes("labels")?);
        let loss = mean_loss(step, &logits, &labels, self.label_smoothing)?;
        Ok(Loss::new(loss, [count_correct(&logits, &labels, step.batch.weights())? / step.sum]))
    }

    fn evaluate(&self, step: &Step<'_>) -> Result<[f64; 2], TrainError> {
        let (logits, labels) = (self.logits(step)?, step.classes("labels")?);
        let loss = number(&mean_loss(step, &logits, &labels, 0.0)?)?;
        Ok([loss, count_correct(&logits, &labels, step.batch.weights())?])
    }
}

/// The mean cross-entropy.
fn mean_loss(step: &Step<'_>, logits: &Value, labels: &[u32], smoothing: f64) -> Result<Value, TrainError> {
    step.mean(logits, |logits, rows, over| cross_entropy(step.tape, logits, &labels[rows], smoothing, over))
}

/// The weights of the rows that have their largest number where the label says.
fn count_correct(logits: &Value, labels: &[u32], weights: &[f32]) -> Result<f64, TrainError> {
    let best = logits.tensor()?.argmax(1)?.to_vec1::<u32>()?;
    let rows = best.iter().zip(labels).zip(weights);
    Ok(rows.filter(|((best, label), _)| best == label).map(|(_, weight)| f64::from(*weight)).sum())
}

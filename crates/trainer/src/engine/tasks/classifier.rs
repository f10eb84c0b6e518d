//! Classifiers: ResNet, MobileNetV2 and the multilayer perceptron with cross-entropy.

use phalanx_models::{Mlp, MlpConfig, MobileNetV2, MobileNetV2Config, ResNet, ResNetConfig, ResNetVariant};
use phalanx_tensor::loss::{Over, cross_entropy};
use phalanx_tensor::{ParamStore, Scope, StoreBuilder, Tape, Value};

use super::task::{Outcome, Task};
use crate::config::{Config, ModelKind};
use crate::engine::TrainError;
use crate::engine::data::Batch;

enum Network {
    ResNet(ResNet),
    MobileNetV2(MobileNetV2),
    Mlp(Mlp),
}

impl Network {
    fn new(config: &Config, scope: &Scope, num_classes: usize) -> Result<Self, TrainError> {
        let model = &config.model;
        let variant = match model.kind {
            ModelKind::Resnet18 => ResNetVariant::R18,
            ModelKind::Resnet34 => ResNetVariant::R34,
            ModelKind::Resnet50 => ResNetVariant::R50,
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
            other => return Err(TrainError::Setup(format!("`{other}` is no classifier"))),
        };
        let config = ResNetConfig {
            width: model.width,
            cifar_stem: model.cifar_stem,
            sync_batch_norm: model.sync_batch_norm,
            ..ResNetConfig::new(variant, num_classes)
        };
        Ok(Self::ResNet(ResNet::new(scope, &config)?))
    }

    fn forward(&self, tape: &Tape, images: &Value) -> Result<Value, TrainError> {
        Ok(match self {
            Self::ResNet(model) => model.forward(tape, images)?,
            Self::MobileNetV2(model) => model.forward(tape, images)?,
            Self::Mlp(model) => model.forward(tape, images)?,
        })
    }
}

/// A classifier.
pub(super) struct Classifier {
    name: String,
    network: Network,
    store: ParamStore,
    label_smoothing: f64,
}

impl Classifier {
    pub(super) fn new(
        config: &Config,
        builder: StoreBuilder,
        num_classes: usize,
    ) -> Result<Self, TrainError> {
        let network = Network::new(config, &builder.root(), num_classes)?;
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
        Ok(Self { name, network, store: builder.build()?, label_smoothing: config.train.label_smoothing })
    }
}

/// How many rows have their largest number where the label says.
fn count_correct(logits: &Value, labels: &[u32]) -> Result<f64, TrainError> {
    let best = logits.tensor()?.argmax(1)?.to_vec1::<u32>()?;
    Ok(best.iter().zip(labels).filter(|(best, label)| best == label).count() as f64)
}

impl Task for Classifier {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn store(&self) -> &ParamStore {
        &self.store
    }

    fn measures(&self) -> &'static [&'static str] {
        &["accuracy"]
    }

    fn loss(&self, tape: &Tape, batch: &Batch, over: Over, _step: u64) -> Result<Outcome, TrainError> {
        let logits = self.network.forward(tape, &Value::constant(batch.images.clone()))?;
        let loss = cross_entropy(tape, &logits, &batch.labels, self.label_smoothing, over)?;
        let count = match over {
            Over::Batch => batch.len(),
            Over::Count(count) => count,
        };
        Ok(Outcome { loss, measures: vec![count_correct(&logits, &batch.labels)? / count.max(1) as f64] })
    }

    fn evaluated(&self) -> &'static [&'static str] {
        &["loss", "accuracy"]
    }

    fn evaluate(&self, tape: &Tape, batch: &Batch) -> Result<Vec<f64>, TrainError> {
        let logits = self.network.forward(tape, &Value::constant(batch.images.clone()))?;
        let loss = cross_entropy(tape, &logits, &batch.labels, 0.0, Over::Count(1))?;
        let sum = f64::from(loss.tensor()?.to_scalar::<f32>()?);
        Ok(vec![sum, count_correct(&logits, &batch.labels)?])
    }
}

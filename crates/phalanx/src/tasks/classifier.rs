//! Any network that gives a number for each class, with cross-entropy.

use candle_core::Tensor;
use phalanx_tensor::loss::{LabelPairs, cross_entropy, mixed_cross_entropy};
use phalanx_tensor::{Tape, TensorError, Value};

use phalanx_config::Relations;
use phalanx_trainer::engine::{
    ClassScores, EvaluatorOutput, ForwardInput, ForwardOutput, Loss, Measure, OutputMeaning, StepInput,
    TrainError, Training,
};

phalanx_config::settings! {
    /// The settings of all classifiers.
    pub(super) struct ClassifierSettings {
        /// Probability that cross-entropy takes from the true class and spreads over all.
        label_smoothing: f64 = 0.0;
    }
}

impl ClassifierSettings {
    pub(super) fn check(&self, relations: &mut Relations<'_>) {
        relations.fraction("model.label_smoothing", self.label_smoothing);
    }
}

/// A network `[N, 3, size, size]` to `[N, classes]`.
type Forward = Box<dyn Fn(&Tape, &Value) -> Result<Value, TensorError> + Sync>;

/// A network `[N, 3, size, size]` to features `[N, F]` and `[N, classes]`.
type FeatureForward = Box<dyn Fn(&Tape, &Value) -> Result<(Value, Value), TensorError> + Sync>;

/// A network with cross-entropy.
pub(super) struct Classifier {
    forward: Forward,
    forward_features: Option<FeatureForward>,
    label_smoothing: f64,
}

impl Classifier {
    pub(super) fn new(
        settings: &ClassifierSettings,
        forward: impl Fn(&Tape, &Value) -> Result<Value, TensorError> + Sync + 'static,
    ) -> Self {
        Self { forward: Box::new(forward), forward_features: None, label_smoothing: settings.label_smoothing }
    }

    /// Adds a forward pass with features, so that the classifier can serve as an evaluator.
    pub(super) fn with_features(
        self,
        forward_features: impl Fn(&Tape, &Value) -> Result<(Value, Value), TensorError> + Sync + 'static,
    ) -> Self {
        Self { forward_features: Some(Box::new(forward_features)), ..self }
    }

    /// Its training on `size` images of this number of `classes`, in one phase. `head` names the parameters that give the logits.
    pub(super) fn training(
        self,
        description: String,
        (classes, size): (usize, usize),
        head: &str,
    ) -> Training<Self> {
        let has_features = self.forward_features.is_some();
        let training = Training::new(description, self)
            .head([head])
            .loss(Self::loss)
            .measures(["accuracy"])
            .classify(classes, Self::scores)
            .forward(ForwardInput::images(size), |model, tape, images| {
                let value = (model.forward)(tape, images)?;
                Ok(vec![ForwardOutput { name: "logits".to_owned(), value, meaning: OutputMeaning::Classes }])
            });
        if has_features { training.evaluator(Self::evaluator_output) } else { training }
    }

    fn evaluator_output(&self, step: &StepInput<'_>) -> Result<EvaluatorOutput, TrainError> {
        let none = || TrainError::Setup("the classifier has no features".to_owned());
        let forward_features = self.forward_features.as_ref().ok_or_else(none)?;
        let (features, logits) = forward_features(step.tape, &step.value("images")?)?;
        Ok(EvaluatorOutput::of_features(features).answer("labels", logits))
    }

    fn logits(&self, step: &StepInput<'_>) -> Result<Value, TrainError> {
        Ok((self.forward)(step.tape, &step.value("images")?)?)
    }

    /// The loss, and the share of samples whose largest logit is that of their label. Of mixed labels that with the larger share
    /// counts.
    fn loss(&self, step: &StepInput<'_>) -> Result<Loss, TrainError> {
        let (logits, labels) = (self.logits(step)?, step.classes("labels")?);
        let Some(mixed) = step.batch.mixed_labels()? else {
            let smoothing = self.label_smoothing;
            let loss = step.mean(&logits, |logits, rows, over| {
                cross_entropy(step.tape, logits, &labels[rows], smoothing, over)
            })?;
            return Ok(Loss::new(loss, [accuracy(step, &logits, labels)?]));
        };
        let loss = step.mean(&logits, |logits, rows, over| {
            let (labels, partners) = (&labels[rows.clone()], &mixed.partners[rows]);
            let pairs = LabelPairs { labels, partners, share: f64::from(mixed.share) };
            mixed_cross_entropy(step.tape, logits, pairs, self.label_smoothing, over)
        })?;
        let dominant = if mixed.share < 0.5 { mixed.partners } else { labels };
        Ok(Loss::new(loss, [accuracy(step, &logits, dominant)?]))
    }

    fn scores(&self, step: &StepInput<'_>) -> Result<ClassScores, TrainError> {
        Ok(ClassScores::new(self.logits(step)?, step.classes("labels")?))
    }
}

/// Returns the share of a step's samples whose largest logit is that of their label.
pub(super) fn accuracy(
    step: &StepInput<'_>,
    logits: &Value,
    labels: Vec<u32>,
) -> Result<Measure, TrainError> {
    let (weights, sum) = (step.batch.weights().to_vec(), step.sum);
    Measure::read(logits, move |logits| Ok(count_correct(logits, &labels, &weights)? / sum))
}

/// The weights of the rows that have their largest number where the label says.
pub(super) fn count_correct(logits: &Tensor, labels: &[u32], weights: &[f32]) -> Result<f64, TrainError> {
    let best = logits.argmax(1)?.to_vec1::<u32>()?;
    let rows = best.iter().zip(labels).zip(weights);
    Ok(rows.filter(|((best, label), _)| best == label).map(|(_, weight)| f64::from(*weight)).sum())
}

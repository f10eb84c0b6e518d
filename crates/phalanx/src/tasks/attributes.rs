//! A classifier of the attributes of pictures: a residual network with logits for the values of each attribute.

use std::ops::Range;

use phalanx_data::Attribute;
use phalanx_models::foreign_names::resnet_of_hugging_face;
use phalanx_models::{ResNet, ResNetConfig, ResNetVariant};
use phalanx_tensor::loss::cross_entropy;
use phalanx_tensor::{Tape, Value, ops};

use super::classifier::{accuracy, count_correct};
use phalanx_trainer::engine::{
    EvaluatorOutput, ForwardInput, ForwardOutput, Loss, Measure, OutputMeaning, Setup, StepInput, TaskSpec,
    TrainError, Training, number,
};

phalanx_config::settings! {
    /// The settings of a classifier of attributes.
    pub(super) struct AttributesSettings {
        /// Channels of the first of four stages.
        width: usize = 16;
        /// Batch norm uses the statistics of the global batch instead of each rank's own.
        sync_batch_norm: bool = false;
    }
}

/// A ResNet-18 whose logits are those of all attributes, one after the other.
struct Recogniser {
    network: ResNet,
    attributes: Vec<(Attribute, Range<usize>)>,
}

/// The classifier of everything that the images' attributes say.
pub(super) fn spec() -> TaskSpec<AttributesSettings> {
    TaskSpec::new("attributes", "Classifier: every attribute of a picture, such as its colours", recogniser)
        .validate(|settings: &AttributesSettings, _, relations| {
            relations.positive("model.width", settings.width as u64);
        })
}

fn recogniser(
    setup: &mut Setup<'_>,
    settings: &AttributesSettings,
) -> Result<Training<Recogniser>, TrainError> {
    let mut logits = 0;
    let place = |attribute: Attribute| {
        let range = logits..logits + attribute.values.len();
        logits = range.end;
        (attribute, range)
    };
    let attributes: Vec<_> = setup.attributes()?.into_iter().map(place).collect();
    if attributes.is_empty() {
        let kind = setup.config().data.kind;
        return Err(TrainError::Setup(format!(
            "data.kind = {kind} says nothing of its images but their classes; `shapes` and `scenes` have attributes"
        )));
    }
    let config = ResNetConfig {
        width: settings.width,
        cifar_stem: true,
        sync_batch_norm: settings.sync_batch_norm,
        ..ResNetConfig::new(ResNetVariant::R18, logits)
    };
    let size = setup.config().model.image_size;
    setup.cut_by(|| config.tensor_plan())?;
    let network = setup.model(|scope| ResNet::new(scope, &config))?;
    let names: Vec<String> =
        attributes.iter().map(|(attribute, _)| format!("{}_accuracy", attribute.name)).collect();
    let listed: Vec<&str> = attributes.iter().map(|(attribute, _)| attribute.name.as_str()).collect();
    let description = format!("classifier of {}", listed.join(", "));
    let evaluated = ["loss"].into_iter().chain(names.iter().map(String::as_str));
    let training = Training::new(description, Recogniser { network, attributes })
        .head(["fc"])
        .names_of(resnet_of_hugging_face)
        .shape_advice("conv1", "a recogniser of attributes has the stem for small images, a kernel of 3x3");
    Ok(training
        .loss(Recogniser::loss)
        .measures(["accuracy"])
        .evaluate(evaluated, Recogniser::evaluate)
        .evaluator(Recogniser::evaluator_output)
        .forward(ForwardInput::images(size), Recogniser::forward))
}

/// An attribute's logits `[N, answers]`, and the true answers.
type Answer = (Value, Vec<u32>);

impl Recogniser {
    /// Features, and the logits of each attribute with its name.
    fn see(&self, step: &StepInput<'_>) -> Result<EvaluatorOutput, TrainError> {
        let (features, logits) = self.network.features_and_logits(step.tape, &step.value("images")?)?;
        self.attributes.iter().try_fold(EvaluatorOutput::of_features(features), |seen, (attribute, range)| {
            let own = ops::narrow(step.tape, &logits, 1, range.start, range.len())?;
            Ok(seen.answer(attribute.name.clone(), own))
        })
    }

    /// The mean of all attributes' cross-entropies, and of each the logits with the truth.
    fn parts(&self, step: &StepInput<'_>) -> Result<(Value, Vec<Answer>), TrainError> {
        let mut total: Option<Value> = None;
        let mut answers = Vec::with_capacity(self.attributes.len());
        for (name, logits) in self.see(step)?.answers {
            let truth = step.classes(&name)?;
            let loss = step.mean(&logits, |logits, rows, over| {
                cross_entropy(step.tape, logits, &truth[rows], 0.0, over)
            })?;
            total = Some(match total {
                Some(total) => ops::add(step.tape, &total, &loss)?,
                None => loss,
            });
            answers.push((logits, truth));
        }
        let none = || TrainError::Setup("a classifier of attributes has at least one".to_owned());
        let mean = ops::scale(step.tape, &total.ok_or_else(none)?, 1.0 / answers.len() as f64)?;
        Ok((mean, answers))
    }

    fn loss(&self, step: &StepInput<'_>) -> Result<Loss, TrainError> {
        let (loss, answers) = self.parts(step)?;
        let right = answers.into_iter().map(|(logits, truth)| accuracy(step, &logits, truth));
        Ok(Loss::new(loss, [Measure::mean(right.collect::<Result<_, _>>()?)]))
    }

    fn evaluate(&self, step: &StepInput<'_>) -> Result<Vec<f64>, TrainError> {
        let (loss, answers) = self.parts(step)?;
        let weights = step.batch.weights();
        let mut sums = vec![number(&loss)?];
        for (logits, truth) in answers {
            sums.push(count_correct(&logits.to_host()?, &truth, weights)?);
        }
        Ok(sums)
    }

    /// Computes the logits of each attribute.
    fn forward(&self, tape: &Tape, images: &Value) -> Result<Vec<ForwardOutput>, TrainError> {
        let logits = self.network.forward(tape, images)?;
        let output = |(attribute, range): &(Attribute, Range<usize>)| {
            let value = ops::narrow(tape, &logits, 1, range.start, range.len())?;
            let meaning = OutputMeaning::Attribute(attribute.values.clone());
            Ok(ForwardOutput { name: attribute.name.clone(), value, meaning })
        };
        self.attributes.iter().map(output).collect()
    }

    fn evaluator_output(&self, step: &StepInput<'_>) -> Result<EvaluatorOutput, TrainError> {
        self.see(step)
    }
}

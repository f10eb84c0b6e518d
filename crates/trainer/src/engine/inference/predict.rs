//! Predictions: the classes of a user's images or texts, with their probabilities.

use std::path::PathBuf;

use candle_core::DType;
use phalanx_tensor::{Tape, Value};

use super::model::InferenceModel;
use super::{Picture, TrainedModel};
use crate::engine::TrainError;
use crate::engine::data::{FileBatch, UnreadableImage, UserFiles};
use crate::engine::training::{ForwardInput, ForwardPass, OutputMeaning, Task, TextInput};
use phalanx_config::Config;

/// The options of predictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PredictOptions {
    /// Images of a batch.
    pub batch: usize,
    /// The number of most probable classes of an image.
    pub top: usize,
    /// The number of least sure images whose pictures are returned.
    pub pictures: usize,
}

/// The prediction for one image.
#[derive(Debug, Clone, PartialEq)]
pub struct Prediction {
    /// The file.
    pub file: PathBuf,
    /// The answers: one for a classifier, one for each attribute for a classifier of attributes.
    pub answers: Vec<ClassAnswer>,
}

/// The most probable classes of an image.
#[derive(Debug, Clone, PartialEq)]
pub struct ClassAnswer {
    /// The attribute; `None` for the classes of the data.
    pub attribute: Option<String>,
    /// The classes with their probabilities, the most probable first.
    pub ranked: Vec<(String, f64)>,
}

impl Prediction {
    /// The probability of the most probable class; for several attributes the least of theirs.
    pub fn certainty(&self) -> f64 {
        let first = self.answers.iter().filter_map(|answer| Some(answer.ranked.first()?.1));
        first.fold(1.0, f64::min)
    }
}

/// The outcome of predictions.
#[derive(Debug, Clone, Default)]
pub struct PredictOutcome {
    /// The number of predicted images.
    pub predicted: usize,
    /// The files that are no usable images.
    pub unreadable: Vec<UnreadableImage>,
    /// The least sure predictions with their pictures, the least sure first.
    pub doubtful: Vec<(Prediction, Picture)>,
}

/// Predicts the classes of image files, in their order, and calls `each` with every prediction as soon as its batch is computed.
/// Images are prepared as the test images of the configuration. A file that cannot be used is listed in the outcome.
///
/// # Errors
/// If the model predicts no classes, `options.top` is more than it has, or its weights do not fit.
pub fn predict(
    task: &Task,
    model: &TrainedModel,
    config: &Config,
    files: &[PathBuf],
    options: PredictOptions,
    each: &mut dyn FnMut(&Prediction),
) -> Result<PredictOutcome, TrainError> {
    let inference = InferenceModel::open(task, config, model)?;
    let none = || TrainError::Setup(format!("a `{}` predicts no classes of images", config.model.kind));
    let forward = inference.built.training.forward().ok_or_else(none)?;
    if forward.input.name != ForwardInput::IMAGES {
        return Err(none());
    }
    let device = &inference.session.device;
    let source = UserFiles::new(files.to_vec(), config, device)?;
    let size = config.model.image_size;
    let threads = inference.context.threads();
    let mut outcome = PredictOutcome::default();
    for read in source.batches(options.batch, threads) {
        let FileBatch { files, batch, unreadable } = read?;
        outcome.unreadable.extend(unreadable);
        let Some(batch) = batch else { continue };
        let tape = Tape::forward_only(inference.session.clone());
        let images = Value::constant(batch.array(ForwardInput::IMAGES, &tape)?);
        let answers = answers(&forward, &tape, &images, &model.classes, options.top)?;
        outcome.predicted += files.len();
        for (row, (file, answers)) in files.into_iter().zip(answers).enumerate() {
            let prediction = Prediction { file, answers };
            each(&prediction);
            keep(&mut outcome.doubtful, prediction, options.pictures, || {
                Picture::of_batch(&batch, row, size, source.normalise())
            })?;
        }
    }
    Ok(outcome)
}

/// Predicts the classes of texts, in their order, and calls `each` with every text's number and its `top` classes.
///
/// # Errors
/// If the model predicts no classes of texts, `top` is more than it has, a text cannot be read, or the weights do not fit.
pub fn predict_texts(
    task: &Task,
    model: &TrainedModel,
    config: &Config,
    texts: &[TextInput],
    PredictOptions { batch, top, .. }: PredictOptions,
    each: &mut dyn FnMut(usize, &ClassAnswer),
) -> Result<(), TrainError> {
    let inference = InferenceModel::open(task, config, model)?;
    let none = || TrainError::Setup(format!("a `{}` predicts no classes of texts", config.model.kind));
    let names = match inference.built.training.outline().classes {
        Some(classes) => classes.names(&model.classes),
        None => return Err(none()),
    };
    for (number, texts) in texts.chunks(batch.max(1)).enumerate() {
        let tape = Tape::forward_only(inference.session.clone());
        let logits = inference.built.training.classify_texts(&tape, texts)?.ok_or_else(none)?;
        let logits = logits.to_host()?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        for (row, logits) in logits.iter().enumerate() {
            let ranked = ranked(logits, &names, top)?;
            each(number * batch.max(1) + row, &ClassAnswer { attribute: None, ranked });
        }
    }
    Ok(())
}

/// Adds a prediction to the `most` least sure ones. Equally sure ones stay in the order of their files.
fn keep(
    doubtful: &mut Vec<(Prediction, Picture)>,
    prediction: Prediction,
    most: usize,
    picture: impl FnOnce() -> Result<Picture, TrainError>,
) -> Result<(), TrainError> {
    let certainty = prediction.certainty();
    let place = doubtful.partition_point(|(other, _)| other.certainty() <= certainty);
    if place < most {
        doubtful.insert(place, (prediction, picture()?));
        doubtful.truncate(most);
    }
    Ok(())
}

/// Computes the answers for each image of a batch.
fn answers(
    forward: &ForwardPass<'_>,
    tape: &Tape,
    images: &Value,
    classes: &[String],
    top: usize,
) -> Result<Vec<Vec<ClassAnswer>>, TrainError> {
    let mut all: Vec<Vec<ClassAnswer>> = vec![Vec::new(); images.dims()[0]];
    for output in forward.run(tape, images)? {
        let (attribute, names) = match output.meaning {
            OutputMeaning::Classes => (None, classes.to_vec()),
            OutputMeaning::Attribute(values) => (Some(output.name), values),
            OutputMeaning::Images => continue,
        };
        let logits = output.value.to_host()?.to_dtype(DType::F32)?.to_vec2::<f32>()?;
        for (answers, logits) in all.iter_mut().zip(logits) {
            let ranked = ranked(&logits, &names, top)?;
            answers.push(ClassAnswer { attribute: attribute.clone(), ranked });
        }
    }
    Ok(all)
}

/// Returns the `top` classes of the largest logits with their probabilities: a softmax in f64.
fn ranked(logits: &[f32], names: &[String], top: usize) -> Result<Vec<(String, f64)>, TrainError> {
    if top > logits.len() {
        let known = logits.len();
        return Err(TrainError::Setup(format!(
            "the {top} most probable classes are asked for, and there are {known}"
        )));
    }
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f64> = logits.iter().map(|logit| f64::from(logit - largest).exp()).collect();
    let sum: f64 = powers.iter().sum();
    if !sum.is_finite() {
        return Err(TrainError::Setup("the logits are not finite: the weights are of no use".to_owned()));
    }
    let mut order: Vec<usize> = (0..powers.len()).collect();
    order.sort_by(|a, b| powers[*b].total_cmp(&powers[*a]).then(a.cmp(b)));
    let name = |class: usize| names.get(class).cloned().unwrap_or_else(|| class.to_string());
    Ok(order.into_iter().take(top).map(|class| (name(class), powers[class] / sum)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_ranked_by_probability() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let found = ranked(&[0.0, 2.0_f32.ln(), 2.0_f32.ln()], &names, 3).expect("sound");
        let classes: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(classes, ["b", "c", "a"], "equal ones in the order of their labels");
        assert!((found[0].1 - 0.4).abs() < 1e-7 && (found[2].1 - 0.2).abs() < 1e-7, "{found:?}");
        assert_eq!(ranked(&[1000.0, 0.0], &[], 1).expect("sound"), [("0".to_owned(), 1.0)]);
        assert!(ranked(&[0.0], &names, 2).expect_err("one class").to_string().contains("there are 1"));
        assert!(ranked(&[f32::NAN, 0.0], &names, 1).is_err());
    }

    #[test]
    fn the_least_sure_are_kept_in_order() {
        let picture = || Ok(Picture { size: 1, pixels: vec![0.0; 3] });
        let mut doubtful = Vec::new();
        for (file, certainty) in [("a", 0.9), ("b", 0.5), ("c", 0.7), ("d", 0.5), ("e", 0.6)] {
            let ranked = vec![("x".to_owned(), certainty)];
            let answers = vec![ClassAnswer { attribute: None, ranked }];
            keep(&mut doubtful, Prediction { file: file.into(), answers }, 3, picture).expect("sound");
        }
        let files: Vec<_> =
            doubtful.iter().map(|(prediction, _)| prediction.file.to_string_lossy()).collect();
        assert_eq!(files, ["b", "d", "e"]);
    }
}

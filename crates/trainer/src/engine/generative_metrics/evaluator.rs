//! An evaluator: the trained network of another run.

use std::path::Path;
use std::sync::Arc;

use candle_core::DType;
use image::RgbImage;
use phalanx_checkpoint::newest_checkpoint;
use phalanx_data::Attribute;
use phalanx_data::transform::Transform;
use phalanx_tensor::{ComputeDevice, Context, Session, Tape, Value};
use phalanx_weights::load_checkpoint;

use super::judged_answer::{JudgedAnswer, JudgedSum};
use super::pictures::{ImageFeatures, Pictures};
use super::scenes::SceneAnswers;
use crate::engine::error::TrainError;
use crate::engine::training::{BuildTarget, Built, Evaluator, StepInput, Weights};
use phalanx_batches::Batch;
use phalanx_config::Config;
use phalanx_datasets::{DataRecord, attributes, picture_transform};
use phalanx_run::{ConfusionMatrix, RunFolder};

/// An evaluator with its network in memory.
pub(super) struct LoadedEvaluator {
    /// The prefix of its metrics.
    pub(super) name: String,
    /// The values of each property that it answers.
    values: Vec<Attribute>,
    built: Built,
    prepare: Transform,
    session: Session,
}

impl LoadedEvaluator {
    /// Loads the network of an evaluator to the device of the run.
    pub(super) fn open(
        evaluator: &Evaluator,
        context: &Arc<Context>,
        device: &ComputeDevice,
    ) -> Result<Self, TrainError> {
        let Evaluator { run, task, config } = evaluator;
        let name = config.model.kind.clone();
        let open = || -> Result<Self, TrainError> {
            let checkpoint = newest_checkpoint(&RunFolder::open(run)?)?;
            let mut built = task.build(config, None, BuildTarget::whole(Weights::Here, device))?;
            load_checkpoint(&built.stores(), &checkpoint, true)?;
            let listener = built.ready(config)?;
            let (prepare, session) = (
                picture_transform(config)?,
                Session { device: device.clone(), listener, ..Session::evaluation(context.clone()) },
            );
            Ok(Self { name: name.clone(), values: values(run, config)?, built, prepare, session })
        };
        open().map_err(|error| TrainError::Setup(format!("judge {} (`{name}`): {error}", run.display())))
    }

    /// Returns the name of a value of a property, or its number if it has no name.
    pub(super) fn value(&self, property: &str, value: usize) -> String {
        let known = self.values.iter().find(|attribute| attribute.name == property);
        known.and_then(|attribute| attribute.values.get(value)).cloned().unwrap_or_else(|| value.to_string())
    }

    /// Computes the features of images, 8-bit as they would be saved, prepared as the evaluator's own test images, and its judgement.
    /// `truth` has the captions and the true classes.
    pub(super) fn judge(&self, images: &[RgbImage], truth: &Pictures) -> Result<Judgement, TrainError> {
        let mut values = Vec::new();
        let mut each = [3, 0, 0];
        for (index, image) in images.iter().enumerate() {
            each = self.prepare.append(image.clone(), 0, index, &mut values)?;
        }
        let [channels, height, width] = each;
        let batch = phalanx_data::Batch::new(images.len())
            .with("images", [images.len(), channels, height, width], values)?
            .with_texts("captions", truth.captions().to_vec())?;
        let batch = Batch::try_from(batch)?;
        let tape = Tape::forward_only(self.session.clone());
        let output = self.built.training.evaluator_output(&StepInput::new(
            &tape,
            &batch,
            1.0,
            0,
            tape.session().key,
        ))?;
        let Some(output) = output else {
            return Err(TrainError::Setup(format!("a `{}` judges no pictures", self.name)));
        };
        let rows = |value: &Value| -> Result<Vec<f32>, TrainError> {
            Ok(value.to_host()?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
        };
        let features = rows(&output.features)?;
        let mut seen =
            ImageFeatures { dim: features.len() / images.len().max(1), ..ImageFeatures::default() };
        let answers = judged(&output.answers, truth)?;
        seen.judged = answers.iter().map(JudgedSum::of).collect();
        if let Some(captions) = &output.captions {
            let captions = rows(captions)?;
            let pairs = features.chunks_exact(seen.dim).zip(captions.chunks_exact(seen.dim));
            let cosine = |(image, text): (&[f32], &[f32])| -> f64 {
                image.iter().zip(text).map(|(image, text)| f64::from(image * text)).sum()
            };
            // CLIPScore (Hessel et al. 2021) clamps it at 0.
            seen.fits = Some(pairs.map(|pair| 100.0 * cosine(pair).max(0.0)).sum());
        }
        seen.features = features;
        Ok(Judgement { features: seen, answers })
    }
}

/// Returns the values of the properties that a run can judge: the attributes and the classes of its images.
fn values(run: &Path, config: &Config) -> Result<Vec<Attribute>, TrainError> {
    let classes = DataRecord::read(&RunFolder::open(run)?.data());
    let classes = classes.as_ref().and_then(DataRecord::classes).map(<[String]>::to_vec).unwrap_or_default();
    let mut values = attributes(config)?;
    values.push(Attribute::new("labels", classes));
    Ok(values)
}

/// The judgement of some images by an evaluator.
pub(super) struct Judgement {
    /// The features of the images.
    pub(super) features: ImageFeatures,
    /// The answers, if the evaluator gives some.
    pub(super) answers: Vec<JudgedAnswer>,
}

/// Compares an evaluator's answers with what images should show.
fn judged(answers: &[(String, Value)], truth: &Pictures) -> Result<Vec<JudgedAnswer>, TrainError> {
    let found = answers
        .iter()
        .map(|(name, logits)| Ok((name.clone(), logits.to_host()?.argmax(1)?.to_vec1::<u32>()?)))
        .collect::<Result<Vec<_>, TrainError>>()?;
    if let Some(scenes) = SceneAnswers::of(&found) {
        return scenes.judged(truth.captions());
    }
    let compared = |((name, found), (_, logits)): ((String, Vec<u32>), &(String, Value))| {
        let truth = truth.answers(&name)?;
        let mut confusion = ConfusionMatrix::new(logits.dims().get(1).copied().unwrap_or(0));
        let mut right = Vec::with_capacity(found.len());
        for (found, truth) in found.iter().zip(truth) {
            confusion.add(truth as usize, *found as usize, 1.0);
            right.push(Some(f64::from(u8::from(*found == truth))));
        }
        Ok(JudgedAnswer { right, name, confusion: Some(confusion) })
    };
    found.into_iter().zip(answers).map(compared).collect()
}

//! Metrics of generated images, by trained networks: the *evaluators* (`quality.judges`).
//!
//! An image is generated for each of some captions of the test split, from its own noise. An evaluator is the network of another run. A
//! classifier gives the accuracy of classes or attributes; the features of any evaluator give the Fréchet distance, precision and
//! recall; CLIP gives the similarity of images and captions. Evaluators are trained on the same data, so nothing is downloaded. Metrics of
//! real images are given next to those of generated ones, as an upper limit.

mod confusion;
mod evaluator;
mod judged_answer;
mod judged_grid;
mod pictures;
mod scenes;

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use phalanx_run::{RunError, write_aside};
use phalanx_tensor::{ComputeDevice, Context, Key, Session, Tape};

pub use confusion::ConfusedValues;

use confusion::confused;
use evaluator::LoadedEvaluator;
use judged_answer::JudgedSum;
use judged_grid::JudgedGrid;
use phalanx_quality::{frechet_deviation, frechet_distance, precision_and_recall, sharpness};
use pictures::{ImageFeatures, Pictures, drawn};

use super::data::Data;
use super::distributed::Distributed;
use super::error::TrainError;
use super::training::{AnyTraining, Drawing, DrawingKind, Task, planar};
use phalanx_config::Config;

/// The evaluators of a run, and the features of real images.
pub(super) struct GenerativeMetrics {
    evaluators: Vec<LoadedEvaluator>,
    real: Option<ImageSet>,
}

/// The quality of generated images.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Quality {
    /// Values by name.
    pub(super) measures: Vec<(String, f64)>,
    /// The values of properties that are confused, by evaluator.
    pub(super) confusions: Vec<ConfusedValues>,
}

impl Quality {
    /// The file of confused values in the folder of evaluations.
    const CONFUSIONS: &str = "confusion.json";

    /// Writes the confused values into a folder, which is made if it does not exist. Without any, no file is made, and those of a former
    /// evaluation are replaced.
    fn write_confusions(&self, folder: &Path) -> Result<(), TrainError> {
        let path = folder.join(Self::CONFUSIONS);
        if self.confusions.is_empty() && !path.exists() {
            return Ok(());
        }
        std::fs::create_dir_all(folder).map_err(RunError::io("make", folder))?;
        let json = serde_json::to_string_pretty(&self.confusions);
        let json = json.map_err(|error| TrainError::Setup(error.to_string()))?;
        Ok(write_aside(&path, json.as_bytes()).map_err(RunError::io("write", &path))?)
    }
}

/// The features of one set of images, those of all ranks.
struct ImageSet {
    /// The features by evaluator.
    features: Vec<ImageFeatures>,
    sharpness: f64,
    count: f64,
}

/// The images of one rank: features by evaluator, sums of sharpness, and the number of images.
struct RankPart {
    real: Vec<ImageFeatures>,
    made: Vec<ImageFeatures>,
    real_sharpness: f64,
    made_sharpness: f64,
    count: f64,
    grid: JudgedGrid,
}

impl RankPart {
    fn empty(evaluators: usize) -> Self {
        let features = vec![ImageFeatures::default(); evaluators];
        Self {
            real: features.clone(),
            made: features,
            real_sharpness: 0.0,
            made_sharpness: 0.0,
            count: 0.0,
            grid: JudgedGrid::default(),
        }
    }
}

impl GenerativeMetrics {
    /// Loads the evaluators of a task; `None` if it has none.
    pub(super) fn open(
        task: &Task,
        context: &Arc<Context>,
        device: &ComputeDevice,
    ) -> Result<Option<Self>, TrainError> {
        let evaluators: Vec<LoadedEvaluator> = task
            .evaluators()
            .iter()
            .map(|evaluator| LoadedEvaluator::open(evaluator, context, device))
            .collect::<Result<_, _>>()?;
        for (at, evaluator) in evaluators.iter().enumerate() {
            if evaluators[..at].iter().any(|other| other.name == evaluator.name) {
                let name = &evaluator.name;
                return Err(TrainError::Setup(format!(
                    "quality.judges has two runs of a `{name}`; name one"
                )));
            }
        }
        Ok((!evaluators.is_empty()).then_some(Self { evaluators, real: None }))
    }

    /// Checks that a training generates images that evaluators can measure.
    pub(super) fn check_draws(training: &dyn AnyTraining, kind: &str) -> Result<(), TrainError> {
        if training.image_source().is_some() {
            return Ok(());
        }
        Err(TrainError::Setup(format!("quality.judges are given, but a `{kind}` draws no pictures")))
    }

    /// Generates images for captions of the test split, each rank its part, and measures them. The first of
    /// rank 0 are written into `folder`, if there is one, with what they do not show. All ranks call this together, with gathered
    /// parameters.
    pub(super) fn measure(
        &mut self,
        training: &dyn AnyTraining,
        data: &Data,
        distributed: &Distributed,
        session: &Session,
        config: &Config,
        folder: Option<&Path>,
    ) -> Result<Quality, TrainError> {
        let mut part = self.measure_part(training, data, distributed, session, config)?;
        if let Some(folder) = folder.filter(|_| distributed.rank() == 0) {
            part.grid.write(folder)?;
        }
        if distributed.repeats_results() {
            // Another rank contributes the same images.
            part = RankPart::empty(self.evaluators.len());
        }
        let mut sums = [part.real_sharpness, part.made_sharpness, part.count];
        distributed.exchange().sum(&mut sums)?;
        let [real_sharpness, made_sharpness, count] = sums;
        if count < 2.0 {
            return Err(TrainError::Setup(format!(
                "quality is measured on {count} pictures; it takes two at least"
            )));
        }
        if self.real.is_none() {
            let features = Self::gather(part.real, distributed)?;
            self.real = Some(ImageSet { features, sharpness: real_sharpness, count });
        }
        let features = Self::gather(part.made, distributed)?;
        let made = ImageSet { features, sharpness: made_sharpness, count };
        let Some(real) = &self.real else { return Ok(Quality::default()) };
        let mut confusions = Vec::new();
        let mut measures = vec![
            ("drawn_sharpness".to_owned(), made.sharpness / made.count),
            ("real_sharpness".to_owned(), real.sharpness / real.count),
        ];
        for (evaluator, (real, made)) in self.evaluators.iter().zip(real.features.iter().zip(&made.features))
        {
            measures.extend(compare(&evaluator.name, real, made, count, config.quality.neighbours)?);
            confusions.extend(confused(evaluator, real, made));
        }
        let quality = Quality { measures, confusions };
        if let Some(folder) = folder.filter(|_| distributed.rank() == 0) {
            quality.write_confusions(folder)?;
        }
        Ok(quality)
    }

    /// Generates and measures this rank's part of the images. Real images are measured once in a run.
    fn measure_part(
        &self,
        training: &dyn AnyTraining,
        data: &Data,
        distributed: &Distributed,
        session: &Session,
        config: &Config,
    ) -> Result<RankPart, TrainError> {
        let own = data.test_share(distributed, config.quality.samples);
        let mut part = RankPart::empty(self.evaluators.len());
        let key = Key::new(config.train.seed).stream("quality");
        for start in own.clone().step_by(config.quality.batch.max(1)) {
            let positions = start..(start + config.quality.batch.max(1)).min(own.end);
            let batch = data.test_samples(config.quality.samples, positions.clone())?;
            let pictures = Pictures::new(batch, &config.data.normalise)?;
            let made = match restored(training, session, &pictures)? {
                Some(restored) => restored,
                None => draw_each(training, session, key, pictures.captions(), positions)?,
            };
            part.real_sharpness += pictures.images().iter().map(sharpness).sum::<f64>();
            part.made_sharpness += made.iter().map(sharpness).sum::<f64>();
            part.count += made.len() as f64;
            let mut answers = Vec::new();
            for (at, evaluator) in self.evaluators.iter().enumerate() {
                if self.real.is_none() {
                    part.real[at].add(evaluator.judge(pictures.images(), &pictures)?.features);
                }
                let judgement = evaluator.judge(&made, &pictures)?;
                part.made[at].add(judgement.features);
                answers.extend(judgement.answers);
            }
            if !answers.is_empty() {
                part.grid.add(&made, pictures.captions(), &answers);
            }
        }
        Ok(part)
    }

    /// Gathers the features of all ranks, in the order of ranks.
    fn gather(own: Vec<ImageFeatures>, distributed: &Distributed) -> Result<Vec<ImageFeatures>, TrainError> {
        let all = own.into_iter().map(|seen| {
            let said = serde_json::to_string(&seen).map_err(|error| TrainError::Setup(error.to_string()))?;
            let mut all = ImageFeatures::default();
            for text in distributed.exchange().gather_text(&said)? {
                let seen =
                    serde_json::from_str(&text).map_err(|error| TrainError::Setup(error.to_string()))?;
                all.add(seen);
            }
            Ok(ImageFeatures { features: distributed.exchange().gather_numbers(&seen.features)?, ..all })
        });
        all.collect()
    }
}

/// Reconstructs images, if the training does so.
fn restored(
    training: &dyn AnyTraining,
    session: &Session,
    pictures: &Pictures,
) -> Result<Option<Vec<image::RgbImage>>, TrainError> {
    let tape = Tape::forward_only(session.clone());
    let Some(restored) = training.restore(&tape, &pictures.values(&session.device)?)? else {
        return Ok(None);
    };
    let rows = planar(&restored)?;
    rows.iter().map(|row| drawn(row)).collect::<Result<_, _>>().map(Some)
}

/// Generates an image for each caption, from noise that depends on the caption's position in the test split.
fn draw_each(
    training: &dyn AnyTraining,
    session: &Session,
    key: Key,
    captions: &[String],
    positions: Range<usize>,
) -> Result<Vec<image::RgbImage>, TrainError> {
    let tape = Tape::forward_only(Session { key, ..session.clone() });
    let kind = DrawingKind::Each { first: positions.start as u64 };
    let drawing = Drawing { prompts: captions.to_vec(), columns: 1, kind };
    let Some(pictures) = training.draw(&tape, &drawing)? else {
        let problem = "quality is measured on images, and this training generates none";
        return Err(TrainError::Setup(problem.to_owned()));
    };
    pictures.iter().map(|picture| drawn(picture)).collect()
}

/// Computes the metrics of one evaluator.
fn compare(
    evaluator: &str,
    real: &ImageFeatures,
    made: &ImageFeatures,
    count: f64,
    neighbours: usize,
) -> Result<Vec<(String, f64)>, TrainError> {
    let mut measures = Vec::new();
    for (made, real) in made.judged.iter().zip(&real.judged) {
        // The array `labels` has classes.
        let name = if made.name == "labels" { "class" } else { &made.name };
        let of = |kind: &str, sum: &JudgedSum| Some((format!("{kind}_{name}_accuracy"), sum.accuracy()?));
        measures.extend([of("drawn", made), of("real", real)].into_iter().flatten());
    }
    if let Some((made, real)) = made.fits.zip(real.fits) {
        measures.push((format!("drawn_{evaluator}_score"), made / count));
        measures.push((format!("real_{evaluator}_score"), real / count));
    }
    let (real, made) = (real.rows()?, made.rows()?);
    measures.push((format!("{evaluator}_frechet_distance"), frechet_distance(real, made)?));
    let deviation = frechet_deviation(real, made)?;
    measures.extend(deviation.map(|deviation| (format!("{evaluator}_frechet_deviation"), deviation)));
    let found = precision_and_recall(real, made, neighbours)?;
    measures.push((format!("{evaluator}_precision"), found.precision));
    measures.push((format!("{evaluator}_recall"), found.recall));
    Ok(measures)
}

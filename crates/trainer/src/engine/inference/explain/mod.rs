//! The use of captions by a text-to-image model: the attributes that can be read from its encoded captions, the levels of noise at
//! which they count, and the places where it looks for each word.

mod attributes;
mod levels;
mod maps;
mod samples;

pub use maps::{ReadPicture, WordMap};

use candle_core::DType;
use phalanx_data::CaptionedImage;
use phalanx_run::{CaptionUse, ReadFeatures};
use phalanx_tensor::{Session, Tape};

use super::TrainedModel;
use super::model::InferenceModel;
use crate::engine::TrainError;
use crate::engine::data::Data;
use crate::engine::distributed::Distributed;
use crate::engine::training::{CaptionReader, Task};
use attributes::{CaptionAttribute, attributes};
use phalanx_config::Config;
use phalanx_datasets::OpenedSplits;
use phalanx_quality::{LinearReader, QualityError, Rows, chance};
use samples::HeldOut;

/// The number of training captions that linear readers are fitted to, at most.
const FITTED: usize = 2048;

/// The captions that are encoded together.
const TOGETHER: usize = 64;

/// The size of an explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExplainOptions {
    /// The number of held-out samples.
    pub samples: usize,
    /// The number of images whose attention is shown.
    pub pictures: usize,
}

/// The use of captions by a model, with pictures.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The tables.
    pub captions: CaptionUse,
    /// Images with the attention to each word; empty if the model does not attend to words.
    pub pictures: Vec<ReadPicture>,
}

/// Explains what a trained model makes of captions of the configured images.
///
/// # Errors
/// If the weights do not fit, the model reads no captions, or the images have neither attributes nor classes or no test split.
pub fn explain_model(
    task: &Task,
    model: &TrainedModel,
    config: &Config,
    options: ExplainOptions,
) -> Result<Explanation, TrainError> {
    let InferenceModel { built, session, .. } = InferenceModel::open(task, config, model)?;
    let none = || {
        TrainError::Setup(format!(
            "a `{}` cannot be explained: it reads no captions to generate images from",
            config.model.kind
        ))
    };
    let reader = built.training.caption_reader().ok_or_else(none)?;
    // Captions that tell places state no relations, which are looked for.
    let mut stating = config.clone();
    stating.data.placed_captions = 0.0;
    stating.data.partly_placed_captions = 0.0;
    let config = &stating;
    let splits = OpenedSplits::open(config)?;
    let data = Data::open(config, task.open_data(config), &Distributed::none(), &session.device, 0)?;
    let held_out = HeldOut::read(&data, &session, config, options.samples)?;
    let count = splits.train.len().min(FITTED);
    let fitted = (0..count).map(|index| splits.train.without_pixels(index, 0));
    let fitted: Vec<CaptionedImage> = fitted.collect::<Result<_, _>>()?;
    let known = attributes(config, &*splits.train, &fitted)?;
    let names: Vec<&str> =
        splits.train.attributes().iter().map(|attribute| attribute.name.as_str()).collect();
    let truth = attributes(config, &*splits.train, &held_out.described(&names)?)?;
    let captions = (texts(fitted), held_out.captions());
    let mut features = read_features(reader, &session, (&captions.0, &known), (&captions.1, &truth))?;
    let pairs = known.iter().zip(&truth);
    let accuracy = pairs.map(|(known, truth)| chance(&known.classes, &truth.classes)).collect();
    features.push(ReadFeatures { features: "chance".to_owned(), width: 0, accuracy });
    let captions = CaptionUse {
        step: model.step,
        samples: captions.1.len(),
        features,
        levels: levels::measure(reader, &held_out, &truth)?,
        attributes: truth.into_iter().map(|attribute| attribute.name).collect(),
    };
    Ok(Explanation { captions, pictures: maps::maps(reader, &held_out, options.pictures)? })
}

fn texts(samples: Vec<CaptionedImage>) -> Vec<String> {
    samples.into_iter().map(|sample| sample.caption).collect()
}

/// The features of captions: their name, and rows one after the other.
struct Encoded {
    name: String,
    rows: Vec<f32>,
}

fn encoded(
    reader: &dyn CaptionReader,
    session: &Session,
    captions: &[String],
) -> Result<Vec<Encoded>, TrainError> {
    let mut all: Vec<Encoded> = Vec::new();
    for some in captions.chunks(TOGETHER) {
        let tape = Tape::forward_only(session.clone());
        for (at, features) in reader.features(&tape, some)?.into_iter().enumerate() {
            let rows = features.rows.to_host()?.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
            match all.get_mut(at) {
                Some(known) => known.rows.extend(rows),
                None => all.push(Encoded { name: features.name, rows }),
            }
        }
    }
    Ok(all)
}

/// Fits linear readers to the features of captions with known attributes, and reads those of held-out ones.
fn read_features(
    reader: &dyn CaptionReader,
    session: &Session,
    (captions, known): (&[String], &[CaptionAttribute]),
    (held_out, truth): (&[String], &[CaptionAttribute]),
) -> Result<Vec<ReadFeatures>, TrainError> {
    let (fitted, read) = (encoded(reader, session, captions)?, encoded(reader, session, held_out)?);
    let of = |(fitted, read): (Encoded, Encoded)| {
        let width = fitted.rows.len() / captions.len().max(1);
        let linear = LinearReader::new(Rows::new(&fitted.rows, width)?).map_err(|error| match error {
            QualityError::NotFinite => {
                TrainError::Setup(format!("the {} of captions are not finite", fitted.name))
            }
            other => other.into(),
        })?;
        let rows = linear.read(Rows::new(&read.rows, width)?)?;
        let pairs = known.iter().zip(truth);
        let accuracy = pairs.map(|(known, truth)| linear.accuracy(&known.classes, &rows, &truth.classes));
        let accuracy = accuracy.collect::<Result<_, _>>()?;
        Ok(ReadFeatures { features: fitted.name, width, accuracy })
    };
    fitted.into_iter().zip(read).map(of).collect()
}

//! A trained network that judges pictures: the one of another run.

use std::sync::Arc;

use candle_core::DType;
use image::RgbImage;
use phalanx_data::transform::Transform;
use phalanx_tensor::{ComputeDevice, Context, Session, Tape, Value};

use super::pictures::{Pictures, Seen};
use crate::engine::checkpoint::newest_checkpoint;
use crate::engine::data::{Batch, picture_transform};
use crate::engine::error::TrainError;
use crate::engine::training::{Built, Judge, Step, Weights};
use phalanx_run::RunFolder;

/// A judge with its network in memory.
pub(super) struct OpenJudge {
    /// What its measures are called by.
    pub(super) name: String,
    built: Built,
    prepare: Transform,
    session: Session,
}

impl OpenJudge {
    /// Loads the network of a judge, which sees where the run computes.
    pub(super) fn open(
        judge: &Judge,
        context: &Arc<Context>,
        device: &ComputeDevice,
    ) -> Result<Self, TrainError> {
        let Judge { run, task, config } = judge;
        let name = config.model.kind.clone();
        let open = || -> Result<Self, TrainError> {
            let checkpoint = newest_checkpoint(&RunFolder::open(run)?)?;
            let mut built = task.build(config, None, Weights::Here, device)?;
            built.load_for_use(&checkpoint)?;
            let listener = built.ready(config)?;
            let (prepare, session) = (
                picture_transform(config)?,
                Session { device: device.clone(), listener, ..Session::evaluation(context.clone()) },
            );
            Ok(Self { name: name.clone(), built, prepare, session })
        };
        open().map_err(|error| TrainError::Setup(format!("judge {} (`{name}`): {error}", run.display())))
    }

    /// What it sees in pictures of these captions. `pictures` are as they would be saved, and are resized and normalised as its own test
    /// images are; `truth` has the true answers.
    pub(super) fn see(&self, images: &[RgbImage], truth: &Pictures) -> Result<Seen, TrainError> {
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
        let judged = self.built.training.judge(&Step::new(&tape, &batch, 1.0, 0, tape.session().key))?;
        let Some(judged) = judged else {
            return Err(TrainError::Setup(format!("a `{}` judges no pictures", self.name)));
        };
        let rows = |value: &Value| -> Result<Vec<f32>, TrainError> {
            Ok(value.to_host()?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?)
        };
        let features = rows(&judged.features)?;
        let mut seen = Seen { dim: features.len() / images.len().max(1), ..Seen::default() };
        for (name, logits) in &judged.answers {
            let truth = truth.answers(name)?;
            let found = logits.to_host()?.argmax(1)?.to_vec1::<u32>()?;
            let right = found.iter().zip(truth).filter(|(found, truth)| **found == *truth).count();
            seen.right.push((name.clone(), right as f64));
        }
        if let Some(captions) = &judged.captions {
            let captions = rows(captions)?;
            let pairs = features.chunks_exact(seen.dim).zip(captions.chunks_exact(seen.dim));
            let cosine = |(image, text): (&[f32], &[f32])| -> f64 {
                image.iter().zip(text).map(|(image, text)| f64::from(image * text)).sum()
            };
            // As CLIPScore cuts it off (Hessel et al. 2021).
            seen.fits = Some(pairs.map(|pair| 100.0 * cosine(pair).max(0.0)).sum());
        }
        seen.features = features;
        Ok(seen)
    }
}

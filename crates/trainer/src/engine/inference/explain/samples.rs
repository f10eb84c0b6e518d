//! Held-out samples with their captions.

use image::RgbImage;
use phalanx_data::CaptionedImage;
use phalanx_tensor::{Session, Tape};

use crate::engine::TrainError;
use crate::engine::data::{Data, TestBatch};
use crate::engine::distributed::Distributed;
use crate::engine::inference::Picture;
use crate::engine::training::{CaptionReader, StepInput, TokenAttention};
use phalanx_batches::Batch;
use phalanx_config::Config;

/// The batches of the held-out samples that are explained.
pub(super) struct HeldOut {
    session: Session,
    batches: Vec<Batch>,
    config: Config,
}

/// The first samples.
pub(super) struct FirstSamples {
    batch: Batch,
    pub(super) captions: Vec<String>,
    /// Height and width.
    pub(super) size: usize,
    /// Each `[3, size, size]`, planar in [-1, 1].
    pub(super) pixels: Vec<Vec<f32>>,
}

impl HeldOut {
    /// Reads `limit` samples of the test split.
    pub(super) fn read(
        data: &Data,
        session: &Session,
        config: &Config,
        limit: usize,
    ) -> Result<Self, TrainError> {
        let batch = if config.eval.batch > 0 { config.eval.batch } else { config.train.global_batch };
        let alone = Distributed::none();
        let batches = data.test_batches(&alone, limit, batch)?;
        let batches =
            batches.map(|batch| batch.map(|TestBatch { batch, .. }| batch)).collect::<Result<_, _>>()?;
        Ok(Self { session: session.clone(), batches, config: config.clone() })
    }

    /// The captions of all samples.
    pub(super) fn captions(&self) -> Vec<String> {
        self.batches.iter().flat_map(|batch| batch.texts("captions").unwrap_or_default()).cloned().collect()
    }

    /// Describes the samples by their labels, captions and these attributes.
    pub(super) fn described(&self, attributes: &[&str]) -> Result<Vec<CaptionedImage>, TrainError> {
        let mut all = Vec::new();
        for batch in &self.batches {
            let labels = batch.classes("labels")?;
            let values: Vec<Vec<u32>> =
                attributes.iter().map(|name| batch.classes(name)).collect::<Result<_, _>>()?;
            for (row, (label, caption)) in labels.into_iter().zip(batch.texts("captions")?).enumerate() {
                let attributes = values.iter().map(|of_batch| of_batch[row]).collect();
                let described = CaptionedImage::new(RgbImage::default(), label, caption.clone());
                all.push(CaptionedImage { attributes, ..described });
            }
        }
        Ok(all)
    }

    /// Returns the error of each sample under these captions; `None` if the model has no levels.
    pub(super) fn errors(
        &self,
        reader: &dyn CaptionReader,
        captions: &[String],
        level: f64,
    ) -> Result<Option<Vec<f64>>, TrainError> {
        let mut all = Vec::with_capacity(captions.len());
        let mut rest = captions;
        for batch in &self.batches {
            let (of_batch, others) = rest.split_at(batch.len());
            rest = others;
            let tape = Tape::forward_only(self.session.clone());
            let step = StepInput::new(&tape, batch, 1.0, 0, self.session.key);
            let Some(errors) = reader.errors(&step, of_batch, level)? else { return Ok(None) };
            all.extend(errors);
        }
        Ok(Some(all))
    }

    /// Returns the first samples, at most those of a batch; `None` without samples.
    pub(super) fn first(&self, count: usize) -> Result<Option<FirstSamples>, TrainError> {
        let Some(batch) = self.batches.first().filter(|_| count > 0) else { return Ok(None) };
        let batch = batch.first(count.min(batch.len()))?;
        let (size, normalise) = (self.config.model.image_size, self.config.data.normalise);
        let pixels = (0..batch.len()).map(|row| Ok(Picture::of_batch(&batch, row, size, normalise)?.pixels));
        let pixels = pixels.collect::<Result<_, TrainError>>()?;
        Ok(Some(FirstSamples { captions: batch.texts("captions")?.to_vec(), size, pixels, batch }))
    }

    /// Returns the attention of each layer to the captions of the first samples.
    pub(super) fn attention(
        &self,
        reader: &dyn CaptionReader,
        samples: &FirstSamples,
        level: f64,
    ) -> Result<Vec<TokenAttention>, TrainError> {
        let tape = Tape::forward_only(self.session.clone());
        reader.attention(&StepInput::new(&tape, &samples.batch, 1.0, 0, self.session.key), level)
    }
}

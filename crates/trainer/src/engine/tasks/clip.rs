//! Contrastive: a text encoder and an image tower from scratch.

use candle_core::DType;
use phalanx_models::{Clip, ImageTowerConfig};
use phalanx_tensor::loss::Over;
use phalanx_tensor::{ParamStore, StoreBuilder, Tape, Value};

use super::number;
use super::task::{Outcome, Task};
use super::text::Texts;
use crate::config::Config;
use crate::engine::TrainError;
use crate::engine::data::Batch;

/// CLIP with small towers.
///
/// Each rank contrasts its own part of the batch: features are not gathered over ranks, so a rank's pictures are
/// told apart from `global_batch / ranks` texts, not from all.
pub(super) struct Contrastive {
    name: String,
    model: Clip,
    store: ParamStore,
    texts: Texts,
}

impl Contrastive {
    pub(super) fn new(config: &Config, builder: StoreBuilder, texts: Texts) -> Result<Self, TrainError> {
        let text = texts.encoder().clone();
        let image = ImageTowerConfig { widths: config.model.widths.clone() };
        let name = format!(
            "CLIP with a text encoder of {} x {} and an image tower of {:?}",
            text.layers, text.width, config.model.widths
        );
        let model = Clip::new(&builder.root(), &text, &image)?;
        let store = builder.build()?;
        texts.load_weights(&store, "")?;
        Ok(Self { name, model, store, texts })
    }

    /// The weights of the pictures that are nearest to their own text among the batch's. Texts that are equal count as one.
    fn count_matched(&self, tape: &Tape, batch: &Batch) -> Result<f64, TrainError> {
        let ids = self.texts.encode(batch.texts("captions")?)?;
        let out = self.model.forward(tape, &Value::constant(batch.tensor("images")?.clone()), &ids)?;
        let (image, text) =
            (out.image.tensor()?.to_dtype(DType::F32)?, out.text.tensor()?.to_dtype(DType::F32)?);
        let similarity = image.matmul(&text.t()?)?;
        let best = similarity.argmax(1)?.to_vec1::<u32>()?;
        let captions = batch.texts("captions")?;
        let rows = best.iter().zip(captions).zip(batch.weights());
        let matched = rows.filter(|((best, own), _)| captions[**best as usize] == **own);
        Ok(matched.map(|(_, weight)| f64::from(*weight)).sum())
    }
}

impl Task for Contrastive {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn store(&self) -> &ParamStore {
        &self.store
    }

    fn measures(&self) -> &'static [&'static str] {
        &[]
    }

    fn loss(&self, tape: &Tape, batch: &Batch, over: Over, _step: u64) -> Result<Outcome, TrainError> {
        let ids = self.texts.encode(batch.texts("captions")?)?;
        let images = Value::constant(batch.tensor("images")?.clone());
        let loss = self.model.loss(tape, &images, &ids, batch.even(over.divisor(batch.len()))?)?;
        Ok(Outcome { loss, measures: Vec::new() })
    }

    fn evaluated(&self) -> &'static [&'static str] {
        &["loss", "accuracy"]
    }

    fn evaluate(&self, tape: &Tape, batch: &Batch) -> Result<Vec<f64>, TrainError> {
        let ids = self.texts.encode(batch.texts("captions")?)?;
        let images = Value::constant(batch.tensor("images")?.clone());
        let loss = number(&self.model.loss(tape, &images, &ids, batch.even(1.0)?)?)?;
        Ok(vec![loss, self.count_matched(tape, batch)?])
    }
}

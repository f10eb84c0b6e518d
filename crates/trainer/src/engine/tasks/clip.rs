//! Contrastive: a text encoder and an image tower from scratch.

use candle_core::{DType, Tensor};
use phalanx_models::{Clip, ClipOutput, ImageTowerConfig};
use phalanx_tensor::group::gather_counts;
use phalanx_tensor::loss::Over;
use phalanx_tensor::{ParamStore, StoreBuilder, Tape, TensorError, Value, ops};

use super::number;
use super::task::{Outcome, Task};
use super::text::Texts;
use crate::config::Config;
use crate::engine::TrainError;
use crate::engine::data::Batch;

/// CLIP with small towers. A picture is told apart from the texts of the whole micro-batch, whichever ranks have them.
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

    /// How many of this rank's pictures are nearest to their own text among the batch's, those of all ranks. Texts that the
    /// encoder cannot tell apart count as one.
    fn count_matched(&self, tape: &Tape, out: &ClipOutput, ids: &Tensor) -> Result<f64, TrainError> {
        let image = out.image.tensor()?.to_dtype(DType::F32)?;
        let text = Value::constant(out.text.tensor()?.to_dtype(DType::F32)?);
        // f32 holds the ids of tokens exactly.
        let own = Value::constant(ids.to_dtype(DType::F32)?);
        let (text, all) = match &tape.session().batch_group {
            Some(group) => {
                let counts = gather_counts(group.as_ref(), ids.dim(0)?);
                let counts = counts.map_err(|source| TensorError::Hook { op: "count_matched", source })?;
                let gather = |value: &Value| ops::all_gather(tape, value, 0, &counts, group);
                (gather(&text)?, gather(&own)?)
            }
            None => (text, own.clone()),
        };
        let similarity = image.matmul(&text.tensor()?.t()?)?;
        let best = similarity.argmax(1)?.to_vec1::<u32>()?;
        let (own, all) = (own.tensor()?.to_vec2::<f32>()?, all.tensor()?.to_vec2::<f32>()?);
        Ok(best.iter().zip(own).filter(|(best, own)| all[**best as usize] == *own).count() as f64)
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
        let ids = self.texts.encode(&batch.captions)?;
        let out = self.model.forward(tape, &Value::constant(batch.images.clone()), &ids)?;
        Ok(Outcome { loss: out.loss(tape, over)?, measures: Vec::new() })
    }

    fn evaluated(&self) -> &'static [&'static str] {
        &["loss", "accuracy"]
    }

    fn evaluate(&self, tape: &Tape, batch: &Batch) -> Result<Vec<f64>, TrainError> {
        let ids = self.texts.encode(&batch.captions)?;
        let out = self.model.forward(tape, &Value::constant(batch.images.clone()), &ids)?;
        let loss = number(&out.loss(tape, Over::Count(1))?)?;
        Ok(vec![loss, self.count_matched(tape, &out, &ids)?])
    }
}

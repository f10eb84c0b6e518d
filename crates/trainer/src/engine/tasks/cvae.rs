//! Text to image: the conditional variational autoencoder with its text encoder.

use candle_core::{DType, Device, Tensor};
use phalanx_models::{ClipTextConfig, CvaeConfig, KlWarmup, L1Sharpening, TextToImage};
use phalanx_tensor::loss::Over;
use phalanx_tensor::{ParamStore, StoreBuilder, Tape, Value};

use super::number;
use super::task::{Outcome, Task};
use super::text::Texts;
use crate::config::Config;
use crate::engine::TrainError;
use crate::engine::data::Batch;

/// The autoencoder.
pub(super) struct Autoencoder {
    name: String,
    model: TextToImage,
    store: ParamStore,
    texts: Texts,
    kl: KlWarmup,
    l1: L1Sharpening,
    latent: usize,
}

impl Autoencoder {
    pub(super) fn new(config: &Config, builder: StoreBuilder, texts: Texts) -> Result<Self, TrainError> {
        let model = &config.model;
        let text = texts.encoder().clone();
        let cvae = CvaeConfig {
            image_size: model.image_size,
            widths: model.widths.clone(),
            latent: model.latent,
            text_dim: text.embed,
        };
        let freeze = !model.text_weights.is_empty();
        let network = TextToImage::new(&builder.root(), &text, &cvae, freeze)?;
        let store = builder.build()?;
        texts.load_weights(&store, "text.")?;
        let ClipTextConfig { layers, width, .. } = text;
        let name = format!(
            "text-conditioned autoencoder at {0}x{0}, latent {1}, text encoder {layers} x {width}",
            model.image_size, model.latent
        );
        let kl = KlWarmup { weight: config.train.kl_weight, steps: config.train.kl_warmup_steps };
        let l1 = L1Sharpening { smooth: config.train.l1_smooth, steps: config.train.l1_smooth_steps };
        Ok(Self { name, model: network, store, texts, kl, l1, latent: model.latent })
    }
}

impl Task for Autoencoder {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn store(&self) -> &ParamStore {
        &self.store
    }

    fn measures(&self) -> &'static [&'static str] {
        &["l1", "kl"]
    }

    fn loss(&self, tape: &Tape, batch: &Batch, over: Over, step: u64) -> Result<Outcome, TrainError> {
        let ids = self.texts.encode(&batch.captions)?;
        let images = Value::constant(batch.images.clone());
        let out = self.model.forward(tape, &images, &ids)?;
        let parts = out.loss(tape, &images, (self.kl.at(step), self.l1.at(step)), over)?;
        let measures = vec![number(&parts.l1)?, number(&parts.kl)?];
        Ok(Outcome { loss: parts.total, measures })
    }

    fn evaluated(&self) -> &'static [&'static str] {
        &["loss", "l1", "kl"]
    }

    fn evaluate(&self, tape: &Tape, batch: &Batch) -> Result<Vec<f64>, TrainError> {
        let ids = self.texts.encode(&batch.captions)?;
        let images = Value::constant(batch.images.clone());
        let out = self.model.forward(tape, &images, &ids)?;
        let parts = out.loss(tape, &images, (self.kl.weight, self.l1.at(u64::MAX)), Over::Count(1))?;
        Ok(vec![number(&parts.total)?, number(&parts.l1)?, number(&parts.kl)?])
    }

    fn draws(&self) -> bool {
        true
    }

    fn sample(
        &self,
        tape: &Tape,
        prompts: &[String],
        columns: usize,
    ) -> Result<Option<Vec<Vec<f32>>>, TrainError> {
        // The same latent vectors in every row: what differs between rows is the text.
        let mut noise = vec![0.0; columns * self.latent];
        tape.session().key.normal(0, &mut noise);
        let noise: Vec<f32> = noise.into_iter().map(|value| value as f32).collect();
        let latent = Tensor::from_vec(noise, (columns, self.latent), &Device::Cpu)?;
        let mut pictures = Vec::with_capacity(prompts.len() * columns);
        for prompt in prompts {
            let ids = self.texts.encode(&vec![prompt.clone(); columns])?;
            let drawn =
                self.model.sample(tape, &ids, &latent)?.tensor()?.to_dtype(DType::F32)?.clamp(-1.0, 1.0)?;
            for picture in drawn.chunk(columns, 0)? {
                pictures.push(picture.flatten_all()?.to_vec1::<f32>()?);
            }
        }
        Ok(Some(pictures))
    }
}

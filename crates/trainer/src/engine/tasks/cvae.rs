//! Text to image: the conditional variational autoencoder with its text encoder.

use candle_core::{DType, Device, Tensor};
use phalanx_models::{ClipTextConfig, CvaeConfig, CvaeLoss, KlWarmup, L1Sharpening, TextToImage};
use phalanx_tensor::Tape;

use super::text::Texts;
use crate::engine::TrainError;
use crate::engine::training::{Loss, Setup, Step, Training, number};

/// The autoencoder.
pub(super) struct Autoencoder {
    model: TextToImage,
    texts: Texts,
    kl: KlWarmup,
    l1: L1Sharpening,
    latent: usize,
}

/// The configured autoencoder.
pub(super) fn autoencoder(setup: &mut Setup<'_>) -> Result<Training<Autoencoder>, TrainError> {
    let config = setup.config();
    let model = &config.model;
    let texts = Texts::new(model)?;
    let text = texts.encoder().clone();
    let cvae = CvaeConfig {
        image_size: model.image_size,
        widths: model.widths.clone(),
        latent: model.latent,
        text_dim: text.embed,
    };
    let freeze = !model.text_weights.is_empty();
    let network = texts.register(setup, "text.", |scope| TextToImage::new(scope, &text, &cvae, freeze))?;
    let ClipTextConfig { layers, width, .. } = text;
    let name = format!(
        "text-conditioned autoencoder at {0}x{0}, latent {1}, text encoder {layers} x {width}",
        model.image_size, model.latent
    );
    let kl = KlWarmup { weight: config.train.kl_weight, steps: config.train.kl_warmup_steps };
    let l1 = L1Sharpening { smooth: config.train.l1_smooth, steps: config.train.l1_smooth_steps };
    let autoencoder = Autoencoder { model: network, texts, kl, l1, latent: model.latent };
    Ok(Training::new(name, autoencoder)
        .loss(Autoencoder::loss)
        .measures(["l1", "kl"])
        .evaluate(["loss", "l1", "kl"], Autoencoder::evaluate)
        .sample(Autoencoder::sample))
}

impl Autoencoder {
    /// The loss with a weight of the divergence and a width of the quadratic part of L1.
    fn parts(&self, step: &Step<'_>, weights: (f64, f64)) -> Result<CvaeLoss, TrainError> {
        let ids = self.texts.encode(step.texts("captions")?)?;
        let images = step.value("images")?;
        Ok(self.model.forward(step.tape, &images, &ids)?.loss(step.tape, &images, weights, step.over()?)?)
    }

    fn loss(&self, step: &Step<'_>) -> Result<Loss, TrainError> {
        let parts = self.parts(step, (self.kl.at(step.number), self.l1.at(step.number)))?;
        Ok(Loss::new(parts.total, [number(&parts.l1)?, number(&parts.kl)?]))
    }

    /// With the weights that the run ends with, whenever it is.
    fn evaluate(&self, step: &Step<'_>) -> Result<[f64; 3], TrainError> {
        let parts = self.parts(step, (self.kl.weight, self.l1.at(u64::MAX)))?;
        Ok([number(&parts.total)?, number(&parts.l1)?, number(&parts.kl)?])
    }

    fn sample(&self, tape: &Tape, prompts: &[String], columns: usize) -> Result<Vec<Vec<f32>>, TrainError> {
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
        Ok(pictures)
    }
}

//! Text to image: the conditional variational autoencoder with its text encoder.

use candle_core::{DType, Device, Tensor};
use phalanx_data::transform::Normalise;
use phalanx_models::{ClipTextConfig, CvaeConfig, CvaeLoss, KlWarmup, L1Sharpening, TextToImage};
use phalanx_tensor::Tape;

use super::text::{TextSettings, Texts};
use phalanx_config::{Config, Relations};
use phalanx_trainer::engine::{
    CaptionFeatures, CaptionReader, Loss, Measure, Setup, StepInput, TaskSpec, TrainError, Training, number,
};

/// The autoencoder.
pub(super) struct Autoencoder {
    model: TextToImage,
    texts: Texts,
    kl: KlWarmup,
    l1: L1Sharpening,
    latent: usize,
}

phalanx_config::settings! {
    /// The settings of the autoencoder.
    pub(super) struct CvaeSettings {
        /// Numbers in the latent code.
        latent: usize = 64;
        /// Channels after each halving of the image, from the image inwards.
        widths: Vec<usize> = vec![32, 64, 128];
        /// Weight of the KL term after its warm-up, relative to an L1 term that is a mean over pixels.
        kl_weight: f64 = 0.0005;
        /// Steps over which the weight of the KL term rises from 0.
        kl_warmup_steps: u64 = 200;
        /// The L1 loss is quadratic for errors below this (pixels are in -1 to 1); 0 = plain L1.
        l1_smooth: f64 = 0.0;
        /// Steps over which `model.l1_smooth` falls to 0; 0 = it stays.
        l1_smooth_steps: u64 = 0;
        flatten text: TextSettings;
    }
}

/// The text-conditioned variational autoencoder.
pub(super) fn spec() -> TaskSpec<CvaeSettings> {
    let about = "Text-to-image: a text-conditioned variational autoencoder";
    TaskSpec::new("cvae", about, autoencoder).validate(check)
}

fn check(settings: &CvaeSettings, config: &Config, relations: &mut Relations<'_>) {
    relations.positive("model.latent", settings.latent as u64);
    relations.not_negative("model.kl_weight", settings.kl_weight);
    relations.not_negative("model.l1_smooth", settings.l1_smooth);
    let normalise = config.data.normalise;
    relations.require(
        normalise == Normalise::SYMMETRIC,
        "data.normalise",
        format!("model.kind {} draws from -1 to 1, but data.normalise is {normalise}", config.model.kind),
    );
    settings.text.check(relations);
    let (size, widths) = (config.model.image_size, &settings.widths);
    let halvings = widths.len();
    let factor = 1_usize.checked_shl(halvings as u32).unwrap_or(usize::MAX);
    relations.require(
        halvings > 0 && widths.iter().all(|width| *width > 0),
        "model.widths",
        format!("model.widths = {widths:?} are not one or more positive numbers"),
    );
    relations.require(
        size.is_multiple_of(factor),
        "model.image_size",
        format!("model.image_size {size} is not a multiple of {factor}, as {halvings} model.widths halve it"),
    );
}

fn autoencoder(setup: &mut Setup<'_>, settings: &CvaeSettings) -> Result<Training<Autoencoder>, TrainError> {
    let texts = Texts::new(&settings.text)?;
    let text = texts.encoder().clone();
    let image_size = setup.config().model.image_size;
    let (widths, latent) = (settings.widths.clone(), settings.latent);
    let cvae = CvaeConfig { image_size, widths, latent, text_dim: text.embed };
    let freeze = !settings.text.text_weights.is_empty();
    setup.cut_by(|| Ok(text.tensor_plan()?.and(cvae.tensor_plan()?)))?;
    let network = texts.register(setup, "text.", |scope| TextToImage::new(scope, &text, &cvae, freeze))?;
    let ClipTextConfig { layers, width, .. } = text;
    let name = format!(
        "text-conditioned autoencoder at {image_size}x{image_size}, latent {latent}, text encoder {layers} x {width}"
    );
    let kl = KlWarmup { weight: settings.kl_weight, steps: settings.kl_warmup_steps };
    let l1 = L1Sharpening { smooth: settings.l1_smooth, steps: settings.l1_smooth_steps };
    Ok(Training::new(name, Autoencoder { model: network, texts, kl, l1, latent })
        .loss(Autoencoder::loss)
        .measures(["l1", "kl"])
        .evaluate(["loss", "l1", "kl"], Autoencoder::evaluate)
        // The loss changes its meaning while `model.l1_smooth` falls; the error does not.
        .headline("l1")
        .sample(Autoencoder::sample)
        .reads_captions())
}

impl CaptionReader for Autoencoder {
    fn features(&self, tape: &Tape, captions: &[String]) -> Result<Vec<CaptionFeatures>, TrainError> {
        let whole = self.model.text().forward(tape, &self.texts.encode(captions)?)?.pooled;
        Ok(vec![CaptionFeatures { name: "whole caption".to_owned(), rows: whole }])
    }
}

impl Autoencoder {
    /// The loss with a weight of the divergence and a width of the quadratic part of L1.
    fn parts(&self, step: &StepInput<'_>, weights: (f64, f64)) -> Result<CvaeLoss, TrainError> {
        let ids = self.texts.encode(step.texts("captions")?)?;
        let images = step.value("images")?;
        Ok(self.model.forward(step.tape, &images, &ids)?.loss(step.tape, &images, weights, step.over()?)?)
    }

    fn loss(&self, step: &StepInput<'_>) -> Result<Loss, TrainError> {
        let parts = self.parts(step, (self.kl.at(step.number), self.l1.at(step.number)))?;
        self.texts.warn(step);
        Ok(Loss::new(parts.total, [Measure::of(&parts.l1)?, Measure::of(&parts.kl)?]))
    }

    /// With the weights that the run ends with, whenever it is.
    fn evaluate(&self, step: &StepInput<'_>) -> Result<[f64; 3], TrainError> {
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
                self.model.sample(tape, &ids, &latent)?.to_host()?.to_dtype(DType::F32)?.clamp(-1.0, 1.0)?;
            for picture in drawn.chunk(columns, 0)? {
                pictures.push(picture.flatten_all()?.to_vec1::<f32>()?);
            }
        }
        Ok(pictures)
    }
}

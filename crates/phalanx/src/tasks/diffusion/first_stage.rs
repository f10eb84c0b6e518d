//! The network under latent diffusion: images to latent images and back, not learnt here.

use std::path::Path;
use std::sync::Arc;

use candle_core::DType;
use phalanx_models::diffusion::{AutoencoderKL, LatentDistribution};
use phalanx_models::{CvaeConfig, TextToImage};
use phalanx_tensor::{ParamStore, Tape, Value, ops};

use crate::tasks::autoencoder_kl::{self, AutoencoderKlSettings};
use crate::tasks::cvae::{self, CvaeSettings};
use crate::tasks::presets::PRESETS;
use crate::tasks::text::Texts;
use phalanx_checkpoint::newest_checkpoint;
use phalanx_checkpoint::{EMA, MODEL};
use phalanx_config::{Catalogue, Config, Resolved};
use phalanx_run::RunFolder;
use phalanx_trainer::engine::{Setup, StepInput, TrainError};

use super::{DiffusionSettings, KeptLatents};

/// The name of the network.
const NAME: &str = "first_stage";

/// A trained autoencoder.
pub(super) struct FirstStage {
    network: Network,
    /// Channels, height and width of latent images.
    dims: [usize; 3],
    /// The factor by which latent images are smaller; `None` where latent pixels have no place.
    factor: Option<usize>,
    /// The latent images of an autoencoder that are kept.
    kept: Option<KeptLatents>,
}

enum Network {
    AutoencoderKl(AutoencoderKL),
    /// Its latent vector is taken for an image.
    Cvae(Box<(TextToImage, Texts)>),
}

impl FirstStage {
    /// Registers the network of the configured run, whose weights are read, averages where there are some.
    pub(super) fn register(setup: &mut Setup<'_>, settings: &DiffusionSettings) -> Result<Self, TrainError> {
        let size = setup.config().model.image_size;
        let resolved = configuration(setup.config(), settings)?;
        let config = &resolved.config;
        let wrong = |problem: String| {
            TrainError::Setup(format!("model.first_stage {}: {problem}", settings.first_stage))
        };
        if config.model.image_size != size {
            let of = config.model.image_size;
            return Err(wrong(format!(
                "it was trained on images of {of} pixels, and model.image_size is {size}"
            )));
        }
        let folder = settings.first_stage.clone();
        let load = move |store: &ParamStore| load(store, &folder);
        if let Some(of_stage) = config.settings.as_type::<AutoencoderKlSettings>() {
            let network = of_stage.network();
            let factor = network.factor();
            let dims = [network.latent_channels, size / factor, size / factor];
            let network =
                setup.frozen_network_from(NAME, load, |scope| AutoencoderKL::new(scope, &network))?;
            let kept = KeptLatents::new(settings, setup.config());
            return Ok(Self { network: Network::AutoencoderKl(network), dims, factor: Some(factor), kept });
        }
        let Some(of_stage) = config.settings.as_type::<CvaeSettings>() else {
            return Err(wrong(format!("a `{}` is no autoencoder", config.model.kind)));
        };
        let texts = Texts::new(&of_stage.text)?;
        let text = texts.encoder().clone();
        let (widths, latent) = (of_stage.widths.clone(), of_stage.latent);
        let cvae = CvaeConfig { image_size: size, widths, latent, text_dim: text.embed };
        let network =
            setup.frozen_network_from(NAME, load, |scope| TextToImage::new(scope, &text, &cvae, true))?;
        // As square as it can be: the U-Net's levels halve it.
        let side = [8, 4, 2]
            .into_iter()
            .find(|side| latent.is_multiple_of(side * side) && latent / (side * side) >= 4);
        let side = side.unwrap_or(1);
        let dims = [latent / (side * side), side, side];
        Ok(Self { network: Network::Cvae(Box::new((network, texts))), dims, factor: None, kept: None })
    }

    /// Channels, height and width of latent images.
    pub(super) fn dims(&self) -> [usize; 3] {
        self.dims
    }

    /// Returns the factor by which latent images are smaller; `None` where latent pixels have no place.
    pub(super) fn factor(&self) -> Option<usize> {
        self.factor
    }

    /// Latent images of a step's images: in training draws from their distributions, otherwise the means.
    pub(super) fn encode_step(&self, step: &StepInput<'_>) -> Result<Value, TrainError> {
        let LatentDistribution { mean, logvar } = match (&self.network, &self.kept) {
            (Network::AutoencoderKl(network), Some(kept)) => {
                kept.distribution(step, |images| network.encode(step.tape, images))?
            }
            (Network::AutoencoderKl(_), None) => self.distribution(step.tape, &step.value("images")?, &[])?,
            (Network::Cvae(_), _) => {
                self.distribution(step.tape, &step.value("images")?, step.texts("captions")?)?
            }
        };
        let latent = match step.tape.training() {
            true => {
                let noise = step.normal(&mean.dims()[1..])?;
                let std = ops::exp(step.tape, &ops::scale(step.tape, &logvar, 0.5)?)?;
                ops::add(step.tape, &mean, &ops::mul(step.tape, &std, &noise)?)?
            }
            false => mean,
        };
        self.shaped(step.tape, &latent)
    }

    /// The mean latent images of images.
    pub(super) fn encode(
        &self,
        tape: &Tape,
        images: &Value,
        captions: &[String],
    ) -> Result<Value, TrainError> {
        let LatentDistribution { mean, .. } = self.distribution(tape, images, captions)?;
        self.shaped(tape, &mean)
    }

    fn distribution(
        &self,
        tape: &Tape,
        images: &Value,
        captions: &[String],
    ) -> Result<LatentDistribution, TrainError> {
        match &self.network {
            Network::AutoencoderKl(network) => Ok(network.encode(tape, images)?),
            Network::Cvae(both) => {
                let (network, texts) = both.as_ref();
                let text = network.text().forward(tape, &texts.encode(captions)?)?.pooled;
                let (mean, logvar) = network.cvae().encode(tape, images, &text)?;
                Ok(LatentDistribution { mean, logvar })
            }
        }
    }

    fn shaped(&self, tape: &Tape, latent: &Value) -> Result<Value, TrainError> {
        let [channels, height, width] = self.dims;
        let latent = ops::reshape(tape, latent, (latent.dims()[0], channels, height, width))?;
        // Images are noised in f32, in every precision of the network.
        Ok(ops::cast(tape, &latent, DType::F32)?)
    }

    /// Images of latent images, near [−1, 1], under captions, which an autoencoder without text does not look at.
    pub(super) fn decode(
        &self,
        tape: &Tape,
        latent: &Value,
        captions: &[String],
    ) -> Result<Value, TrainError> {
        match &self.network {
            Network::AutoencoderKl(network) => Ok(network.decode(tape, latent)?),
            Network::Cvae(both) => {
                let (network, texts) = both.as_ref();
                let text = network.text().forward(tape, &texts.encode(captions)?)?.pooled;
                let latent =
                    ops::reshape(tape, latent, (latent.dims()[0], self.dims.iter().product::<usize>()))?;
                Ok(network.cvae().decode(tape, &latent, &text)?)
            }
        }
    }
}

/// The configuration of the first stage: that of its run, or, before it is trained, that of its preset.
fn configuration(config: &Config, settings: &DiffusionSettings) -> Result<Resolved, TrainError> {
    let presets = PRESETS.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    let schemas: Vec<_> = [autoencoder_kl::spec().into(), cvae::spec().into()]
        .iter()
        .map(|task: &phalanx_trainer::engine::Task| task.schema().clone())
        .collect();
    let catalogue =
        Arc::new(Catalogue { tasks: schemas, presets: presets.collect(), ..Catalogue::default() });
    let wrong = |error: phalanx_config::ConfigError| TrainError::Setup(format!("the first stage: {error}"));
    match settings.first_run(config) {
        Some(first) => catalogue.resolve(Some(&first.preset), &first.sets).map_err(wrong),
        None => {
            let folder = RunFolder::open(Path::new(&settings.first_stage))?;
            catalogue.resolve_run(&folder.config()).map_err(wrong)
        }
    }
}

/// Reads the weights of the newest checkpoint of a run into the store of the network here.
fn load(store: &ParamStore, folder: &str) -> Result<(), TrainError> {
    if folder.is_empty() {
        return Err(TrainError::Setup(
            "model.first_stage names no run; `phalanx train` trains one before and sets it".to_owned(),
        ));
    }
    let checkpoint = newest_checkpoint(&RunFolder::open(Path::new(folder))?)?;
    let reader = checkpoint.reader();
    for param in store.params() {
        let own = param.name().strip_prefix("first_stage.").unwrap_or(param.name());
        let kind = if reader.pieces(EMA, own).is_empty() { MODEL } else { EMA };
        param.set(&reader.read(kind, own)?)?;
    }
    Ok(())
}

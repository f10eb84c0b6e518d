//! The autoencoder of latent diffusion: encodes images to latent images and decodes them.

use phalanx_data::transform::Normalise;
use phalanx_models::diffusion::{AutoencoderKL, AutoencoderKLConfig, LatentDistribution};
use phalanx_tensor::{Tape, Value, loss, ops};

use phalanx_config::{Config, Relations};
use phalanx_trainer::engine::{
    ForwardInput, ForwardOutput, Loss, Measure, OutputMeaning, ReferenceModel, Setup, StepInput, TaskSpec,
    TrainError, Training, number,
};

phalanx_config::settings! {
    /// The settings of an autoencoder with latent images.
    pub(super) struct AutoencoderKlSettings {
        /// Channels of each level, from the image inwards. Each level halves the resolution.
        widths: Vec<usize> = vec![32, 64, 64];
        /// Residual blocks in each level of the encoder; the decoder has one more.
        layers: usize = 1;
        /// Groups of each group norm.
        groups: usize = 8;
        /// Channels of latent images.
        latent_channels: usize = 4;
        /// Weight of the mean squared error relative to the mean absolute error.
        l2_weight: f64 = 1.0;
        /// Weight of the KL divergence from the prior, summed over a latent image.
        kl_weight: f64 = 1e-6;
    }
}

impl AutoencoderKlSettings {
    /// Returns the configuration of the network.
    pub(super) fn network(&self) -> AutoencoderKLConfig {
        AutoencoderKLConfig {
            block_out_channels: self.widths.clone(),
            layers_per_block: self.layers,
            latent_channels: self.latent_channels,
            norm_num_groups: self.groups,
            ..AutoencoderKLConfig::small()
        }
    }
}

/// Returns the task of the autoencoder.
pub(super) fn spec() -> TaskSpec<AutoencoderKlSettings> {
    let about = "Autoencoder: images to latent images and back, the first stage of latent diffusion";
    TaskSpec::new("autoencoder-kl", about, autoencoder)
        .validate(check)
        .reference(|settings, _, _| reference(settings))
}

/// Returns the autoencoder of diffusers with the same weights.
fn reference(settings: &AutoencoderKlSettings) -> Option<ReferenceModel> {
    let AutoencoderKlSettings { widths, layers, groups, latent_channels, .. } = settings;
    let blocks = |name: &str| vec![name; widths.len()].join("\", \"");
    Some(ReferenceModel::of_python([
        "from diffusers import AutoencoderKL".to_owned(),
        format!(
            "model = AutoencoderKL(block_out_channels={widths:?}, layers_per_block={layers}, norm_num_groups={groups}, \
             latent_channels={latent_channels},"
        ),
        format!("    down_block_types=[\"{}\"],", blocks("DownEncoderBlock2D")),
        format!("    up_block_types=[\"{}\"])", blocks("UpDecoderBlock2D")),
    ]))
}

/// Checks that the widths are divisible by the groups, and the image size by the downsampling factor.
pub(super) fn check_widths(widths: &[usize], groups: usize, size: usize, relations: &mut Relations<'_>) {
    relations.require(
        !widths.is_empty() && groups > 0 && widths.iter().all(|width| *width > 0 && width % groups == 0),
        "model.widths",
        format!("model.widths = {widths:?} are not one or more multiples of model.groups {groups}"),
    );
    let factor = 1_usize.checked_shl(widths.len().saturating_sub(1) as u32).unwrap_or(usize::MAX);
    relations.require(
        size.is_multiple_of(factor),
        "model.widths",
        format!("a size of {size} is not a multiple of {factor}, as {} model.widths halve it", widths.len()),
    );
}

/// Requires pixels between −1 and 1.
pub(super) fn check_pixels(config: &Config, relations: &mut Relations<'_>) {
    let normalise = config.data.normalise;
    relations.require(
        normalise == Normalise::SYMMETRIC,
        "data.normalise",
        format!("model.kind {} draws from -1 to 1, but data.normalise is {normalise}", config.model.kind),
    );
}

fn check(settings: &AutoencoderKlSettings, config: &Config, relations: &mut Relations<'_>) {
    check_pixels(config, relations);
    check_widths(&settings.widths, settings.groups, config.model.image_size, relations);
    relations.positive("model.layers", settings.layers as u64);
    relations.positive("model.latent_channels", settings.latent_channels as u64);
    relations.not_negative("model.l2_weight", settings.l2_weight);
    relations.not_negative("model.kl_weight", settings.kl_weight);
}

/// The autoencoder with the weights of its losses.
struct Autoencoder {
    model: AutoencoderKL,
    l2_weight: f64,
    kl_weight: f64,
}

fn autoencoder(
    setup: &mut Setup<'_>,
    settings: &AutoencoderKlSettings,
) -> Result<Training<Autoencoder>, TrainError> {
    let config = settings.network();
    let size = setup.config().model.image_size;
    let (small, latent) = (size / config.factor(), config.latent_channels);
    setup.cut_by(|| config.tensor_plan())?;
    let model = setup.model(|scope| AutoencoderKL::new(scope, &config))?;
    let name = format!(
        "autoencoder of {size}x{size} pixels to {latent} x {small}x{small}, widths {:?}",
        settings.widths
    );
    let (l2_weight, kl_weight) = (settings.l2_weight, settings.kl_weight);
    let latents = ForwardInput { name: "latents".to_owned(), dims: vec![latent, small, small] };
    Ok(Training::new(name, Autoencoder { model, l2_weight, kl_weight })
        .loss(Autoencoder::loss)
        .measures(["l1", "kl"])
        .evaluate(["loss", "l1", "kl"], Autoencoder::evaluate)
        .restore(Autoencoder::restore)
        .forward(latents, Autoencoder::decode))
}

impl Autoencoder {
    /// Returns the absolute error, the KL divergence, and the loss of images decoded from `latent`.
    fn parts(
        &self,
        step: &StepInput<'_>,
        images: &Value,
        distribution: &LatentDistribution,
        latent: &Value,
    ) -> Result<[Value; 3], TrainError> {
        let (tape, over) = (step.tape, step.over()?);
        let decoded = self.model.decode(tape, latent)?;
        let l1 = loss::l1(tape, &decoded, images, over)?;
        let l2 = loss::mse(tape, &decoded, images, over)?;
        let kl = distribution.kl(tape, over)?;
        let errors = ops::add(tape, &l1, &ops::scale(tape, &l2, self.l2_weight)?)?;
        let total = ops::add(tape, &errors, &ops::scale(tape, &kl, self.kl_weight)?)?;
        Ok([total, l1, kl])
    }

    fn loss(&self, step: &StepInput<'_>) -> Result<Loss, TrainError> {
        let images = step.value("images")?;
        let distribution = self.model.encode(step.tape, &images)?;
        let noise = step.normal(&distribution.mean.dims()[1..])?;
        let latent = distribution.sample(step.tape, &noise)?;
        let [total, l1, kl] = self.parts(step, &images, &distribution, &latent)?;
        Ok(Loss::new(total, [Measure::of(&l1)?, Measure::of(&kl)?]))
    }

    /// Evaluates with the means of the latent distributions.
    fn restore(&self, tape: &Tape, images: &Value) -> Result<Value, TrainError> {
        let distribution = self.model.encode(tape, images)?;
        Ok(self.model.decode(tape, &distribution.mean)?)
    }

    /// Decodes latent images.
    fn decode(&self, tape: &Tape, latents: &Value) -> Result<Vec<ForwardOutput>, TrainError> {
        let value = self.model.decode(tape, latents)?;
        Ok(vec![ForwardOutput { name: "images".to_owned(), value, meaning: OutputMeaning::Images }])
    }

    /// Reconstructs images from the means of the latent distributions.
    fn evaluate(&self, step: &StepInput<'_>) -> Result<[f64; 3], TrainError> {
        let images = step.value("images")?;
        let distribution = self.model.encode(step.tape, &images)?;
        let [total, l1, kl] = self.parts(step, &images, &distribution, &distribution.mean)?;
        Ok([number(&total)?, number(&l1)?, number(&kl)?])
    }
}

//! The settings of diffusion, and what they must fulfil.

use phalanx_models::diffusion::samplers::{Guidance, SamplerConfig, SamplerKind, Spacing};
use phalanx_models::diffusion::{BetaSchedule, NoiseSchedule, Objective, Prediction};

use crate::tasks::autoencoder_kl::{check_pixels, check_widths};
use crate::tasks::text::TextSettings;
use phalanx_config::{Config, Relations};
use phalanx_trainer::engine::{FirstRun, TrainError};

phalanx_config::settings! {
    /// The settings of diffusion.
    pub(in crate::tasks) struct DiffusionSettings {
        /// Denoise latent images of a first stage instead of pixels.
        latent_images: bool = false;
        /// The folder of a run of `autoencoder-kl` or `cvae`, the first stage; empty = `phalanx train` trains one before.
        first_stage: String = String::new();
        /// The preset that is trained as the first stage where `model.first_stage` names none.
        first_stage_preset: String = "shapes-autoencoder".to_owned();
        /// Overrides of keys of the first stage that is trained before, such as ["train.steps=500"].
        first_stage_set: Vec<String> = Vec::new();
        /// The MiB of host memory of each rank in which the latent images of an `autoencoder-kl` are kept, so that it encodes each image
        /// once; 0 = encode in every pass. Without effect where ranks hold parts of the model, and with train.graphs.
        keep_latents: u64 = 512;
        /// Condition the network on captions.
        conditional: bool = true;
        /// Add the feature of the whole caption to the time embedding of residual blocks (diffusers' `class_embed_type`
        /// simple_projection), in addition to attention over its tokens.
        pool_text: bool = false;
        flatten unet: UNetSettings;
        flatten target: TargetSettings;
        flatten sampling: SamplingSettings;
        flatten caption: CaptionSettings;
    }
}

phalanx_config::settings! {
    /// The shape of the U-Net.
    pub(in crate::tasks) struct UNetSettings {
        /// Channels of each level of the U-Net, from the whole size inwards; each next level has half the size.
        widths: Vec<usize> = vec![64, 128];
        /// Which levels attend, to text as well where it is told; a list as long as `model.widths`.
        attention: Vec<bool> = vec![true, true];
        /// Residual blocks of a level on the way down; on the way up there is one more.
        layers: usize = 1;
        /// Groups of each group norm.
        groups: usize = 8;
        /// Attention heads.
        heads: usize = 4;
        /// Cut images into patches of this many pixels a side, each a position of the U-Net with all its pixels as channels; 1 =
        /// pixels.
        patch: usize = 1;
        /// Tell the network the coordinates of each position, in two further channels of its input (Liu et al. 2018).
        coordinates: bool = false;
        /// Probability of dropping an element in residual blocks.
        dropout: f64 = 0.0;
        /// Residual blocks and attentions start as identities, and the prediction at zero.
        zero_init: bool = true;
    }
}

phalanx_config::settings! {
    /// The noise schedule and the prediction target, which training and sampling share, and the weights of the loss.
    pub(in crate::tasks) struct TargetSettings {
        /// The prediction target of the network.
        prediction: Prediction = Prediction::Epsilon;
        /// The noise schedule.
        schedule: BetaSchedule = BetaSchedule::Cosine;
        /// First and last beta of a linear or scaled_linear schedule; empty = those that its authors use.
        betas: Vec<f64> = Vec::new();
        /// Timesteps of the schedule.
        timesteps: usize = 1000;
        /// The schedule is stretched so that nothing of the image is left at its end; needs another model.prediction than epsilon.
        zero_snr: bool = false;
        /// Divides the signal-to-noise ratio of every timestep by the square of this: larger images need more noise (Hoogeboom et al.
        /// 2023).
        noise_shift: f64 = 1.0;
        /// Min-SNR weighting: a timestep counts as much as its signal-to-noise ratio, at most this; 0 = all alike.
        min_snr: f64 = 0.0;
        /// Learn the expected error of each timestep and divide by it, so that all count alike (Karras et al. 2024).
        uncertainty: bool = false;
        /// Training draws noisy timesteps more often: those at the end this many times as often as evenly (Esser et al. 2024).
        timestep_shift: f64 = 1.0;
        /// Probability of hiding a sample's caption, so that the network learns what guidance needs.
        drop_text: f64 = 0.1;
    }
}

phalanx_config::settings! {
    /// The way from noise to pictures.
    pub(in crate::tasks) struct SamplingSettings {
        /// The sampler.
        sampler: SamplerKind = SamplerKind::Ddim;
        /// The number of evaluations of the network for a sample.
        sample_steps: usize = 50;
        /// The scale of classifier-free guidance; 1 = off.
        guidance: f64 = 3.0;
        /// A text that pictures are guided away from; empty = guidance is away from pictures without a caption.
        negative: String = String::new();
        /// The share of a guided prediction that gets the deviation of the one with the caption.
        guidance_rescale: f64 = 0.0;
        /// DDIM: how much noise a step adds, from 0 to 1.
        eta: f64 = 0.0;
    }
}

phalanx_config::settings! {
    /// The text encoder of captions.
    pub(in crate::tasks) struct CaptionSettings {
        /// The weights of `model.text_weights` are held fixed.
        freeze_text: bool = true;
        flatten text: TextSettings;
    }
}

impl TargetSettings {
    /// True if nothing of an image is left at the schedule's end.
    fn ends_in_noise(&self) -> bool {
        self.zero_snr || self.schedule == BetaSchedule::Flow
    }
}

impl DiffusionSettings {
    /// The noise of every timestep.
    pub(super) fn noise(&self) -> Result<NoiseSchedule, TrainError> {
        let range = match self.target.betas.as_slice() {
            [first, last] => (*first, *last),
            _ => self.target.schedule.usual_range(),
        };
        let plain = NoiseSchedule::new(self.target.schedule, self.target.timesteps, range)?;
        let stretched = if self.target.zero_snr { plain.zero_terminal_snr() } else { plain };
        Ok(match self.target.noise_shift {
            1.0 => stretched,
            shift => stretched.shifted(shift)?,
        })
    }

    /// Returns the training objective.
    pub(super) fn objective(&self) -> Result<Objective, TrainError> {
        let min_snr = (self.target.min_snr > 0.0).then_some(self.target.min_snr);
        Ok(Objective::new(self.noise()?, self.target.prediction, min_snr)?)
    }

    /// Returns the configuration of the sampler. Pixels are clipped to 1.
    pub(super) fn sampler(&self) -> SamplerConfig {
        SamplerConfig {
            eta: self.sampling.eta,
            clip: (!self.latent_images).then_some(1.0),
            // A schedule that ends in pure noise is of no use unless sampling begins there.
            spacing: self.target.ends_in_noise().then_some(Spacing::Trailing),
            ..SamplerConfig::new(self.sampling.sampler, self.sampling.sample_steps)
        }
    }

    /// Returns the guidance.
    pub(super) fn guidance(&self) -> Guidance {
        let scale = if self.conditional { self.sampling.guidance } else { 1.0 };
        Guidance { scale, rescale: self.sampling.guidance_rescale }
    }

    /// The first stage that must be trained before.
    pub(super) fn first_run(&self, config: &Config) -> Option<FirstRun> {
        (self.latent_images && self.first_stage.is_empty()).then(|| FirstRun {
            preset: self.first_stage_preset.clone(),
            sets: vec![
                format!("model.image_size={}", config.model.image_size),
                format!("data.kind={}", config.data.kind),
                format!("data.path={:?}", config.data.path),
                format!("data.per_class={}", config.data.per_class),
                format!("data.limit={}", config.data.limit),
                format!("data.images={}", config.data.images),
                format!("data.objects={}", config.data.objects),
                format!("train.ranks={}", config.train.ranks),
                format!("train.strategy={}", config.train.strategy),
                format!("train.seed={}", config.train.seed),
                format!("train.threads={}", config.train.threads),
                format!("train.device={}", config.train.device),
            ]
            .into_iter()
            .chain(self.first_stage_set.iter().cloned())
            .collect(),
        })
    }

    /// Checks the settings against each other and against the configuration.
    pub(super) fn check(&self, config: &Config, relations: &mut Relations<'_>) {
        check_pixels(config, relations);
        // How small latent images are the first stage knows.
        let patch = self.unet.patch.max(1);
        let size = if self.latent_images { 0 } else { config.model.image_size / patch };
        relations.positive("model.patch", self.unet.patch as u64);
        relations.require(
            self.latent_images || config.model.image_size.is_multiple_of(patch),
            "model.patch",
            format!("model.patch = {patch} does not divide model.image_size = {}", config.model.image_size),
        );
        check_widths(&self.unet.widths, self.unet.groups, size, relations);
        let (levels, given) = (self.unet.widths.len(), self.unet.attention.len());
        relations.require(
            levels == given,
            "model.attention",
            format!("model.attention is of {given} levels, and model.widths of {levels}"),
        );
        let heads = self.unet.heads.max(1);
        let attending = self.unet.widths.iter().zip(&self.unet.attention).filter(|(_, attends)| **attends);
        let attending = attending.map(|(width, _)| width).chain(self.unet.widths.last());
        relations.require(
            attending.into_iter().all(|width| width.is_multiple_of(heads)),
            "model.heads",
            format!(
                "model.heads {heads} do not divide model.widths {:?} where they attend",
                self.unet.widths
            ),
        );
        for (key, value) in [
            ("model.heads", self.unet.heads),
            ("model.layers", self.unet.layers),
            ("model.sample_steps", self.sampling.sample_steps),
        ] {
            relations.positive(key, value as u64);
        }
        relations.fraction("model.dropout", self.unet.dropout);
        relations.fraction("model.drop_text", self.target.drop_text);
        relations.not_negative("model.min_snr", self.target.min_snr);
        self.check_sampling(relations);
        self.check_noise(relations);
        if self.conditional {
            self.caption.text.check(relations);
        }
    }

    /// Checks how pictures are sampled.
    fn check_sampling(&self, relations: &mut Relations<'_>) {
        let rescale = self.sampling.guidance_rescale;
        relations.require(
            (0.0..=1.0).contains(&rescale),
            "model.guidance_rescale",
            format!("model.guidance_rescale = {rescale} is not in [0, 1]"),
        );
        relations.require(
            self.sampling.negative.is_empty() || (self.conditional && self.sampling.guidance != 1.0),
            "model.negative",
            "model.negative needs model.conditional, and a model.guidance other than 1".to_owned(),
        );
        relations.require(
            (0.0..=1.0).contains(&self.sampling.eta),
            "model.eta",
            format!("model.eta = {} is not in [0, 1]", self.sampling.eta),
        );
        relations.require(
            self.conditional || !self.pool_text,
            "model.pool_text",
            "model.pool_text tells captions, and model.conditional = false shows none".to_owned(),
        );
        let (steps, timesteps) = (self.sampling.sample_steps, self.target.timesteps);
        relations.require(
            timesteps >= 2 && steps <= timesteps,
            "model.sample_steps",
            format!(
                "model.sample_steps {steps} are more than model.timesteps {timesteps}, or these are not two"
            ),
        );
    }

    /// Checks the noise schedule.
    fn check_noise(&self, relations: &mut Relations<'_>) {
        for (key, shift) in [
            ("model.timestep_shift", self.target.timestep_shift),
            ("model.noise_shift", self.target.noise_shift),
        ] {
            let problem = format!("{key} = {shift} is not a number above 0");
            relations.require(shift > 0.0 && shift.is_finite(), key, problem);
        }
        let ends_in_noise = self.target.ends_in_noise();
        relations.require(
            !(ends_in_noise && self.target.min_snr > 0.0),
            "model.min_snr",
            "model.min_snr counts the end of a schedule with model.zero_snr, or of model.schedule = flow, as nothing, so that \
             what a caption decides first is never learnt: set one of them"
                .to_owned(),
        );
        relations.require(
            !(self.target.uncertainty && self.target.min_snr > 0.0),
            "model.uncertainty",
            "model.uncertainty and model.min_snr both weigh timesteps: set one of them".to_owned(),
        );
        relations.require(
            !ends_in_noise || self.target.prediction != Prediction::Epsilon,
            "model.prediction",
            "model.zero_snr and model.schedule = flow need another model.prediction than epsilon, such as v_prediction"
                .to_owned(),
        );
        relations.require(
            self.target.betas.is_empty()
                || matches!(self.target.betas.as_slice(), [a, b] if *a > 0.0 && a <= b && *b < 1.0),
            "model.betas",
            format!("model.betas = {:?} are not two rising numbers in (0, 1)", self.target.betas),
        );
    }
}

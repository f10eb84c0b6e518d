//! Training and evaluation of diffusion.

use candle_core::{DType, Device, Tensor};
use phalanx_models::diffusion::{NoisySamples, Objective, Uncertainty, tensor_plan};
use phalanx_tensor::{Key, Tape, TensorError, Value, loss, ops};

use super::{Denoiser, DiffusionSettings, FirstStage};
use crate::tasks::text::Texts;
use phalanx_trainer::engine::{Loss, Measure, Setup, StepInput, TaskSpec, TrainError, Training, number};

/// Diffusion.
pub(in crate::tasks) fn spec() -> TaskSpec<DiffusionSettings> {
    let about = "Text-to-image: diffusion in pixels or in the latent images of an autoencoder";
    TaskSpec::new("diffusion", about, diffusion)
        .validate(|settings: &DiffusionSettings, config, relations| settings.check(config, relations))
        .first("model.first_stage", |settings: &DiffusionSettings, config| settings.first_run(config))
}

/// Everything that a step and a drawing need.
pub(super) struct Diffusion {
    pub(super) settings: DiffusionSettings,
    pub(super) denoiser: Denoiser,
    pub(super) texts: Texts,
    pub(super) first_stage: Option<FirstStage>,
    pub(super) objective: Objective,
    /// Height and width of images.
    pub(super) size: usize,
}

fn diffusion(setup: &mut Setup<'_>, settings: &DiffusionSettings) -> Result<Training<Diffusion>, TrainError> {
    let size = setup.config().model.image_size;
    let texts = Texts::new(&settings.caption.text)?;
    let first_stage = match settings.latent_images {
        true => Some(FirstStage::register(setup, settings)?),
        false => None,
    };
    let [channels, height, _] = first_stage.as_ref().map_or([3, size, size], FirstStage::dims);
    let (patch, halvings) = (settings.unet.patch, settings.unet.widths.len() - 1);
    if !height.is_multiple_of(patch << halvings) {
        return Err(TrainError::Setup(format!(
            "latent images of {height}x{height} in patches of {patch}x{patch} cannot be halved {halvings} times, as model.widths do"
        )));
    }
    let text = settings.conditional.then(|| texts.encoder().clone());
    let build = |scope: &phalanx_tensor::Scope| Denoiser::new(scope, settings, channels, text.as_ref());
    let weights = if settings.conditional { Some("denoiser.text.") } else { None };
    setup.cut_by(|| match &text {
        Some(text) => Ok(text.tensor_plan()?.and(tensor_plan()?)),
        None => tensor_plan(),
    })?;
    let denoiser = match weights {
        Some(prefix) => texts.register_network(setup, "denoiser", prefix, build)?,
        None => setup.network("denoiser", build)?,
    };
    let of = if settings.latent_images { "latent images" } else { "pixels" };
    let patches = if patch == 1 { String::new() } else { format!(" in patches of {patch}x{patch}") };
    let told = match &text {
        Some(text) => format!("text encoder {} x {}", text.layers, text.width),
        None => "no text".to_owned(),
    };
    let name = format!(
        "diffusion of {channels} x {height}x{height} {of}{patches}, U-Net {:?}, {told}, {} under a {} schedule",
        settings.unet.widths, settings.target.prediction, settings.target.schedule
    );
    let objective = settings.objective()?;
    let model = Diffusion { settings: settings.clone(), denoiser, texts, first_stage, objective, size };
    let measures = if settings.target.uncertainty { &["error"][..] } else { &[] };
    let training = Training::new(name, model)
        .loss(Diffusion::loss)
        .measures(measures.iter().copied())
        .evaluate(["loss"], Diffusion::evaluate)
        .draw(Diffusion::draw);
    Ok(if settings.conditional { training.reads_captions() } else { training })
}

/// The random values of a step's samples.
pub(super) struct Draws {
    pub(super) noise: Value,
    /// Numbers in [0, 1) that choose timesteps.
    pub(super) timesteps: Vec<f64>,
    /// True for samples whose caption is hidden.
    pub(super) hidden: Vec<bool>,
}

impl Diffusion {
    fn loss(&self, step: &StepInput<'_>) -> Result<Loss, TrainError> {
        let images = self.images(step)?;
        // By the samples' places in the whole batch: as many ranks as there are draw what one would.
        let noise = step.normal(&images.dims()[1..])?;
        let uniform = || {
            let session = step.tape.session();
            let mut drawn = vec![0.0; step.batch.len()];
            step.tape.next_key().uniform(session.sample_offset, &mut drawn);
            drawn
        };
        let timesteps = Objective::shifted(&uniform(), self.settings.target.timestep_shift);
        let hidden = uniform().into_iter().map(|drawn| drawn < self.settings.target.drop_text).collect();
        let loss = self.weighted_loss(step, &images, &Draws { noise, timesteps, hidden })?;
        self.texts.warn(step);
        Ok(loss)
    }

    /// The error of predictions, each timestep divided by its expected error if that is learnt.
    fn weighted_loss(&self, step: &StepInput<'_>, images: &Value, draws: &Draws) -> Result<Loss, TrainError> {
        let tape = step.tape;
        let plain = self.predict(tape, images, draws, &self.shown(step, draws)?)?;
        let Some(u) = self.denoiser.log_error(tape, &plain.times)? else {
            return Ok(plain.error(step)?.into());
        };
        let difference = Uncertainty::weigh(tape, &u, &plain.predicted, &plain.target)?;
        let error = step.mean(&difference, |rows, _, over| {
            loss::mse(tape, rows, &ops::full_like(tape, rows, 0.0)?, over)
        })?;
        let u = step.mean(&u, |u, rows, over| {
            ops::scale(tape, &ops::sum(tape, u)?, 1.0 / over.divisor(rows.len()))
        })?;
        let plain = Predicted { predicted: plain.predicted.detach(), ..plain };
        Ok(Loss::new(ops::add(tape, &error, &u)?, [Measure::of(&plain.error(step)?)?]))
    }

    fn evaluate(&self, step: &StepInput<'_>) -> Result<[f64; 1], TrainError> {
        let images = self.images(step)?;
        Ok([number(&self.error(step, &images, &own_draws(step, &images)?)?)?])
    }

    /// The weighted squared error of predictions.
    fn error(&self, step: &StepInput<'_>, images: &Value, draws: &Draws) -> Result<Value, TrainError> {
        self.predict(step.tape, images, draws, &self.shown(step, draws)?)?.error(step)
    }

    /// Returns the captions of a step's samples, without those that are hidden; none if the network is not conditional.
    fn shown(&self, step: &StepInput<'_>, draws: &Draws) -> Result<Vec<String>, TrainError> {
        if !self.settings.conditional {
            return Ok(Vec::new());
        }
        let captions = step.texts("captions")?.iter().zip(&draws.hidden);
        let shown = captions.map(|(caption, hidden)| if *hidden { String::new() } else { caption.clone() });
        Ok(shown.collect())
    }

    /// Predicts noisy samples under captions.
    pub(super) fn predict(
        &self,
        tape: &Tape,
        images: &Value,
        draws: &Draws,
        captions: &[String],
    ) -> Result<Predicted, TrainError> {
        let Noised { samples, timesteps, times } = self.noised(tape, images, draws)?;
        let told = self.denoiser.read(tape, &self.texts, captions)?;
        let predicted = self.denoiser.predict(tape, &samples.sample, &times, told.as_ref())?;
        let (predicted, target) = self.objective.weighted(tape, predicted, samples.target, &timesteps)?;
        Ok(Predicted { predicted, target, times })
    }

    /// Adds noise to images.
    pub(super) fn noised(&self, tape: &Tape, images: &Value, draws: &Draws) -> Result<Noised, TrainError> {
        let timesteps = self.objective.timesteps(&draws.timesteps);
        let samples = self.objective.noisy_samples(tape, images, &draws.noise, &timesteps)?;
        let times = timesteps.iter().map(|timestep| *timestep as f64).collect();
        Ok(Noised { samples, timesteps, times })
    }

    /// Returns the images to denoise: a step's pixels, or its scaled latent images.
    pub(super) fn images(&self, step: &StepInput<'_>) -> Result<Value, TrainError> {
        let Some(stage) = &self.first_stage else { return step.value("images") };
        let scale = match self.denoiser.scale()? {
            Some(scale) => scale,
            None => {
                let scale = 1.0 / step.measured(|step| deviation(step, &stage.encode_step(step)?))?;
                self.denoiser.set_scale(scale)?;
                scale
            }
        };
        Ok(ops::scale(step.tape, &stage.encode_step(step)?, scale)?)
    }
}

/// Noisy samples at their timesteps.
pub(super) struct Noised {
    pub(super) samples: NoisySamples,
    timesteps: Vec<usize>,
    /// The timesteps as the network takes them.
    pub(super) times: Vec<f64>,
}

/// Predictions of samples with their targets, both weighted.
pub(super) struct Predicted {
    pub(super) predicted: Value,
    pub(super) target: Value,
    times: Vec<f64>,
}

impl Predicted {
    /// The mean squared error.
    fn error(&self, step: &StepInput<'_>) -> Result<Value, TrainError> {
        step.mean(&self.predicted, |rows, range, over| {
            let target = ops::narrow(step.tape, &self.target, 0, range.start, range.len())?;
            loss::mse(step.tape, rows, &target, over)
        })
    }
}

/// Draws noise and timesteps that are functions of each picture and nothing else, so that any number of ranks and any batch measure
/// the same.
pub(super) fn own_draws(step: &StepInput<'_>, images: &Value) -> Result<Draws, TrainError> {
    let rows = step.batch.tensor("images")?.flatten_from(1)?.to_vec2::<f32>()?;
    let dims = images.dims().to_vec();
    let len: usize = dims[1..].iter().product();
    let mut noise = vec![0.0; dims[0] * len];
    let mut timesteps = vec![0.0; dims[0]];
    for ((row, noise), timestep) in rows.iter().zip(noise.chunks_exact_mut(len)).zip(&mut timesteps) {
        let key = Key::new(fingerprint(row)).stream("evaluation");
        key.normal(0, noise);
        key.stream("timestep").uniform(0, std::slice::from_mut(timestep));
    }
    let noise = Tensor::from_vec(noise, dims, &Device::Cpu)?.to_dtype(DType::F32)?;
    let noise = Value::constant(step.tape.backend().from_host(&noise)?);
    let hidden = vec![false; timesteps.len()];
    Ok(Draws { noise, timesteps, hidden })
}

/// The standard deviation of the elements of all ranks' values.
fn deviation(step: &StepInput<'_>, values: &Value) -> Result<f64, TrainError> {
    if !step.tape.backend().has_numbers() {
        return Ok(1.0);
    }
    let values = values.to_host()?.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?;
    let sum: f64 = values.iter().sum();
    let squares: f64 = values.iter().map(|value| value * value).sum();
    let sums = phalanx_tensor::Array::from(Tensor::new(&[values.len() as f64, sum, squares], &Device::Cpu)?);
    if let Some(group) = &step.tape.session().batch_group {
        group.all_reduce(&sums).map_err(|source| TensorError::Hook { op: "latent scale", source })?;
    }
    let sums = sums.tensor()?.to_vec1::<f64>()?;
    let mean = sums[1] / sums[0];
    let variance = sums[2] / sums[0] - mean * mean;
    match variance > 0.0 && variance.is_finite() {
        true => Ok(variance.sqrt()),
        false => Err(TrainError::Setup(
            "the first stage's latent images do not vary: it was not trained".to_owned(),
        )),
    }
}

/// A number that a picture's pixels decide.
fn fingerprint(pixels: &[f32]) -> u64 {
    pixels.iter().fold(0xcbf2_9ce4_8422_2325, |hash, pixel| {
        (hash ^ u64::from(pixel.to_bits())).wrapping_mul(0x0100_0000_01b3)
    })
}

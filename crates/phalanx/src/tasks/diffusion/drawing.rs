//! Sampling of diffusion: samples, strips, interpolations, and edits of pictures.

use candle_core::{DType, Device, Tensor};
use phalanx_models::TextFeatures;
use phalanx_models::diffusion::samplers::noise_of_samples;
use phalanx_models::diffusion::{InitialImages, SamplingLoop, latent_mask};
use phalanx_tensor::{Result, Tape, TensorError, Value, ops};

use super::training::Diffusion;
use crate::weighted_prompt::{WeightedPrompt, weigh_tokens};
use phalanx_trainer::engine::{Drawing, DrawingKind, TrainError};

/// Pictures that are denoised together.
const ABREAST: usize = 32;

/// One picture: shares of prompts, and of noises by their numbers.
struct Picture {
    prompts: Vec<(usize, f64)>,
    noises: Vec<(u64, f64)>,
}

impl Picture {
    fn of(prompt: usize, noise: u64) -> Self {
        Self { prompts: vec![(prompt, 1.0)], noises: vec![(noise, 1.0)] }
    }

    /// The prompt that it has most of.
    fn prompt(&self) -> usize {
        self.prompts.iter().max_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(prompt, _)| *prompt)
    }
}

/// The pictures of a drawing, row by row.
fn pictures(drawing: &Drawing) -> std::result::Result<Vec<Picture>, TrainError> {
    let (prompts, columns) = (drawing.prompts.len(), drawing.columns);
    let part = |column: usize| column as f64 / (columns - 1).max(1) as f64;
    let rows = |row: &dyn Fn(usize, usize) -> Picture, rows: usize| {
        (0..rows)
            .flat_map(|prompt| (0..columns).map(move |column| (prompt, column)))
            .map(|(p, c)| row(p, c))
            .collect()
    };
    Ok(match &drawing.kind {
        DrawingKind::Samples | DrawingKind::From { .. } => {
            rows(&|prompt, column| Picture::of(prompt, column as u64), prompts)
        }
        DrawingKind::Each { first } => {
            (0..prompts).map(|prompt| Picture::of(prompt, first + prompt as u64)).collect()
        }
        DrawingKind::Strip => (0..prompts).map(|prompt| Picture::of(prompt, 0)).collect(),
        DrawingKind::BetweenTexts if prompts < 2 => {
            return Err(TrainError::Setup("pictures between texts need two prompts at least".to_owned()));
        }
        DrawingKind::BetweenTexts => {
            let between = |prompt: usize, column: usize| Picture {
                prompts: vec![(prompt, 1.0 - part(column)), (prompt + 1, part(column))],
                noises: vec![(0, 1.0)],
            };
            rows(&between, prompts - 1)
        }
        DrawingKind::BetweenNoises => {
            // Along a circle, so that what lies between two noises is as strong as they are.
            let between = |prompt: usize, column: usize| {
                let (sin, cos) = (part(column) * std::f64::consts::FRAC_PI_2).sin_cos();
                Picture { prompts: vec![(prompt, 1.0)], noises: vec![(0, cos), (1, sin)] }
            };
            rows(&between, prompts)
        }
    })
}

/// Shares of rows, added up.
fn mixed(tape: &Tape, shares: &[(f64, Value)]) -> Result<Value> {
    let mut sum: Option<Value> = None;
    for (share, value) in shares {
        let part = if *share == 1.0 { value.clone() } else { ops::scale(tape, value, *share)? };
        sum = Some(match sum {
            Some(sum) => ops::add(tape, &sum, &part)?,
            None => part,
        });
    }
    sum.ok_or_else(|| TensorError::Backward("a picture has no prompt and no noise".into()))
}

fn rows_of(tape: &Tape, rows: &[Value]) -> Result<Value> {
    ops::cat(tape, &rows.iter().collect::<Vec<_>>(), 0)
}

impl Diffusion {
    /// The pictures of a drawing.
    pub(super) fn draw(
        &self,
        tape: &Tape,
        drawing: &Drawing,
    ) -> std::result::Result<Vec<Vec<f32>>, TrainError> {
        let pictures = pictures(drawing)?;
        let prompts = &drawing.prompts;
        let told = self.read_prompts(tape, prompts)?;
        let untold = match self.settings.guidance().needs_both() {
            true => self.read_prompts(tape, std::slice::from_ref(&self.settings.sampling.negative))?,
            false => None,
        };
        let mut drawn = Vec::with_capacity(prompts.len() * drawing.columns);
        for some in pictures.chunks(ABREAST) {
            let mut looks = Vec::new();
            let captions: Vec<String> =
                some.iter().map(|picture| prompts[picture.prompt()].clone()).collect();
            let rows = |of_prompts: &Value| -> Result<Value> {
                let of = |picture: &Picture| {
                    let row = |prompt| ops::narrow(tape, of_prompts, 0, prompt, 1);
                    let shares = picture.prompts.iter().map(|(prompt, share)| Ok((*share, row(*prompt)?)));
                    mixed(tape, &shares.collect::<Result<Vec<_>>>()?)
                };
                rows_of(tape, &some.iter().map(of).collect::<Result<Vec<_>>>()?)
            };
            let told = match &told {
                Some(told) => Some(TextFeatures { pooled: rows(&told.pooled)?, tokens: rows(&told.tokens)? }),
                None => None,
            };
            let last = self.walk(tape, drawing, some, &captions, (told, untold.as_ref()), &mut looks)?;
            if drawing.kind == DrawingKind::Strip {
                looks.push(last);
                let looks: Vec<Vec<Vec<f32>>> = looks
                    .iter()
                    .map(|look| self.pixels(tape, look, &captions))
                    .collect::<std::result::Result<_, _>>()?;
                for row in 0..some.len() {
                    drawn.extend(looks.iter().map(|look| look[row].clone()));
                }
            } else {
                drawn.extend(self.pixels(tape, &last, &captions)?);
            }
        }
        Ok(drawn)
    }

    /// Encodes prompts, whose parts may have weights, if the network is conditional.
    fn read_prompts(
        &self,
        tape: &Tape,
        prompts: &[String],
    ) -> std::result::Result<Option<TextFeatures>, TrainError> {
        let prompts: Vec<WeightedPrompt> = prompts.iter().map(|prompt| WeightedPrompt::new(prompt)).collect();
        let texts: Vec<String> = prompts.iter().map(WeightedPrompt::text).collect();
        let told = self.denoiser.read(tape, &self.texts, &texts)?;
        let (Some(told), true) = (&told, prompts.iter().any(WeightedPrompt::is_weighted)) else {
            return Ok(told);
        };
        let Some(empty) = self.denoiser.read(tape, &self.texts, &[String::new()])? else { return Ok(None) };
        let tokens = weigh_tokens(tape, &told.tokens, &empty.tokens, &prompts, self.texts.tokenizer())?;
        Ok(Some(TextFeatures { tokens, pooled: told.pooled.clone() }))
    }

    /// Walks from noise to pictures under captions and without; `looks` gets what is predicted on the way, for a strip.
    fn walk(
        &self,
        tape: &Tape,
        drawing: &Drawing,
        pictures: &[Picture],
        captions: &[String],
        (told, untold): (Option<TextFeatures>, Option<&TextFeatures>),
        looks: &mut Vec<Value>,
    ) -> std::result::Result<Value, TrainError> {
        let dims = self.first_stage.as_ref().map_or([3, self.size, self.size], super::FirstStage::dims);
        let key = tape.session().key;
        let noise_of = |purpose: &str, index: u64| -> Result<Value> {
            let key = key.stream(purpose).index(index);
            let of = |picture: &Picture| {
                let draw = |number: u64| noise_of_samples(tape, key, &[number], &dims);
                let shares = picture.noises.iter().map(|(number, share)| Ok((*share, draw(*number)?)));
                mixed(tape, &shares.collect::<Result<Vec<_>>>()?)
            };
            rows_of(tape, &pictures.iter().map(of).collect::<Result<Vec<_>>>()?)
        };
        let count = pictures.len();
        let untold = match untold {
            Some(one) => {
                let rows = |row: &Value| rows_of(tape, &vec![row.clone(); count]);
                Some(TextFeatures { pooled: rows(&one.pooled)?, tokens: rows(&one.tokens)? })
            }
            None => None,
        };
        let guidance = self.settings.guidance();
        let mut predict = |x: &Value, timestep: f64| -> Result<Value> {
            let with = self.denoiser.predict(tape, x, &[timestep], told.as_ref())?;
            match &untold {
                Some(untold) => {
                    let without = self.denoiser.predict(tape, x, &[timestep], Some(untold))?;
                    guidance.apply(tape, &without, &with)
                }
                None => Ok(with),
            }
        };
        let mut sampler =
            self.settings.sampler().sampler(&self.objective.schedule, self.settings.target.prediction)?;
        let strip = drawing.kind == DrawingKind::Strip;
        let mut watch =
            |at: usize, steps: usize, denoised: &phalanx_models::diffusion::samplers::SamplerOutput| {
                // Evenly spread snapshots; the last one is the picture.
                let wanted = drawing.columns.saturating_sub(1);
                let is_look = |at: usize| (at + 1) * wanted / steps > at * wanted / steps;
                if strip && wanted > 0 && is_look(at) {
                    looks.push(denoised.image.clone());
                }
                Ok(())
            };
        let known = self.known(tape, drawing, captions)?;
        let walk = SamplingLoop { sampler: sampler.as_mut(), noise: noise_of("start", 0)?, initial: known };
        Ok(walk.run(tape, &mut predict, &mut |at| noise_of("step", at as u64), &mut watch)?)
    }

    /// Returns the start of sampling, if it is not noise alone.
    fn known(
        &self,
        tape: &Tape,
        drawing: &Drawing,
        captions: &[String],
    ) -> std::result::Result<Option<InitialImages>, TrainError> {
        let DrawingKind::From { image, strength, mask } = &drawing.kind else { return Ok(None) };
        let (size, count) = (self.size, captions.len());
        let constant = |values: &[f32], channels: usize| -> Result<Value> {
            let tensor = Tensor::from_slice(values, (1, channels, size, size), &Device::Cpu)?;
            Ok(Value::constant(tape.backend().from_host(&tensor)?))
        };
        let picture = ops::broadcast_as(tape, &constant(image, 3)?, (count, 3, size, size))?;
        let images = match &self.first_stage {
            None => picture,
            Some(stage) => {
                let latent = stage.encode(tape, &picture, captions)?;
                ops::scale(tape, &latent, self.scale()?)?
            }
        };
        let factor = self.first_stage.as_ref().map_or(Some(1), super::FirstStage::factor);
        let mask = match (mask, factor) {
            (None, _) => None,
            (Some(mask), Some(factor)) => Some(latent_mask(tape, &constant(mask, 1)?, factor)?),
            (Some(_), None) => {
                let problem =
                    "the latent vector of a cvae has no places, so no part of a picture can be kept";
                return Err(TrainError::Setup(problem.to_owned()));
            }
        };
        Ok(Some(InitialImages { images, strength: *strength, mask }))
    }

    /// Returns the scaling factor of latent images.
    fn scale(&self) -> std::result::Result<f64, TrainError> {
        let unknown = || {
            TrainError::Setup("the scale of latent images was not measured: nothing was trained yet".into())
        };
        self.denoiser.scale()?.ok_or_else(unknown)
    }

    /// The pixels of what was denoised, cut off at ±1.
    fn pixels(
        &self,
        tape: &Tape,
        images: &Value,
        captions: &[String],
    ) -> std::result::Result<Vec<Vec<f32>>, TrainError> {
        let pixels = match &self.first_stage {
            None => images.clone(),
            Some(stage) => stage.decode(tape, &ops::scale(tape, images, 1.0 / self.scale()?)?, captions)?,
        };
        let pixels = pixels.to_host()?.to_dtype(DType::F32)?.clamp(-1.0_f32, 1.0)?.flatten_from(1)?;
        Ok(pixels.to_vec2::<f32>()?)
    }
}

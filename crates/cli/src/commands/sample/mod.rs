//! `phalanx sample`: pictures for prompts, from trained runs or from published weights.

mod side_by_side;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use phalanx_tensor::Precision;
use toml::Value;

use super::ending::ending;
use super::error::CliError;
use super::former_run::former_run_option;
use super::log::warn_on_console;
use super::resolve::task_alone;
use super::trained_model::NamedModel;
use crate::console::out;
use crate::{Program, PublishedRequest};
use phalanx_config::Resolved;
use phalanx_run::{Grid, read_mask, read_picture};
use phalanx_trainer::engine::{CheckpointChoice, Drawing, DrawingKind, GridStyle, sample_model};

/// Draw pictures for prompts with a trained model.
#[derive(Debug, Args)]
#[command(arg = former_run_option())]
pub(super) struct SampleArgs {
    /// A run's folder, a checkpoint's (`…/checkpoints/step-N`), or an exported file or folder. Several: a row for each, a column
    /// for each prompt.
    #[arg(value_name = "RUN", required_unless_present = "diffusers")]
    runs: Vec<PathBuf>,
    /// Use the best checkpoint (checkpoint.best) instead of the newest one.
    #[arg(long, requires = "runs")]
    best: bool,
    /// A folder of published weights instead: Stable Diffusion in Hugging Face's layout.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["runs", "strip", "between", "image"])]
    diffusers: Option<PathBuf>,
    /// With --diffusers: height and width in pixels [default: those that the weights are made for].
    #[arg(long, value_name = "PIXELS", requires = "diffusers")]
    size: Option<usize>,
    /// With --diffusers: f32 or bf16, what products take and activations are kept in [default: f32].
    #[arg(long, requires = "diffusers")]
    precision: Option<Precision>,
    /// The prompt; each gets a row of the grid, with several runs a column.
    #[arg(long = "prompt", required = true, value_name = "TEXT")]
    prompts: Vec<String>,
    /// The picture to write; its ending decides the format: .png, .jpg or .jpeg.
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    #[command(flatten)]
    style: StyleArgs,
    /// Pictures for each prompt, or of a strip or an interpolation [default: as configured in sample.columns].
    #[arg(long)]
    columns: Option<u32>,
    /// The seed of the noise [default: as configured in train.seed].
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// A seed for each picture of a prompt: each column is the first that `--seed` with this number draws.
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', conflicts_with_all = ["columns", "strip", "between"])]
    seeds: Vec<u64>,
    #[command(flatten)]
    diffusion: DiffusionArgs,
    /// Diffusion: each prompt's row shows one picture on its way from noise.
    #[arg(long, conflicts_with_all = ["between", "image"])]
    strip: bool,
    /// Diffusion: rows lead from each prompt to the next one (`texts`), or from one noise to another (`noises`).
    #[arg(long, value_name = "texts|noises", conflicts_with = "image")]
    between: Option<InterpolationEnds>,
    #[command(flatten)]
    source: SourceArgs,
}

/// The picture that diffusion begins from.
#[derive(Debug, Args)]
struct SourceArgs {
    /// Diffusion: a picture to begin from, instead of noise alone.
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// With --image: how much of it is drawn anew, from 0 to 1 [default: 0.7, and 1 with a mask].
    #[arg(long, requires = "image")]
    strength: Option<f64>,
    /// With --image: a picture that is white where something is to be drawn and black where the image stays.
    #[arg(long, value_name = "FILE", requires = "image")]
    mask: Option<PathBuf>,
}

/// The style of the grid.
#[derive(Debug, Args)]
struct StyleArgs {
    /// Repeat each pixel this many times in both directions [default: small grids are magnified].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    scale: Option<u16>,
    /// Leave out the prompts below the pictures.
    #[arg(long)]
    no_captions: bool,
}

impl StyleArgs {
    fn grid(&self) -> GridStyle {
        GridStyle { scale: self.scale.map(usize::from), captions: !self.no_captions }
    }
}

/// The sampler of diffusion, by options that override the configuration.
#[derive(Debug, Args)]
struct DiffusionArgs {
    /// Diffusion: the number of sampling steps [default: as configured in model.sample_steps].
    #[arg(long)]
    steps: Option<u32>,
    /// Diffusion: the scale of classifier-free guidance; 1 = off [default: as configured in model.guidance].
    #[arg(long, value_name = "SCALE")]
    guidance: Option<f64>,
    /// Diffusion: a text that the pictures are guided away from, with a guidance other than 1.
    #[arg(long, value_name = "TEXT")]
    negative: Option<String>,
    /// Diffusion: ddpm, ddim, dpm-solver++ or euler [default: as configured in model.sampler].
    #[arg(long, value_name = "NAME")]
    sampler: Option<String>,
    /// Diffusion, ddim: the noise that a step adds, 0 to 1 [default: as configured in model.eta].
    #[arg(long)]
    eta: Option<f64>,
}

/// The ends of an interpolation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum InterpolationEnds {
    /// Interpolate between two prompts.
    Texts,
    /// Interpolate between two noises.
    Noises,
}

pub(super) fn run(program: &Program, args: &SampleArgs) -> Result<(), CliError> {
    ending("--out", &args.out, &Grid::ENDINGS)?;
    warn_on_console();
    let path = match (&args.runs[..], &args.diffusers) {
        (_, Some(folder)) => return with_published(program, args, folder),
        ([path], None) => path,
        ([], None) => return Err(CliError::Usage("sample needs a run or --diffusers".to_owned())),
        _ => {
            args.check_side_by_side()?;
            return side_by_side::run(program, args);
        }
    };
    let choice = if args.best { CheckpointChoice::Best } else { CheckpointChoice::Newest };
    let NamedModel { model, resolved, .. } = NamedModel::open(program, path, choice)?;
    let resolved = configuration(args, resolved)?;
    let config = &resolved.config;
    let drawing = drawing(args, config.sample.columns, config.model.image_size)?;
    let to = (args.out.as_path(), args.style.grid());
    let seeds = args.seeds(config.train.seed);
    let report = sample_model(&task_alone(program, config)?, &model, config, &drawing, &seeds, to)
        .map_err(CliError::failed)?;
    out(&format!("{} (weights after step {})", args.out.display(), model.step));
    let steps = config.get("model.sample_steps").as_ref().and_then(Value::as_integer);
    out(&speed(report.samples, report.time, steps));
    Ok(())
}

impl SampleArgs {
    /// Refuses options that several runs side by side do not have.
    fn check_side_by_side(&self) -> Result<(), CliError> {
        let given = [
            ("--columns", self.columns.is_some()),
            ("--seeds", !self.seeds.is_empty()),
            ("--strip", self.strip),
            ("--between", self.between.is_some()),
            ("--image", self.source.image.is_some()),
        ];
        match given.iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) => Err(CliError::Usage(format!(
                "{option} is for one run; several runs draw one picture of each prompt"
            ))),
            None => Ok(()),
        }
    }

    /// The seeds of the columns, or the one of all.
    fn seeds(&self, default: u64) -> Vec<u64> {
        match self.seeds.is_empty() {
            true => vec![self.seed.unwrap_or(default)],
            false => self.seeds.clone(),
        }
    }
}

/// Tells how fast pictures were drawn, with the network's steps for each if it has several.
fn speed(pictures: usize, time: Duration, steps: Option<i64>) -> String {
    let seconds = time.as_secs_f64().max(1e-9);
    let each = if pictures == 1 { "picture" } else { "pictures" };
    let of_steps = steps.map_or_else(String::new, |steps| {
        format!(", {steps} steps each, {:.1} steps a second", pictures as f64 * steps as f64 / seconds)
    });
    let (digits, a_minute) = (if seconds < 1.0 { 3 } else { 1 }, pictures as f64 * 60.0 / seconds);
    format!("{pictures} {each} in {seconds:.digits$} s: {a_minute:.1} a minute{of_steps}")
}

/// The default sampler of published weights.
const PUBLISHED_SAMPLER: &str = "dpm-solver++";

/// The sampler that adds noise by `--eta`.
const DDIM: &str = "ddim";

/// Draws with published weights.
fn with_published(program: &Program, args: &SampleArgs, folder: &Path) -> Result<(), CliError> {
    let kind = args.diffusion.sampler.as_deref().unwrap_or(PUBLISHED_SAMPLER);
    check_eta(&args.diffusion, kind)?;
    let none = || CliError::Usage(format!("{} has no sampler of published weights", program.name()));
    let sampler = program.published_sampler().ok_or_else(none)?;
    let guidance = args.diffusion.guidance.unwrap_or(7.5);
    if args.diffusion.negative.is_some() && guidance == 1.0 {
        return Err(CliError::Usage("--negative needs a --guidance other than 1".to_owned()));
    }
    let request = PublishedRequest {
        folder: folder.to_owned(),
        precision: args.precision.unwrap_or(Precision::F32),
        prompts: args.prompts.clone(),
        columns: match args.seeds.len() {
            0 => args.columns.map_or(1, |columns| columns.max(1) as usize),
            seeds => seeds,
        },
        size: args.size,
        sampler: kind.to_owned(),
        steps: args.diffusion.steps.unwrap_or(25) as usize,
        eta: args.diffusion.eta.unwrap_or(0.0),
        guidance,
        negative: args.diffusion.negative.clone().unwrap_or_default(),
        seeds: args.seeds(0),
    };
    let drawn = sampler(&request, &mut |line| out(line)).map_err(CliError::Failed)?;
    let size = drawn.size;
    let GridStyle { scale, captions } = args.style.grid();
    let grid = Grid::new(drawn.pictures.len(), request.columns, size, size).map_err(CliError::failed)?;
    let mut grid = grid.scaled(scale);
    for (at, picture) in drawn.pictures.iter().enumerate() {
        let pushed = match captions {
            true => grid.push_captioned(picture, &request.prompts[at / request.columns]),
            false => grid.push(picture),
        };
        pushed.map_err(CliError::failed)?;
    }
    grid.write(&args.out).map_err(CliError::failed)?;
    out(&format!("{}", args.out.display()));
    out(&speed(drawn.pictures.len(), drawn.time, i64::try_from(request.steps).ok()));
    Ok(())
}

/// Applies the options to the configuration of a model. One that its task does not have is an error.
fn configuration(args: &SampleArgs, mut resolved: Resolved) -> Result<Resolved, CliError> {
    let options = [
        ("columns", "sample.columns", args.columns.map(|columns| Value::Integer(columns.into()))),
        ("steps", "model.sample_steps", args.diffusion.steps.map(|steps| Value::Integer(steps.into()))),
        ("guidance", "model.guidance", args.diffusion.guidance.map(Value::Float)),
        ("negative", "model.negative", args.diffusion.negative.clone().map(Value::String)),
        ("sampler", "model.sampler", args.diffusion.sampler.clone().map(Value::String)),
        ("eta", "model.eta", args.diffusion.eta.map(Value::Float)),
    ];
    for (option, key, value) in options {
        if let Some(value) = value {
            resolved.set_value(&format!("--{option} {value}"), key, value)?;
        }
    }
    resolved.validate_without_images()?;
    let sampler = resolved.config.get("model.sampler");
    let sampler = sampler.as_ref().and_then(Value::as_str).unwrap_or_default();
    check_eta(&args.diffusion, sampler)?;
    Ok(resolved)
}

/// Refuses `--eta` for a sampler that adds no noise by it.
fn check_eta(diffusion: &DiffusionArgs, sampler: &str) -> Result<(), CliError> {
    match diffusion.eta {
        Some(eta) if sampler != DDIM => Err(CliError::Usage(format!(
            "--eta {eta}: only the sampler {DDIM} adds noise by it, and the sampler is {sampler}; add --sampler {DDIM}"
        ))),
        _ => Ok(()),
    }
}

/// Returns the drawing that the arguments ask for, with `columns` by default, of pictures of `size` pixels.
fn drawing(args: &SampleArgs, columns: usize, size: usize) -> Result<Drawing, CliError> {
    let kind = match (&args.source.image, args.between) {
        (Some(image), _) => {
            let mask = args.source.mask.as_deref().map(|mask: &Path| read_mask(mask, size)).transpose();
            let mask = mask.map_err(CliError::failed)?;
            let strength = args.source.strength.unwrap_or(if mask.is_some() { 1.0 } else { 0.7 });
            DrawingKind::From { image: read_picture(image, size).map_err(CliError::failed)?, strength, mask }
        }
        (None, Some(InterpolationEnds::Texts)) => DrawingKind::BetweenTexts,
        (None, Some(InterpolationEnds::Noises)) => DrawingKind::BetweenNoises,
        (None, None) if args.strip => DrawingKind::Strip,
        (None, None) => DrawingKind::Samples,
    };
    Ok(Drawing { prompts: args.prompts.clone(), columns, kind })
}

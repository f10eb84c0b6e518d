//! `phalanx predict`: the classes of images or texts, by a trained model.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value, json};

use super::ending::ending;
use super::error::CliError;
use super::resolve::task_alone;
use super::trained_model::NamedModel;
use crate::Program;
use crate::console::{err, out};
use phalanx_config::{Config, Resolved};
use phalanx_data::ImageFiles;
use phalanx_run::Grid;
use phalanx_trainer::engine::{
    CheckpointChoice, ClassAnswer, Picture, PredictOptions, PredictOutcome, Prediction, TextInput,
    TrainedModel, predict, predict_texts,
};

/// The pictures of a grid, and those in a row.
const GRID_PICTURES: usize = 64;
const GRID_COLUMNS: usize = 8;

/// The side in pixels that smaller pictures of a grid are magnified to, so that captions fit.
const GRID_SIDE: usize = 96;

/// The widest column of file names, in characters.
const WIDEST_FILE: usize = 60;

/// Predict the classes of images or texts with a trained model. Images are prepared as in the model's evaluation. Files
/// that cannot be read are listed at the end, with exit code 1.
#[derive(Debug, Args)]
pub(super) struct PredictArgs {
    /// A run's folder, a checkpoint's (`…/checkpoints/step-N`), or an exported file or folder.
    #[arg(value_name = "RUN")]
    model: PathBuf,
    /// Images, or folders, of which all images are taken in sorted order, those of folders below included.
    #[arg(value_name = "IMAGE|FOLDER", required_unless_present_any = ["texts", "text_file"])]
    images: Vec<PathBuf>,
    /// A text, for a classifier of texts; several are computed together.
    #[arg(long = "text", value_name = "TEXT", conflicts_with_all = ["images", "grid"])]
    texts: Vec<String>,
    /// The second text of a `--text`, for a classifier of pairs; one for each.
    #[arg(long = "pair", value_name = "TEXT", requires = "texts")]
    pairs: Vec<String>,
    /// A file with a text in each line.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["images", "texts", "grid"])]
    text_file: Option<PathBuf>,
    /// A file with the second text of each line of `--text-file`.
    #[arg(long, value_name = "FILE", requires = "text_file")]
    pair_file: Option<PathBuf>,
    /// Show this many of the most probable classes.
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    top: u16,
    /// Print a line of JSON for each image instead of a table.
    #[arg(long)]
    json: bool,
    /// Write a picture of the least sure images, the least sure first; .png, .jpg or .jpeg.
    #[arg(long, value_name = "FILE")]
    grid: Option<PathBuf>,
    /// Images of a batch [default: as in the model's evaluation].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Compute on `cpu` or `cuda`; `auto` uses a GPU if there is one [default: as in the run; auto for exports].
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
}

pub(super) fn run(program: &Program, args: &PredictArgs) -> Result<(), CliError> {
    if let Some(grid) = &args.grid {
        ending("--grid", grid, &Grid::ENDINGS)?;
    }
    let NamedModel { model, resolved, .. } =
        NamedModel::open(program, &args.model, CheckpointChoice::Newest)?;
    let resolved = with_options(args, resolved)?;
    let config = &resolved.config;
    if args.images.is_empty() {
        return predict_of_texts(program, args, &model, config);
    }
    let files = ImageFiles::list(args.images.iter().map(PathBuf::as_path)).map_err(CliError::failed)?;
    let batch = batch(config);
    let pictures = if args.grid.is_some() { GRID_PICTURES } else { 0 };
    let options = PredictOptions { batch, top: args.top.into(), pictures };
    let width = files.iter().map(|file| file.display().to_string().chars().count()).max().unwrap_or(0);
    let width = width.min(WIDEST_FILE);
    let mut print = |prediction: &Prediction| match args.json {
        true => out(&as_json(prediction, args.top > 1).to_string()),
        false => out(&as_row(prediction, width)),
    };
    let task = task_alone(program, config)?;
    let outcome = predict(&task, &model, config, &files, options, &mut print).map_err(CliError::failed)?;
    if let Some(grid) = &args.grid {
        write_grid(grid, &outcome)?;
    }
    report_unreadable(&outcome)
}

/// The samples of a batch.
fn batch(config: &Config) -> usize {
    if config.eval.batch > 0 { config.eval.batch } else { config.train.global_batch }
}

/// Returns the texts of the options.
fn texts_of(args: &PredictArgs) -> Result<Vec<TextInput>, CliError> {
    let lines = |option: &str, file: &Path| {
        let text = phalanx_run::Links::Follow.read_text(file);
        let text = text.map_err(|error| CliError::Usage(format!("{option} {}: {error}", file.display())))?;
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        Ok::<_, CliError>(lines.map(str::to_owned).collect::<Vec<String>>())
    };
    let of_file = |option: &str, file: Option<&PathBuf>, given: &[String]| match file {
        Some(file) => lines(option, file),
        None => Ok(given.to_vec()),
    };
    let texts = of_file("--text-file", args.text_file.as_ref(), &args.texts)?;
    let seconds = of_file("--pair-file", args.pair_file.as_ref(), &args.pairs)?;
    if !seconds.is_empty() && seconds.len() != texts.len() {
        let (texts, seconds) = (texts.len(), seconds.len());
        return Err(CliError::Usage(format!(
            "{texts} texts and {seconds} second texts; each text needs one"
        )));
    }
    let mut seconds = seconds.into_iter();
    Ok(texts.into_iter().map(|text| TextInput { text, second: seconds.next() }).collect())
}

/// Predicts the classes of texts.
fn predict_of_texts(
    program: &Program,
    args: &PredictArgs,
    model: &TrainedModel,
    config: &Config,
) -> Result<(), CliError> {
    let texts = texts_of(args)?;
    let options = PredictOptions { batch: batch(config), top: args.top.into(), pictures: 0 };
    let mut print = |number: usize, answer: &ClassAnswer| match args.json {
        true => {
            let mut object = answer_as_json(answer, args.top > 1);
            object.insert("text".to_owned(), texts[number].text.as_str().into());
            if let Some(second) = &texts[number].second {
                object.insert("pair".to_owned(), second.as_str().into());
            }
            out(&Value::from(object).to_string());
        }
        false => {
            let TextInput { text, second } = &texts[number];
            let second = second.as_ref().map_or_else(String::new, |second| format!(" | {second}"));
            out(&format!("{}  {text}{second}", answer_as_words(answer)));
        }
    };
    let task = task_alone(program, config)?;
    predict_texts(&task, model, config, &texts, options, &mut print).map_err(CliError::failed)
}

/// Applies the options to the configuration of the model.
fn with_options(args: &PredictArgs, mut resolved: Resolved) -> Result<Resolved, CliError> {
    if let Some(device) = &args.device {
        let value = toml::Value::String(device.clone());
        resolved.set_value(&format!("--device {device}"), "train.device", value)?;
    }
    if let Some(batch) = args.batch {
        resolved.set_value(&format!("--batch {batch}"), "eval.batch", toml::Value::Integer(batch.into()))?;
    }
    resolved.validate_without_images()?;
    Ok(resolved)
}

/// Renders an answer as an object: `class` and `probability`, with `top` for several classes.
fn answer_as_json(answer: &ClassAnswer, several: bool) -> Map<String, Value> {
    let mut object = Map::new();
    if let Some((class, probability)) = answer.ranked.first() {
        object.insert("class".to_owned(), class.as_str().into());
        object.insert("probability".to_owned(), (*probability).into());
    }
    if several {
        let ranked = answer.ranked.iter();
        let top: Vec<Value> =
            ranked.map(|(class, probability)| json!({"class": class, "probability": probability})).collect();
        object.insert("top".to_owned(), top.into());
    }
    object
}

/// Renders an answer as classes with percentages.
fn answer_as_words(answer: &ClassAnswer) -> String {
    let named =
        answer.ranked.iter().map(|(class, probability)| format!("{class} {:.1} %", 100.0 * probability));
    named.collect::<Vec<_>>().join(", ")
}

/// Renders a prediction as an object: `class` and `probability`, with `top` for several classes; by attribute for several
/// attributes.
fn as_json(prediction: &Prediction, several: bool) -> Value {
    let of = |answer: &ClassAnswer| answer_as_json(answer, several);
    let mut object = Map::new();
    object.insert("file".to_owned(), prediction.file.display().to_string().into());
    for answer in &prediction.answers {
        match &answer.attribute {
            Some(attribute) => drop(object.insert(attribute.clone(), of(answer).into())),
            None => object.extend(of(answer)),
        }
    }
    object.into()
}

/// Renders a prediction as a row of a table.
fn as_row(prediction: &Prediction, width: usize) -> String {
    let of = |answer: &ClassAnswer| {
        let classes = answer_as_words(answer);
        match &answer.attribute {
            Some(attribute) => format!("{attribute}: {classes}"),
            None => classes,
        }
    };
    let answers: Vec<String> = prediction.answers.iter().map(of).collect();
    format!("{:<width$}  {}", prediction.file.display().to_string(), answers.join("; "))
}

/// Writes the least sure images with their classes.
fn write_grid(path: &Path, outcome: &PredictOutcome) -> Result<(), CliError> {
    let Some((_, Picture { size, .. })) = outcome.doubtful.first() else { return Ok(()) };
    let (count, size) = (outcome.doubtful.len(), *size);
    let scale = Some((GRID_SIDE / size.max(1)).max(1));
    let mut grid = Grid::new(count, GRID_COLUMNS, size, size).map_err(CliError::failed)?.scaled(scale);
    for (prediction, picture) in &outcome.doubtful {
        let first = prediction.answers.iter().filter_map(|answer| answer.ranked.first());
        // Of several attributes the least sure one.
        let least = first.min_by(|a, b| a.1.total_cmp(&b.1));
        let caption = least.map(|(class, probability)| format!("{class} {:.0}%", 100.0 * probability));
        grid.push_captioned(&picture.pixels, &caption.unwrap_or_default()).map_err(CliError::failed)?;
    }
    grid.write(path).map_err(CliError::failed)?;
    err(&format!("{} (the {count} least sure of {} images)", path.display(), outcome.predicted));
    Ok(())
}

/// Lists the files that were not predicted.
fn report_unreadable(outcome: &PredictOutcome) -> Result<(), CliError> {
    if outcome.unreadable.is_empty() {
        return Ok(());
    }
    for image in &outcome.unreadable {
        err(&format!("unreadable: {}: {}", image.file.display(), image.problem));
    }
    let (unreadable, predicted) = (outcome.unreadable.len(), outcome.predicted);
    let files = if unreadable == 1 { "1 file is".to_owned() } else { format!("{unreadable} files are") };
    Err(CliError::failed(match predicted {
        0 => format!("{files} unreadable, and none is predicted"),
        1 => format!("{files} unreadable; the other image is predicted"),
        _ => format!("{files} unreadable; the other {predicted} images are predicted"),
    }))
}

//! `phalanx eval`: measures on the test split, of a classifier class by class, and the quality of generated images.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value};

use super::error::CliError;
use super::former_run::former_run_option;
use super::resolve::{set_data, task_of};
use super::trained_model::{FOLDER_WEIGHTS, NamedModel, description};
use crate::Program;
use crate::console::{err, out};
use phalanx_config::{Config, Resolved};
use phalanx_run::format::{columns, number};
use phalanx_run::{aligned, class_lines};
use phalanx_trainer::engine::{
    CheckpointChoice, ConfusedValues, RunEvaluation, TrainedModel, TrainedWeights, evaluate_model,
};

/// Evaluate a trained model on a test split: a run, an exported file or folder, or weights of another program. Judges
/// measure the images that it generates.
#[derive(Debug, Args)]
#[command(arg = former_run_option())]
pub(super) struct EvalArgs {
    /// A run's folder, a checkpoint's (`…/checkpoints/step-N`), or an exported file or folder.
    #[arg(value_name = "RUN", conflicts_with_all = ["model", "weights"], required_unless_present = "model")]
    run: Option<PathBuf>,
    /// Use the best checkpoint (checkpoint.best) instead of the newest one.
    #[arg(long, requires = "run")]
    best: bool,
    /// The model that the weights belong to, as in model.kind; other settings are those of the preset of this model
    /// and these images, if there is one.
    #[arg(long, value_name = "NAME", requires_all = ["weights", "data"])]
    model: Option<String>,
    /// Weights of another program: a file (safetensors, or of torch.save), or a folder of Hugging Face's libraries.
    #[arg(long, value_name = "FILE|FOLDER", requires = "model")]
    weights: Option<PathBuf>,
    /// The images: shapes, cifar10=PATH, or folder=PATH [default: those of the run].
    #[arg(long, value_name = "KIND=PATH")]
    data: Option<String>,
    /// A run whose network judges what this one draws, as in quality.judges; may be given several times.
    #[arg(long = "judge", value_name = "DIR")]
    judges: Vec<String>,
    /// Override a key (see `phalanx config show`).
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// The folder for the files of a classifier: classes.json, confusion.svg, mistakes.svg [default: RUN/eval].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON: the measures, and of a classifier the classes and the confusion matrix.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(program: &Program, args: &EvalArgs) -> Result<(), CliError> {
    let NamedModel { model, resolved, run } = match (&args.run, &args.model, &args.weights) {
        (Some(path), ..) => named(program, args, path)?,
        (None, Some(kind), Some(weights)) => of_weights(program, args, kind, weights)?,
        _ => return Err(CliError::Usage("eval needs a run, or --model and --weights".to_owned())),
    };
    let config = &resolved.config;
    let files = args.out.clone().or_else(|| Some(run?.path().join("eval")));
    let evaluation = evaluate_model(&task_of(program, config)?, &model, config, files.as_deref())
        .map_err(CliError::failed)?;
    let mut facts = Map::new();
    facts.insert("model".to_owned(), config.model.kind.as_str().into());
    match &model.weights {
        TrainedWeights::Checkpoint { .. } => drop(facts.insert("step".to_owned(), model.step.into())),
        TrainedWeights::Exported(file) => {
            facts.insert("weights".to_owned(), file.display().to_string().into());
            facts.insert("step".to_owned(), model.step.into());
        }
        TrainedWeights::Foreign(file) | TrainedWeights::Published(file) => {
            facts.insert("weights".to_owned(), file.display().to_string().into());
        }
    }
    match args.json {
        true => out(&json(facts, &evaluation)?),
        false => text(&facts, &evaluation, files.as_deref()).iter().for_each(|line| out(line)),
    }
    match evaluation.measures.into_iter().find(|(_, value)| !value.is_finite()) {
        // JSON has null for it.
        Some((name, value)) => Err(CliError::failed(format!(
            "{name} is {value}: the weights are of no use for this data, or the data are damaged"
        ))),
        None => Ok(()),
    }
}

/// Opens a run or an exported model under the options.
fn named(program: &Program, args: &EvalArgs, path: &Path) -> Result<NamedModel, CliError> {
    let choice = if args.best { CheckpointChoice::Best } else { CheckpointChoice::Newest };
    let named = NamedModel::open(program, path, choice)?;
    let changed = with_options(args, named.resolved.clone())?;
    let is_embedded = changed.config.data.kind.is_embedded();
    if named.run.is_none() && changed.config.data.path.is_empty() && !is_embedded {
        return Err(CliError::Usage(format!(
            "{} is an exported model, which names no images; add --data KIND=PATH",
            path.display()
        )));
    }
    changed.validate()?;
    named.check_changes(&changed.config)?;
    Ok(NamedModel { resolved: changed, ..named })
}

/// Opens weights as those of the model `kind`. Their own description decides, if they have one.
fn of_weights(
    program: &Program,
    args: &EvalArgs,
    kind: &str,
    weights: &Path,
) -> Result<NamedModel, CliError> {
    let file = if weights.is_dir() { weights.join(FOLDER_WEIGHTS) } else { weights.to_owned() };
    let Some(metadata) = description(&file)? else {
        let mut resolved = usual(program, kind, args.data.as_deref())?;
        let option = format!("--model {kind}");
        resolved.set_value(&option, "model.kind", toml::Value::String(kind.to_owned()))?;
        let resolved = with_options(args, resolved)?;
        resolved.validate()?;
        err(&format!(
            "note: {} describes no images; assumed {}; --set changes it",
            file.display(),
            assumed(&resolved.config)
        ));
        return Ok(NamedModel { model: TrainedModel::foreign(weights.to_owned()), resolved, run: None });
    };
    if metadata.kind() != kind {
        let (file, own) = (file.display(), metadata.kind());
        return Err(CliError::Usage(format!("--model {kind}: {file} holds a `{own}`; use: eval {file}")));
    }
    let named = NamedModel::described(program, file, &metadata)?;
    let changed = with_options(args, named.resolved.clone())?;
    changed.validate()?;
    named.check_changes(&changed.config)?;
    Ok(NamedModel { resolved: changed, ..named })
}

/// Applies the options to a configuration.
fn with_options(args: &EvalArgs, mut resolved: Resolved) -> Result<Resolved, CliError> {
    if let Some(data) = &args.data {
        set_data(&mut resolved, data)?;
    }
    for set in &args.sets {
        resolved.set(&format!("--set {set}"), set)?;
    }
    if !args.judges.is_empty() {
        let judges = args.judges.iter().cloned().map(toml::Value::String).collect();
        resolved.set_value("--judge", "quality.judges", toml::Value::Array(judges))?;
    }
    Ok(resolved)
}

/// The facts and the measures as one object, with the classes of a classifier.
fn json(mut facts: Map<String, Value>, evaluation: &RunEvaluation) -> Result<String, CliError> {
    facts.extend(evaluation.measures.iter().map(|(name, value)| (name.clone(), Value::from(*value))));
    if let Some(classes) = &evaluation.classes {
        let of = |value: Result<Value, serde_json::Error>| value.map_err(CliError::failed);
        facts.insert("classes".to_owned(), of(serde_json::to_value(&classes.classes))?);
        facts.insert("confusion".to_owned(), of(serde_json::to_value(&classes.confusion))?);
        facts.insert("mistakes".to_owned(), of(serde_json::to_value(&classes.mistakes))?);
    }
    if !evaluation.confusions.is_empty() {
        let confusions = serde_json::to_value(&evaluation.confusions).map_err(CliError::failed)?;
        facts.insert("confusions".to_owned(), confusions);
    }
    Ok(Value::Object(facts).to_string())
}

/// The facts and the measures as lines, with the tables and files of a classifier.
fn text(facts: &Map<String, Value>, evaluation: &RunEvaluation, files: Option<&Path>) -> Vec<String> {
    let plain = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let facts = facts.iter().map(|(name, value)| (name.clone(), plain(value)));
    let measures = evaluation.measures.iter().map(|(name, value)| (name.clone(), number(*value)));
    let mut lines = aligned(&facts.chain(measures).collect::<Vec<_>>());
    if let Some(classes) = &evaluation.classes {
        lines.push(String::new());
        lines.extend(class_lines(classes));
        if let Some(files) = files {
            lines.extend([String::new(), format!("files: {}", files.display())]);
        }
    }
    lines.extend(confusions(&evaluation.confusions));
    lines
}

/// The number of confused values that are listed.
const CONFUSED: usize = 10;

/// Lists the values that judges found most often in place of others.
fn confusions(all: &[ConfusedValues]) -> Vec<String> {
    if all.is_empty() {
        return Vec::new();
    }
    let head = ["", "should be", "found", "drawn", "real"].map(str::to_owned).to_vec();
    let row = |pair: &ConfusedValues| {
        let ConfusedValues { property, wanted, found, images, drawn, real } = pair;
        vec![
            property.clone(),
            wanted.clone(),
            found.clone(),
            format!("{drawn} of {images}"),
            format!("{real} of {images}"),
        ]
    };
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(all.iter().take(CONFUSED).map(row)).collect();
    let title = "most confused, as judges see drawn and real images:".to_owned();
    [String::new(), title].into_iter().chain(columns(&rows)).collect()
}

/// The preset for a model on images, as `cifar10-resnet18`; the defaults if there is none.
fn usual(program: &Program, model: &str, data: Option<&str>) -> Result<Resolved, CliError> {
    let kind = data.unwrap_or_default().split('=').next().unwrap_or_default();
    let preset = format!("{kind}-{model}");
    let preset = program.catalogue().preset(&preset).map(|_| preset.as_str());
    Ok(program.catalogue().resolve(preset, &[])?)
}

/// Lists the preparation of images that a file of another program does not describe.
fn assumed(config: &Config) -> String {
    let (model, data) = (&config.model, &config.data);
    let resize = if data.resize == 0 { model.image_size } else { data.resize };
    format!(
        "model.image_size = {}, data.resize = {resize} ({}, {}), data.normalise = {}",
        model.image_size, data.resize_mode, data.resize_filter, data.normalise
    )
}

//! `phalanx eval`: measures on the test split, of a classifier class by class, and the quality of generated images.

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value};

use super::error::CliError;
use super::resolve::{configuration_of, set_data, task_of};
use crate::Program;
use crate::console::out;
use phalanx_run::format::number;
use phalanx_run::{RunFolder, aligned, class_lines};
use phalanx_trainer::config::Resolved;
use phalanx_trainer::engine::{self, CheckpointChoice, RunEvaluation};

/// Evaluate a trained run, or weights from a file, on a test split. Judges measure the images that it generates.
#[derive(Debug, Args)]
pub(super) struct EvalArgs {
    /// The run's folder.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "weights"], required_unless_present = "model")]
    run: Option<PathBuf>,
    /// Use the best checkpoint (checkpoint.best) instead of the newest one.
    #[arg(long, requires = "run")]
    best: bool,
    /// The model that the weights belong to, as in model.kind; other settings are those of the preset of this model
    /// and these images, if there is one.
    #[arg(long, value_name = "NAME", requires_all = ["weights", "data"])]
    model: Option<String>,
    /// Weights: safetensors, or a file of torch.save.
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// The images: shapes, cifar10=PATH, or folder=PATH.
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
    let prepare = |mut resolved: Resolved| -> Result<Resolved, CliError> {
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
        resolved.validate()?;
        Ok(resolved)
    };
    let mut facts = Map::new();
    let (evaluation, files) = match (&args.run, &args.model, &args.weights) {
        (Some(run), ..) => {
            let folder = RunFolder::open(run).map_err(CliError::failed)?;
            let resolved = prepare(configuration_of(program, &folder)?)?;
            let files = args.out.clone().unwrap_or_else(|| run.join("eval"));
            let task = task_of(program, &resolved.config)?;
            let choice = if args.best { CheckpointChoice::Best } else { CheckpointChoice::Newest };
            let evaluation = engine::evaluate_run(&task, &folder, &resolved.config, choice, Some(&files))
                .map_err(CliError::failed)?;
            facts.insert("model".to_owned(), resolved.config.model.kind.as_str().into());
            facts.insert("step".to_owned(), evaluation.step.into());
            (evaluation, Some(files))
        }
        (None, Some(model), Some(weights)) => {
            let mut resolved = usual(program, model, args.data.as_deref())?;
            resolved.set_value(
                &format!("--model {model}"),
                "model.kind",
                toml::Value::String(model.clone()),
            )?;
            let resolved = prepare(resolved)?;
            let task = task_of(program, &resolved.config)?;
            facts.insert("model".to_owned(), model.as_str().into());
            facts.insert("weights".to_owned(), weights.display().to_string().into());
            let evaluation = engine::evaluate_weights(&task, weights, &resolved.config, args.out.as_deref())
                .map_err(CliError::failed)?;
            (evaluation, args.out.clone())
        }
        _ => return Err(CliError::Usage("eval needs --run, or --model and --weights".to_owned())),
    };
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

/// The facts and the measures as one object, with the classes of a classifier.
fn json(mut facts: Map<String, Value>, evaluation: &RunEvaluation) -> Result<String, CliError> {
    facts.extend(evaluation.measures.iter().map(|(name, value)| (name.clone(), Value::from(*value))));
    if let Some(classes) = &evaluation.classes {
        let of = |value: Result<Value, serde_json::Error>| value.map_err(CliError::failed);
        facts.insert("classes".to_owned(), of(serde_json::to_value(&classes.classes))?);
        facts.insert("confusion".to_owned(), of(serde_json::to_value(&classes.confusion))?);
        facts.insert("mistakes".to_owned(), of(serde_json::to_value(&classes.mistakes))?);
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
    lines
}

/// The preset for a model on images, as `cifar10-resnet18`; the defaults if there is none.
fn usual(program: &Program, model: &str, data: Option<&str>) -> Result<Resolved, CliError> {
    let kind = data.unwrap_or_default().split('=').next().unwrap_or_default();
    let preset = format!("{kind}-{model}");
    let preset = program.catalogue().preset(&preset).map(|_| preset.as_str());
    Ok(program.catalogue().resolve(preset, &[])?)
}

//! `phalanx eval`: loss and accuracy on the test split, and how good drawn pictures are, as JSON.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value};

use super::error::CliError;
use super::resolve::{configuration_of, set_data, task_of};
use crate::Program;
use crate::console::out;
use phalanx_run::RunFolder;
use phalanx_trainer::config::Resolved;
use phalanx_trainer::engine;

/// Evaluate a trained run, or weights from a file, on a test split. Judges measure what it draws. Print JSON.
#[derive(Debug, Args)]
pub(super) struct EvalArgs {
    /// The run's folder.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "weights"], required_unless_present = "model")]
    run: Option<PathBuf>,
    /// The model that the weights belong to, as in model.kind; other settings are those of the preset of this model
    /// and these images, if there is one.
    #[arg(long, value_name = "NAME", requires_all = ["weights", "data"])]
    model: Option<String>,
    /// Weights: a file (safetensors, or of torch.save), a folder of Hugging Face's libraries, or a run.
    #[arg(long, value_name = "FILE|FOLDER")]
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
    let mut report = Map::new();
    let measures = match (&args.run, &args.model, &args.weights) {
        (Some(run), ..) => {
            let folder = RunFolder::open(run).map_err(CliError::failed)?;
            let resolved = prepare(configuration_of(program, &folder)?)?;
            let (step, measures) =
                engine::evaluate_run(&task_of(program, &resolved.config)?, &folder, &resolved.config)
                    .map_err(CliError::failed)?;
            report.insert("model".to_owned(), resolved.config.model.kind.as_str().into());
            report.insert("step".to_owned(), step.into());
            measures
        }
        (None, Some(model), Some(weights)) => {
            let mut resolved = usual(program, model, args.data.as_deref())?;
            resolved.set_value(
                &format!("--model {model}"),
                "model.kind",
                toml::Value::String(model.clone()),
            )?;
            let resolved = prepare(resolved)?;
            report.insert("model".to_owned(), model.as_str().into());
            report.insert("weights".to_owned(), weights.display().to_string().into());
            engine::evaluate_weights(&task_of(program, &resolved.config)?, weights, &resolved.config)
                .map_err(CliError::failed)?
        }
        _ => return Err(CliError::Usage("eval needs --run, or --model and --weights".to_owned())),
    };
    let broken = measures.iter().find(|(_, value)| !value.is_finite()).cloned();
    report.extend(measures.into_iter().map(|(name, value)| (name, Value::from(value))));
    out(&Value::Object(report).to_string());
    match broken {
        // JSON has null for it.
        Some((name, value)) => Err(CliError::failed(format!(
            "{name} is {value}: the weights are of no use for this data, or the data are damaged"
        ))),
        None => Ok(()),
    }
}

/// The preset for a model on images, as `cifar10-resnet18`; the defaults if there is none.
fn usual(program: &Program, model: &str, data: Option<&str>) -> Result<Resolved, CliError> {
    let kind = data.unwrap_or_default().split('=').next().unwrap_or_default();
    let preset = format!("{kind}-{model}");
    let preset = program.catalogue().preset(&preset).map(|_| preset.as_str());
    Ok(program.catalogue().resolve(preset, &[])?)
}

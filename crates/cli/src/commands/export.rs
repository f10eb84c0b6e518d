//! `phalanx export`: a trained model for other programs: safetensors, ONNX, or a folder as on Hugging Face's hub.

mod adapters;
mod card;
mod folder;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};

use super::ending::ending;
use super::error::CliError;
use super::resolve::{configuration_of, task_alone};
use super::trained_model::{NamedModel, description, find_checkpoint};
use crate::Program;
use crate::console::{err, out};
use phalanx_checkpoint::{Checkpoint, EMA, ExportCount, ExportOptions, MODEL};
use phalanx_config::Resolved;
use phalanx_run::format::bytes;
use phalanx_run::{RunFolder, sync_folder};
use phalanx_tensor::AdaptedLayer;
use phalanx_trainer::engine::{
    CheckpointChoice, METADATA_KEY, ModelMetadata, Task, TrainedModel, export_onnx, model_adapters,
};
use phalanx_weights::ModelAdapters;

/// Write a trained model for other programs: parameters and buffers as safetensors, under the names that PyTorch uses, a
/// folder as on Hugging Face's hub, or an ONNX model.
#[derive(Debug, Args)]
pub(super) struct ExportArgs {
    /// A run's folder, of which the newest complete checkpoint is taken, or a checkpoint's own (`…/checkpoints/step-N`);
    /// for ONNX also an exported file or folder.
    #[arg(value_name = "RUN")]
    from: PathBuf,
    /// The file to write: FILE.safetensors or FILE.onnx. A folder ends with `/`.
    #[arg(long, value_name = "FILE|FOLDER/")]
    out: PathBuf,
    /// The format [default: by --out].
    #[arg(long, value_name = "FORMAT")]
    format: Option<ExportFormat>,
    /// Use the best checkpoint (checkpoint.best) instead of the newest one.
    #[arg(long)]
    best: bool,
    /// Write the averaged parameters (train.ema) where there are some.
    #[arg(long)]
    ema: bool,
    /// Write the adapters alone (lora.rank), as a folder that peft reads. Without it they are added to the weights.
    #[arg(long)]
    adapters: bool,
    /// ONNX: also write reference inputs and outputs, with which docs/check_onnx.py checks the model.
    #[arg(long, value_name = "FILE.safetensors")]
    check: Option<PathBuf>,
}

impl ExportArgs {
    fn choice(&self) -> CheckpointChoice {
        if self.best { CheckpointChoice::Best } else { CheckpointChoice::Newest }
    }
}

/// The format of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ExportFormat {
    /// One file of parameters and buffers, with the model's description in its metadata.
    Safetensors,
    /// A folder with config.json, preprocessor_config.json, model.safetensors and README.md.
    Huggingface,
    /// The forward pass as one file.
    Onnx,
}

pub(super) fn run(program: &Program, args: &ExportArgs) -> Result<(), CliError> {
    let format = format_of(args)?;
    if let Some(check) = &args.check {
        if format != ExportFormat::Onnx {
            return Err(CliError::Usage("--check is for ONNX; add --out FILE.onnx".to_owned()));
        }
        ending("--check", check, &["safetensors"])?;
    }
    if args.adapters {
        if format != ExportFormat::Huggingface {
            return Err(CliError::Usage("--adapters writes a folder; use --out FOLDER/".to_owned()));
        }
        return adapters::write(program, args);
    }
    match format {
        ExportFormat::Onnx => to_onnx(program, args),
        ExportFormat::Safetensors => to_file(program, args),
        ExportFormat::Huggingface => to_folder(program, args),
    }
}

/// Returns the format that `--out` and `--format` ask for together.
fn format_of(args: &ExportArgs) -> Result<ExportFormat, CliError> {
    let text = args.out.to_string_lossy();
    let is_folder = text.ends_with(std::path::is_separator) || args.out.is_dir();
    let by_ending = match is_folder {
        true => ExportFormat::Huggingface,
        false if args.format == Some(ExportFormat::Huggingface) => ExportFormat::Huggingface,
        false => match ending("--out", &args.out, &["safetensors", "onnx"]) {
            Ok("onnx") => ExportFormat::Onnx,
            Ok(_) => ExportFormat::Safetensors,
            Err(_) => {
                return Err(CliError::Usage(format!(
                    "--out {text}: an export is written as .safetensors or .onnx, or as a folder: --out {text}/"
                )));
            }
        },
    };
    match args.format {
        Some(format) if format != by_ending => {
            let (name, wanted) = match format {
                ExportFormat::Safetensors => ("safetensors", "FILE.safetensors"),
                ExportFormat::Onnx => ("onnx", "FILE.onnx"),
                ExportFormat::Huggingface => ("huggingface", "FOLDER/"),
            };
            Err(CliError::Usage(format!("--format {name} does not fit --out {text}; use --out {wanted}")))
        }
        _ => Ok(by_ending),
    }
}

/// A checkpoint of a known run, as exports describe it.
struct Exported {
    checkpoint: Checkpoint,
    run: RunFolder,
    resolved: Resolved,
    task: Task,
    metadata: ModelMetadata,
    adapters: Option<ModelAdapters>,
}

impl Exported {
    fn new(
        program: &Program,
        checkpoint: Checkpoint,
        run: RunFolder,
        averages: bool,
    ) -> Result<Self, CliError> {
        let resolved = configuration_of(program, &run)?;
        let config = &resolved.config;
        let task = task_alone(program, config)?;
        let model = TrainedModel::of_checkpoint(&task, checkpoint.clone(), &run, config);
        let classes = model.map_err(CliError::failed)?.classes;
        let adapters = model_adapters(&task, config, classes.len()).map_err(CliError::failed)?;
        let metadata = ModelMetadata::new(config, classes, checkpoint.step(), averages);
        Ok(Self { metadata: metadata.map_err(CliError::failed)?, checkpoint, run, resolved, task, adapters })
    }

    /// Opens the checkpoint that `args` names, whose run must be known.
    fn of_run(program: &Program, args: &ExportArgs) -> Result<Self, CliError> {
        let (checkpoint, run) = find_checkpoint(&args.from, args.choice())?;
        let run = run.ok_or_else(|| {
            CliError::Usage(format!(
                "{} is a checkpoint outside of its run, so a folder cannot describe it; --out FILE.safetensors exports weights",
                args.from.display()
            ))
        })?;
        Self::new(program, checkpoint, run, args.ema)
    }

    /// The layers whose adapters are added to their weights.
    fn merged(&self) -> &[AdaptedLayer] {
        self.adapters.as_ref().map_or(&[], ModelAdapters::layers)
    }
}

/// Writes the weights, with the description of the model if its run is known.
fn to_file(program: &Program, args: &ExportArgs) -> Result<(), CliError> {
    let (checkpoint, run) = find_checkpoint(&args.from, args.choice())?;
    let exported = match run {
        Some(run) => match Exported::new(program, checkpoint.clone(), run, args.ema) {
            Ok(exported) => Some(exported),
            // As where the run's images are gone, and it has no record of their classes.
            Err(error) => {
                err(&format!("note: the file does not describe its model: {error}"));
                None
            }
        },
        None => {
            err("note: the checkpoint is outside of its run, so the file does not describe its model");
            None
        }
    };
    let has_adapters =
        checkpoint.reader().tensors(MODEL).any(|(name, _)| AdaptedLayer::named_by(name).is_some());
    if exported.is_none() && has_adapters {
        let problem = "adapters are merged into weights by the run's configuration, which is unknown here";
        return Err(CliError::failed(problem));
    }
    let metadata: Vec<_> =
        exported.iter().map(|exported| (METADATA_KEY, exported.metadata.to_json())).collect();
    let merged = exported.as_ref().map_or(&[][..], Exported::merged);
    let options =
        ExportOptions { averages: args.ema, metadata: &metadata, merged, ..ExportOptions::default() };
    let written = write_weights(&checkpoint, &args.out, &options)?;
    out(&format!("{} ({written})", args.out.display()));
    Ok(())
}

/// Writes the weights of a checkpoint. Returns what was written, in words.
fn write_weights(
    checkpoint: &Checkpoint,
    file: &Path,
    options: &ExportOptions<'_>,
) -> Result<String, CliError> {
    let count = checkpoint.export(file, options).map_err(CliError::failed)?;
    let (ExportCount { tensors, averaged }, averages) = (count, options.averages);
    if !averages && checkpoint.reader().tensors(EMA).next().is_some() {
        err("note: the run is evaluated with averages of its parameters; --ema exports these");
    }
    let averaged = if averages { format!(", {averaged} of them averages") } else { String::new() };
    let merged = match options.merged.len() {
        0 => String::new(),
        1 => ", the adapter of 1 layer in its weight".to_owned(),
        layers => format!(", the adapters of {layers} layers in their weights"),
    };
    Ok(format!("{tensors} tensors{averaged}{merged}, after step {}", checkpoint.step()))
}

/// Writes the folder.
fn to_folder(program: &Program, args: &ExportArgs) -> Result<(), CliError> {
    let exported = Exported::of_run(program, args)?;
    let written = folder::write(&args.out, &exported, program.name())?;
    sync_folder(&args.out).map_err(CliError::failed)?;
    out(&format!("{} ({written})", args.out.display()));
    Ok(())
}

/// Writes the forward pass of a run or of an exported model.
fn to_onnx(program: &Program, args: &ExportArgs) -> Result<(), CliError> {
    let NamedModel { model, resolved, run } = NamedModel::open(program, &args.from, args.choice())?;
    let config = &resolved.config;
    let metadata = match &run {
        Some(_) => ModelMetadata::new(config, model.classes.clone(), model.step, args.ema),
        None => {
            if args.ema {
                let problem = "--ema is for runs; an exported model has one set of parameters";
                return Err(CliError::Usage(problem.to_owned()));
            }
            let described = description(&exported_file(&args.from))?;
            described.map_or_else(|| ModelMetadata::new(config, model.classes.clone(), model.step, false), Ok)
        }
    };
    let metadata = metadata.map_err(CliError::failed)?;
    if run.is_some() {
        let has_averages =
            find_checkpoint(&args.from, args.choice())?.0.reader().tensors(EMA).next().is_some();
        if args.ema && !has_averages {
            let problem = "the checkpoint holds no averages (train.ema was 0); leave --ema out";
            return Err(CliError::failed(problem));
        }
        if !args.ema && has_averages {
            err("note: the run is evaluated with averages of its parameters; --ema exports these");
        }
    }
    let (task, model) = (task_alone(program, config)?, model.with_averages(args.ema));
    let check = args.check.as_deref();
    let written =
        export_onnx(&task, &model, config, &metadata, &args.out, check).map_err(CliError::failed)?;
    out(&format!(
        "{} ({} nodes, {} to {}, {}, after step {})",
        args.out.display(),
        written.nodes,
        written.input,
        written.outputs.join(", "),
        bytes(written.bytes),
        model.step
    ));
    if let Some(check) = check {
        out(&format!("{} (reference inputs and outputs)", check.display()));
    }
    Ok(())
}

/// Returns the file of weights that an exported file or folder has.
fn exported_file(path: &Path) -> PathBuf {
    if path.is_dir() { path.join(super::trained_model::FOLDER_WEIGHTS) } else { path.to_owned() }
}

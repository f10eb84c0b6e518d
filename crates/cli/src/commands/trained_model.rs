//! The trained model that an argument names: a run, a checkpoint, or an exported file or folder.

use std::path::{Path, PathBuf};

use phalanx_checkpoint::Checkpoint;
use phalanx_config::{Config, Resolved, diff};
use phalanx_run::RunFolder;
use phalanx_trainer::engine::{CheckpointChoice, ModelMetadata, Task, TextLength, TrainedModel};
use phalanx_weights::AdapterFolder;

use super::error::CliError;
use super::resolve::{configuration_of, task_alone};
use crate::Program;
use crate::console::err;

/// The file with the weights of an exported folder.
pub(super) const FOLDER_WEIGHTS: &str = "model.safetensors";

pub(super) use phalanx_weights::FOLDER_CONFIG;

/// Keys outside of `[model]` by which images are prepared.
const PREPARATION: [&str; 6] = [
    "data.normalise",
    "data.resize",
    "data.resize_mode",
    "data.resize_filter",
    "data.box_crop",
    "train.precision",
];

/// A trained model with the configuration that it was trained under.
pub(super) struct NamedModel {
    /// The weights and the classes.
    pub(super) model: TrainedModel,
    /// The configuration.
    pub(super) resolved: Resolved,
    /// The run; `None` for an exported model.
    pub(super) run: Option<RunFolder>,
}

impl NamedModel {
    /// Finds the model that `path` names, and of a run the checkpoint of `choice`.
    ///
    /// # Errors
    /// If there is none, its configuration is unknown, a run has no such checkpoint, or `path` is no run and `choice` is the
    /// best checkpoint.
    pub(super) fn open(program: &Program, path: &Path, choice: CheckpointChoice) -> Result<Self, CliError> {
        if path.join("config.toml").is_file() || path.join("checkpoint.json").is_file() {
            let (checkpoint, run) = find_checkpoint(path, choice)?;
            let run = run.ok_or_else(|| {
                CliError::Usage(format!(
                    "{} is a checkpoint outside of its run, so its configuration is unknown; give the run, or an export",
                    path.display()
                ))
            })?;
            return Self::of_run(program, checkpoint, run);
        }
        if choice == CheckpointChoice::Best {
            return Err(CliError::Usage(format!("--best is for a run, and {} is none", path.display())));
        }
        if AdapterFolder::is_at(path) {
            return Self::adapted(program, path);
        }
        let file = if path.is_dir() { path.join(FOLDER_WEIGHTS) } else { path.to_owned() };
        if let (None, Some(kind)) = (description(&file)?, published_task(program, path)) {
            return Self::published(program, path, kind);
        }
        match description(&file)? {
            Some(metadata) => Self::described(program, file, &metadata),
            None => Err(CliError::Usage(no_model(path))),
        }
    }

    fn of_run(program: &Program, checkpoint: Checkpoint, run: RunFolder) -> Result<Self, CliError> {
        let mut resolved = configuration_of(program, &run)?;
        set_kept_files(program, &mut resolved, run.path())?;
        let task = task_alone(program, &resolved.config)?;
        let model = TrainedModel::of_checkpoint(&task, checkpoint, &run, &resolved.config);
        Ok(Self { model: model.map_err(CliError::failed)?, resolved, run: Some(run) })
    }

    /// Makes the model of a file and its description.
    pub(super) fn described(
        program: &Program,
        file: PathBuf,
        metadata: &ModelMetadata,
    ) -> Result<Self, CliError> {
        let mut resolved = program.catalogue().resolve(None, &[])?;
        let origin = file.display().to_string();
        for (key, value) in metadata.assignments(&file).map_err(CliError::failed)? {
            resolved.set_value(&origin, &key, value)?;
        }
        // A file of any name may lie next to files of other models.
        if let (true, Some(folder)) = (file.ends_with(FOLDER_WEIGHTS), file.parent()) {
            set_kept_files(program, &mut resolved, folder)?;
        }
        Ok(Self { model: TrainedModel::exported(file, metadata), resolved, run: None })
    }

    /// Makes the model of a folder that Hugging Face's libraries have written.
    fn published(program: &Program, folder: &Path, kind: String) -> Result<Self, CliError> {
        let mut resolved = program.catalogue().resolve(None, &[])?;
        let origin = folder.display().to_string();
        resolved.set_value(&origin, "model.kind", toml::Value::String(kind))?;
        set_kept_files(program, &mut resolved, folder)?;
        set_length(program, &mut resolved, folder)?;
        Ok(Self { model: TrainedModel::published(folder.to_owned()), resolved, run: None })
    }

    /// Makes the model of a folder of adapters of peft, with the published model that they change.
    fn adapted(program: &Program, folder: &Path) -> Result<Self, CliError> {
        let adapters = AdapterFolder::open(folder).map_err(CliError::failed)?;
        let base = adapters.base().map_err(CliError::failed)?;
        let Some(kind) = published_task(program, &base) else {
            return Err(CliError::Usage(format!(
                "{}: its adapters change {}, which has no {FOLDER_CONFIG} of a model that is known",
                folder.display(),
                base.display()
            )));
        };
        let named = Self::published(program, &base, kind)?;
        let (origin, mut resolved) = (folder.display().to_string(), named.resolved);
        let base = toml::Value::String(base.display().to_string());
        for (key, value) in adapters.assignments().into_iter().chain([("model.weights", base)]) {
            resolved.set_value(&origin, key, value)?;
        }
        Ok(Self { resolved, ..named })
    }

    /// Compares the configuration, after options have changed it, with the one that the model was trained under. Another
    /// normalisation is an error; other changes of the model or of the preparation of images are said.
    pub(super) fn check_changes(&self, changed: &Config) -> Result<(), CliError> {
        for (key, trained, now) in diff(&self.resolved.config, changed) {
            let (Some(trained), Some(now)) = (trained, now) else { continue };
            if key == "data.normalise" {
                return Err(CliError::Usage(format!(
                    "{key} = {now}: the model was trained with {trained}; leave the option out"
                )));
            }
            if key.starts_with("model.") || key.starts_with("lora.") || PREPARATION.contains(&key.as_str()) {
                err(&format!("note: {key} = {now}; the model was trained with {trained}"));
            }
        }
        Ok(())
    }
}

/// Sets the keys of the files that belong to the weights in a folder, if the folder has them.
fn set_kept_files(program: &Program, resolved: &mut Resolved, folder: &Path) -> Result<(), CliError> {
    for kept in task_alone(program, &resolved.config)?.kept_files() {
        let file = folder.join(kept.name);
        if file.is_file() {
            let file = std::path::absolute(file).map_err(CliError::failed)?;
            let value = toml::Value::String(file.display().to_string());
            resolved.set_value(&folder.display().to_string(), kept.key, value)?;
        }
    }
    Ok(())
}

/// Sets the length of texts by the positions of the published model in a folder.
fn set_length(program: &Program, resolved: &mut Resolved, folder: &Path) -> Result<(), CliError> {
    let Some(models) = task_alone(program, &resolved.config)?.transformers() else { return Ok(()) };
    let TextLength { key, positions, fills } = models.length;
    let positions = published_config(folder)
        .and_then(|json| json.get(positions)?.as_u64())
        .and_then(|positions| i64::try_from(positions).ok());
    let configured = resolved.config.get(key).and_then(|value| value.as_integer());
    match positions.filter(|positions| fills || configured.is_some_and(|length| length > *positions)) {
        Some(positions) => {
            let value = toml::Value::Integer(positions);
            Ok(resolved.set_value(&folder.display().to_string(), key, value)?)
        }
        None => Ok(()),
    }
}

/// Reads the `config.json` of a folder; `None` if there is none, or it is no JSON.
fn published_config(folder: &Path) -> Option<serde_json::Value> {
    let text = phalanx_run::Links::Follow.read_text(&folder.join(FOLDER_CONFIG)).ok()?;
    serde_json::from_str(&text).ok()
}

/// Returns the name of the task that has the published model in a folder, by its `config.json`; `None` if there is none.
fn published_task(program: &Program, folder: &Path) -> Option<String> {
    let json = published_config(folder)?;
    let model_type = json.get("model_type")?.as_str()?;
    let architecture = json["architectures"][0].as_str();
    let is_it = |task: &&Task| task.transformers().is_some_and(|models| models.has(model_type, architecture));
    let task = program.tasks().find(is_it)?;
    Some(task.schema().name().to_owned())
}

/// Returns the checkpoint in a folder, or one of the run in a folder, and the run if it is known.
///
/// # Errors
/// If the folder is neither, the run has no such checkpoint, or the best of a single checkpoint is asked for.
pub(super) fn find_checkpoint(
    from: &Path,
    choice: CheckpointChoice,
) -> Result<(Checkpoint, Option<RunFolder>), CliError> {
    if from.join("checkpoint.json").is_file() {
        if choice == CheckpointChoice::Best {
            return Err(CliError::Usage(format!("--best is for a run; {} is a checkpoint", from.display())));
        }
        let checkpoint = Checkpoint::open(from).map_err(CliError::failed)?;
        let place = std::path::absolute(from).map_err(CliError::failed)?;
        // RUN/checkpoints/step-N
        let run = place.parent().and_then(Path::parent).filter(|run| run.join("config.toml").is_file());
        let run = run.map(RunFolder::open).transpose().map_err(CliError::failed)?;
        return Ok((checkpoint, run));
    }
    if !from.join("config.toml").is_file() {
        let from = from.display();
        return Err(CliError::Usage(format!(
            "{from} is neither a run (it has no config.toml) nor a checkpoint (it has no checkpoint.json)"
        )));
    }
    let folder = RunFolder::open(from).map_err(CliError::failed)?;
    let checkpoint = choice.open(&folder).map_err(CliError::failed)?;
    Ok((checkpoint, Some(folder)))
}

/// Reads the description of exported weights: that of the file, or of the `config.json` next to a folder's weights; `None` for a
/// file of another program.
///
/// # Errors
/// If the description is damaged.
pub(super) fn description(file: &Path) -> Result<Option<ModelMetadata>, CliError> {
    if let Some(found) = ModelMetadata::of_file(file).map_err(CliError::failed)? {
        return Ok(Some(found));
    }
    // Programs that write a folder's weights anew drop the metadata of the file.
    let config = file.with_file_name(FOLDER_CONFIG);
    if file.file_name().is_some_and(|name| name == FOLDER_WEIGHTS) && file.is_file() && config.is_file() {
        return ModelMetadata::of_config(&config).map_err(CliError::failed);
    }
    Ok(None)
}

/// Explains that a path names no model that is described.
fn no_model(path: &Path) -> String {
    let shown = path.display();
    if path.is_dir() {
        return format!(
            "{shown} is no run (config.toml), no checkpoint (checkpoint.json) and no exported folder ({FOLDER_WEIGHTS})"
        );
    }
    match path.exists() {
        false => format!("{shown}: no such file or folder"),
        true => format!(
            "{shown} does not describe its model; `eval --model NAME --weights {shown}` judges weights of other programs"
        ),
    }
}

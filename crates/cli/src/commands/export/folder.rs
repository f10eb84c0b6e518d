//! A folder in the layout of Hugging Face's hub.
//!
//! The weights have the names of the reference state dict. Where timm makes exactly this network, `config.json` names it, so
//! that timm and transformers (its `TimmWrapper`) load the folder. Elsewhere no library is named, since none would load it.

use std::path::Path;

use phalanx_checkpoint::ExportOptions;
use phalanx_run::{create_synced, write_aside};
use phalanx_trainer::engine::{ImageMetadata, METADATA_KEY, ReferenceModel};
use serde_json::{Map, Value, json};

use super::{Exported, card, write_weights};
use crate::commands::error::CliError;
use crate::commands::trained_model::{FOLDER_CONFIG, FOLDER_WEIGHTS};

/// The preparation of images in transformers' form.
const PREPROCESSOR: &str = "preprocessor_config.json";

/// The part of the preparation that is the same for all models.
const FIXED: &str = include_str!("preprocessor.json");

/// Writes the folder. Returns what was written, in words.
///
/// # Errors
/// If the folder is a run's, or a file cannot be written.
pub(super) fn write(folder: &Path, exported: &Exported, program: &str) -> Result<String, CliError> {
    create(folder)?;
    let failed = |file: &Path| {
        let file = file.display().to_string();
        move |error: std::io::Error| CliError::failed(format!("cannot write {file}: {error}"))
    };
    let metadata = &exported.metadata;
    let entries = [(METADATA_KEY, metadata.to_json())];
    let options = ExportOptions {
        averages: metadata.averages,
        metadata: &entries,
        merged: exported.merged(),
        ..ExportOptions::default()
    };
    let written = write_weights(&exported.checkpoint, &folder.join(FOLDER_WEIGHTS), &options)?;
    let reference = exported.task.reference(&exported.resolved.config, metadata.classes.len());
    let mut files = vec![
        (FOLDER_CONFIG, pretty(&config(exported, reference.as_ref())?).into_bytes()),
        ("README.md", card::text(exported, reference.as_ref(), program)?.into_bytes()),
    ];
    if exported.task.reads_images() {
        files.push((PREPROCESSOR, pretty(&preprocessor(&metadata.images)?).into_bytes()));
    }
    files.extend(kept(exported)?.into_iter().filter(|(name, _)| *name != FOLDER_CONFIG));
    for (name, contents) in files {
        let file = folder.join(name);
        write_aside(&file, &contents).map_err(failed(&file))?;
    }
    Ok(written)
}

/// Makes the folder of an export.
///
/// # Errors
/// If it is a run's, or cannot be made.
pub(super) fn create(folder: &Path) -> Result<(), CliError> {
    if folder.join("config.toml").is_file() {
        let folder = folder.display();
        return Err(CliError::Usage(format!("--out {folder}: this is a run's folder; choose another one")));
    }
    create_synced(folder)
        .map_err(|error| CliError::failed(format!("cannot write {}: {error}", folder.display())))
}

/// Reads the files that belong to the weights, by name.
fn kept(exported: &Exported) -> Result<Vec<(&'static str, Vec<u8>)>, CliError> {
    let mut files = Vec::new();
    for file in exported.task.kept_files() {
        let path = exported.run.path().join(file.name);
        if path.is_file() {
            let contents = phalanx_run::Links::Refuse.read(&path);
            let contents =
                contents.map_err(|error| CliError::failed(format!("{}: {error}", path.display())))?;
            files.push((file.name, contents));
        }
    }
    Ok(files)
}

/// Returns numbers with the digits of their f32, in place of those of the nearest f64.
fn decimals(numbers: &[f32; 3]) -> [f64; 3] {
    numbers.map(|number| number.to_string().parse().unwrap_or(f64::from(number)))
}

fn pretty(value: &Value) -> String {
    // A value of strings as keys is always written.
    let text = serde_json::to_string_pretty(value).unwrap_or_default();
    format!("{text}\n")
}

/// Renders `config.json`: the architecture, the classes, and the description that `phalanx` reads back.
fn config(exported: &Exported, reference: Option<&ReferenceModel>) -> Result<Value, CliError> {
    let metadata = &exported.metadata;
    // The description of a model of transformers belongs to its weights.
    if let Some((_, text)) = kept(exported)?.into_iter().find(|(name, _)| *name == FOLDER_CONFIG) {
        let mut config: Map<String, Value> = serde_json::from_slice(&text).map_err(CliError::failed)?;
        let description: Value = serde_json::from_str(&metadata.to_json()).map_err(CliError::failed)?;
        config.insert(METADATA_KEY.to_owned(), description);
        return Ok(config.into());
    }
    let classes = &metadata.classes;
    let mut config = Map::new();
    let timm = reference.and_then(|reference| reference.timm.as_deref());
    // An architecture that no library has must not be taken for one of the same name.
    let own = format!("phalanx/{}", metadata.kind());
    config.insert("architecture".to_owned(), timm.unwrap_or(&own).into());
    config.insert("num_classes".to_owned(), classes.len().into());
    if let Some(timm) = timm {
        config.insert("global_pool".to_owned(), "avg".into());
        config.insert("pretrained_cfg".to_owned(), pretrained(timm, exported));
    }
    let labels = || classes.iter().enumerate();
    let id2label: Map<String, Value> =
        labels().map(|(label, name)| (label.to_string(), name.as_str().into())).collect();
    let label2id: Map<String, Value> = labels().map(|(label, name)| (name.clone(), label.into())).collect();
    config.insert("label_names".to_owned(), classes.clone().into());
    config.insert("id2label".to_owned(), id2label.into());
    config.insert("label2id".to_owned(), label2id.into());
    let description: Value = serde_json::from_str(&metadata.to_json()).map_err(CliError::failed)?;
    config.insert(METADATA_KEY.to_owned(), description);
    Ok(config.into())
}

/// Renders timm's description of weights.
fn pretrained(timm: &str, exported: &Exported) -> Value {
    let ImageMetadata { size, resize, resize_mode, resize_filter, center_crop, mean, std } =
        &exported.metadata.images;
    let squashes = resize_mode == "square";
    // timm resizes to size / crop_pct, rounded down, and cuts the middle out.
    let mut part = if *center_crop { *size as f64 / *resize as f64 } else { 1.0 };
    if *center_crop && ((*size as f64 / part) as usize) < *resize {
        part = part.next_down();
    }
    json!({
        "architecture": timm,
        "num_classes": exported.metadata.classes.len(),
        "input_size": [3, size, size],
        "fixed_input_size": false,
        "interpolation": if resize_filter == "lanczos3" { "lanczos" } else { resize_filter.as_str() },
        "crop_pct": part,
        "crop_mode": if squashes { "squash" } else { "center" },
        "mean": decimals(mean),
        "std": decimals(std),
        "first_conv": "conv1",
        "classifier": "fc",
        "label_names": exported.metadata.classes,
    })
}

/// Renders `preprocessor_config.json`: resize, crop from the middle, scale to 0 to 1, normalise.
fn preprocessor(images: &ImageMetadata) -> Result<Value, CliError> {
    let ImageMetadata { size, resize, resize_mode, resize_filter, center_crop, mean, std } = images;
    let square = |side: &usize| json!({"height": side, "width": side});
    // Pillow's numbers of filters.
    let resample = match resize_filter.as_str() {
        "nearest" => 0,
        "lanczos3" => 1,
        "bicubic" => 3,
        _ => 2,
    };
    let mut config: Map<String, Value> = serde_json::from_str(FIXED).map_err(CliError::failed)?;
    let size_after = if resize_mode == "square" { square(resize) } else { json!({"shortest_edge": resize}) };
    for (key, value) in [
        ("size", size_after),
        ("resample", resample.into()),
        ("do_center_crop", (*center_crop).into()),
        ("crop_size", square(size)),
        ("image_mean", json!(decimals(mean))),
        ("image_std", json!(decimals(std))),
    ] {
        config.insert(key.to_owned(), value);
    }
    Ok(config.into())
}

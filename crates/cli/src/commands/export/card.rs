//! The model card of an exported folder: data, measures, use and settings.

use std::fmt::Write as _;

use phalanx_config::{Resolved, diff};
use phalanx_run::Summary;
use phalanx_trainer::engine::{ImageMetadata, ReferenceModel};

use super::Exported;
use crate::commands::error::CliError;
use crate::commands::trained_model::FOLDER_WEIGHTS;

/// Renders `README.md`.
pub(super) fn text(
    exported: &Exported,
    reference: Option<&ReferenceModel>,
    program: &str,
) -> Result<String, CliError> {
    let mut text = String::new();
    front_matter(&mut text, exported, reference);
    introduction(&mut text, exported, program);
    measures(&mut text, exported);
    usage(&mut text, exported, reference, program);
    settings(&mut text, exported, program)?;
    Ok(text)
}

fn front_matter(text: &mut String, exported: &Exported, reference: Option<&ReferenceModel>) {
    let is_classifier = !exported.metadata.classes.is_empty();
    text.push_str("---\n");
    let transformers = exported.task.transformers();
    if let Some(models) = transformers {
        let _ = write!(text, "library_name: transformers\npipeline_tag: {}\n", models.pipeline);
    }
    if reference.is_some_and(|reference| reference.timm.is_some()) {
        text.push_str("library_name: timm\n");
    }
    if is_classifier && transformers.is_none() {
        text.push_str("pipeline_tag: image-classification\n");
    }
    text.push_str("tags:\n- phalanx\n---\n\n");
}

/// Adds the title, the data and the classes.
fn introduction(text: &mut String, exported: &Exported, program: &str) {
    let (metadata, data) = (&exported.metadata, &exported.resolved.config.data);
    let name = exported.run.path().file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    let weights = if metadata.averages { "averaged parameters" } else { "parameters" };
    let _ = write!(
        text,
        "# {}\n\nThe {weights} of a `{}` after step {} of a training by {program}.\n\n",
        name,
        metadata.kind(),
        metadata.step
    );
    if !exported.task.reads_images() {
        return;
    }
    let ImageMetadata { size, resize, resize_mode, resize_filter, center_crop, mean, std } = &metadata.images;
    let crop = if *center_crop { format!(", middle of {size}x{size} cut out") } else { String::new() };
    let _ = write!(
        text,
        "- Data: `{}`.\n- Images: RGB, resized to {resize} ({resize_mode}, {resize_filter}){crop}, scaled to 0 to 1, \
         normalised by mean {mean:?} and standard deviation {std:?}.\n",
        data.kind
    );
    if !metadata.classes.is_empty() {
        let _ = writeln!(text, "- Classes ({}): {}.", metadata.classes.len(), metadata.classes.join(", "));
    }
}

/// Adds the measures of the run's last evaluation, if it is that of the exported step.
fn measures(text: &mut String, exported: &Exported) {
    let summary = Summary::read(&exported.run.summary()).ok();
    let summary = summary.filter(|summary| summary.step == exported.metadata.step);
    let measured: Vec<(&String, f64)> = summary
        .iter()
        .flat_map(|summary| {
            let of_test = summary.metrics.iter().filter(|(name, _)| name.starts_with("test_"));
            of_test.filter_map(|(name, value)| Some((name, value.as_f64()?)))
        })
        .collect();
    text.push_str("\n## Measures\n\n");
    if measured.is_empty() {
        text.push_str("The run has no measures of this step.\n");
        return;
    }
    text.push_str("On the test split, by the run itself:\n\n| measure | value |\n|---|---|\n");
    for (name, value) in measured {
        let _ = writeln!(text, "| {} | {value} |", name.trim_start_matches("test_"));
    }
}

/// Adds the ways to load the weights.
fn usage(text: &mut String, exported: &Exported, reference: Option<&ReferenceModel>, program: &str) {
    text.push_str("\n## Use\n\n");
    let transformers = exported.task.transformers();
    if !exported.metadata.classes.is_empty() && transformers.is_none() {
        let _ = write!(text, "```sh\n{program} predict FOLDER image.jpg\n```\n\n");
    }
    if let Some(models) = transformers {
        let (command, loader) = (models.command, models.loader);
        let _ = write!(
            text,
            "```sh\n{program} {command}\n```\n\n\
             With transformers:\n\n```python\nfrom transformers import {loader}, AutoTokenizer\n\
             model = {loader}.from_pretrained(\"FOLDER\")\n\
             tokenizer = AutoTokenizer.from_pretrained(\"FOLDER\")\n```\n"
        );
        return;
    }
    let Some(reference) = reference else {
        let _ = writeln!(
            text,
            "No Python library has exactly this network. `{FOLDER_WEIGHTS}` holds its parameters and buffers by name."
        );
        return;
    };
    let _ = write!(
        text,
        "```python\n{}\nfrom safetensors.torch import load_file\nmodel.load_state_dict(load_file(\"{FOLDER_WEIGHTS}\"))\n\
         model.eval()\n```\n",
        reference.python.join("\n")
    );
    match &reference.timm {
        Some(_) => text.push_str(
            "\nWith timm, and with transformers, which uses timm for it:\n\n```python\nimport timm\n\
             model = timm.create_model(\"local-dir:FOLDER\", pretrained=True).eval()\n\n\
             from transformers import pipeline\n\
             classify = pipeline(\"image-classification\", model=\"FOLDER\")\n```\n",
        ),
        None => text.push_str(
            "\n`config.json` names no model of timm or transformers, since neither makes exactly this network.\n",
        ),
    }
    text.push_str(
        "\nOther programs resize with other rounding, so their probabilities differ slightly from those of the run.\n",
    );
}

/// Adds the settings that differ from the defaults, as a file that trains the model again. Paths are left out.
fn settings(text: &mut String, exported: &Exported, program: &str) -> Result<(), CliError> {
    let config = &exported.resolved.config;
    let kind = format!("model.kind={}", config.model.kind);
    let defaults: Resolved = exported.resolved.catalogue().resolve(None, &[kind])?;
    let is_path =
        |value: &toml::Value| value.as_str().is_some_and(|text| text.contains(std::path::is_separator));
    let _ = write!(
        text,
        "\n## Training\n\nThe settings that differ from the defaults. Saved as `train.toml` they train again: \
         `{program} train train.toml {}`.\n\n```toml\nmodel.kind = \"{}\"\n",
        if exported.task.reads_images() {
            format!("--data {}=PATH", config.data.kind)
        } else {
            "--set data.path=PATH".to_owned()
        },
        config.model.kind
    );
    for (key, _, value) in diff(&defaults.config, config) {
        if let Some(value) = value.filter(|value| !is_path(value)) {
            let _ = writeln!(text, "{key} = {value}");
        }
    }
    text.push_str("```\n");
    let _ = writeln!(text, "\nWritten by {program} {}.", env!("CARGO_PKG_VERSION"));
    Ok(())
}

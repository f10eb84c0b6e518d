//! `phalanx translate`: translations by a trained model.

use std::path::PathBuf;

use clap::Args;
use phalanx_tensor::Precision;
use phalanx_trainer::engine::{CheckpointChoice, TextUse, TokenChoice, Writing, write_texts};
use serde_json::json;

use super::error::CliError;
use super::former_run::former_run_option;
use super::resolve::task_alone;
use super::trained_model::NamedModel;
use crate::Program;
use crate::console::out;

/// Translate texts with a trained model. Without texts or a file, lines of standard input are translated.
#[derive(Debug, Args)]
#[command(arg = former_run_option())]
pub(super) struct TranslateArgs {
    /// A run's folder, a checkpoint's (`…/checkpoints/step-N`), or an exported folder.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Texts to translate, a sentence each.
    #[arg(value_name = "TEXT")]
    texts: Vec<String>,
    /// A file with a text in each line.
    #[arg(long, value_name = "FILE", conflicts_with = "texts")]
    file: Option<PathBuf>,
    /// Use the best checkpoint (checkpoint.best) instead of the newest one.
    #[arg(long)]
    best: bool,
    /// Search the most probable translation by this number of beams; 1 takes the most probable word each time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    beams: u32,
    /// The exponent of the length that scores are divided by; above 0 prefers longer translations.
    #[arg(long, value_name = "A", default_value_t = 1.0)]
    length_penalty: f64,
    /// The longest translation, in tokens [default: the model's context].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tokens: Option<u32>,
    /// f32 or bf16, what products take [default: as configured in train.precision].
    #[arg(long)]
    precision: Option<Precision>,
    /// Print a line of JSON for each text.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(program: &Program, args: &TranslateArgs) -> Result<(), CliError> {
    if !args.length_penalty.is_finite() {
        return Err(CliError::Usage(format!("--length-penalty {}: expected a number", args.length_penalty)));
    }
    let checkpoint = if args.best { CheckpointChoice::Best } else { CheckpointChoice::Newest };
    let NamedModel { model, mut resolved, .. } = NamedModel::open(program, &args.run, checkpoint)?;
    if let Some(precision) = args.precision {
        let value = toml::Value::String(precision.to_string());
        resolved.set_value(&format!("--precision {precision}"), "train.precision", value)?;
    }
    let config = &resolved.config;
    let writing = Writing {
        prompts: texts(args)?,
        samples: 1,
        max_tokens: args.tokens.map_or(usize::MAX, |tokens| tokens as usize),
        choice: match args.beams {
            1 => TokenChoice::Sample { temperature: 0.0, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 },
            beams => TokenChoice::Beams { width: beams as usize, length_penalty: args.length_penalty },
        },
        cached: true,
        seed: config.train.seed,
    };
    let task = task_alone(program, config)?;
    let uses = [TextUse::Translate];
    let mut ignore = |_: phalanx_trainer::engine::WrittenPart<'_>| {};
    let written =
        write_texts(&task, &model, config, (&writing, &uses), &mut ignore).map_err(CliError::failed)?;
    for text in &written.texts {
        if !args.json {
            out(&text.text);
            continue;
        }
        let mut line =
            json!({"source": writing.prompts[text.prompt], "translation": text.text, "tokens": text.tokens});
        if let Some(score) = text.score {
            line["score"] = score.into();
        }
        out(&line.to_string());
    }
    Ok(())
}

/// Returns the texts to translate.
fn texts(args: &TranslateArgs) -> Result<Vec<String>, CliError> {
    if !args.texts.is_empty() {
        return Ok(args.texts.clone());
    }
    let text = match &args.file {
        Some(file) => phalanx_run::Links::Follow
            .read_text(file)
            .map_err(|error| CliError::Usage(format!("--file {}: {error}", file.display())))?,
        None => std::io::read_to_string(std::io::stdin())
            .map_err(|error| CliError::Usage(format!("standard input: {error}")))?,
    };
    let lines: Vec<String> = text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect();
    match lines.is_empty() {
        true => Err(CliError::Usage("no text to translate".to_owned())),
        false => Ok(lines),
    }
}

//! Samples of a run, between two steps: a grid of pictures, or texts.

use std::path::Path;

use phalanx_run::{RunError, TextUse, write_aside};
use phalanx_tensor::Tape;

use super::environment::Environment;
use super::sample_kind::SampleKind;
use super::state::TrainState;
use crate::engine::TrainError;
use crate::engine::data::Data;
use crate::engine::distributed::Distributed;
use crate::engine::inference::{GridStyle, drawn, restored};
use crate::engine::training::{AnyTraining, Drawing, ImageSource, TokenChoice, Writing};

/// Writes a token for each configured prompt of texts: one that the model cannot take is refused before the first step, not when
/// samples are due. All ranks call this together.
pub(super) fn check_prompts(
    env: &Environment<'_>,
    distributed: &Distributed,
    state: &mut TrainState,
) -> Result<(), TrainError> {
    let is_text = matches!(SampleKind::of(&*state.training, &env.config.sample), Some(SampleKind::Texts(_)));
    if !is_text || env.config.sample.prompts.is_empty() {
        return Ok(());
    }
    let session = env.evaluation_session(state.listener());
    state.with_averages(|training| {
        let prompts = env.config.sample.prompts.iter().filter(|_| distributed.computes_with_first());
        for prompt in prompts {
            let writing = Writing { prompts: vec![prompt.clone()], max_tokens: 1, ..writing_of(env) };
            let written = training.write(&Tape::forward_only(session.clone()), &writing, &mut |_| {});
            written.map_err(|error| TrainError::Setup(format!("sample.prompts: {prompt:?}: {error}")))?;
        }
        Ok(())
    })
}

/// Writes samples for the configured prompts, or for captions of the test split. Returns false on ranks other than 0, which only
/// contribute parameters. All ranks call this together.
pub(super) fn write_samples(
    env: &Environment<'_>,
    data: &Data,
    distributed: &Distributed,
    state: &mut TrainState,
    (kind, path): (SampleKind, &Path),
) -> Result<bool, TrainError> {
    match kind {
        SampleKind::Pictures(source) => write_pictures(env, data, distributed, state, (source, path)),
        SampleKind::Texts(text_use) => {
            let session = env.evaluation_session(state.listener());
            let writing = writing_of(env);
            let all = state.with_averages(|training| match distributed.computes_with_first() {
                true => texts(training, &Tape::forward_only(session.clone()), &writing, text_use).map(Some),
                false => Ok(None),
            })?;
            let Some(all) = all.filter(|_| distributed.rank() == 0) else { return Ok(false) };
            write_aside(path, all.as_bytes()).map_err(RunError::io("write", path))?;
            Ok(true)
        }
    }
}

/// Draws a grid, and writes the prompts next to it, one a line.
fn write_pictures(
    env: &Environment<'_>,
    data: &Data,
    distributed: &Distributed,
    state: &mut TrainState,
    (source, path): (ImageSource, &Path),
) -> Result<bool, TrainError> {
    let sample = &env.config.sample;
    let restores = source == ImageSource::Images;
    let prompts = match sample.prompts.is_empty() {
        _ if restores => Vec::new(),
        true => data.test_captions(sample.rows)?,
        false => sample.prompts.clone(),
    };
    let session = env.evaluation_session(state.listener());
    let seed = env.config.train.seed;
    let (drawing, size) = (Drawing::samples(&prompts, sample.columns), env.config.model.image_size);
    let grid = state.with_averages(|training| match distributed.computes_with_first() {
        true if restores => {
            let batch = data.test_samples(sample.rows, 0..sample.rows)?;
            restored(training, session.clone(), batch.tensor("images")?, size)
        }
        true => drawn(training, session.clone(), seed, &drawing, (size, GridStyle::default())),
        false => Ok(None),
    })?;
    let Some(grid) = grid.filter(|_| distributed.rank() == 0) else { return Ok(false) };
    grid.write(path)?;
    if !restores {
        let list = path.with_file_name("prompts.txt");
        let lines: String = prompts.iter().map(|prompt| format!("{prompt}\n")).collect();
        write_aside(&list, lines.as_bytes()).map_err(RunError::io("write", &list))?;
    }
    Ok(true)
}

/// Returns the request for texts: one for each prompt, or as many as there are rows without any.
fn writing_of(env: &Environment<'_>) -> Writing {
    let sample = &env.config.sample;
    let (prompts, samples) = match sample.prompts.is_empty() {
        true => (vec![String::new()], sample.rows),
        false => (sample.prompts.clone(), 1),
    };
    let temperature = TokenChoice::TEMPERATURE;
    let choice = TokenChoice::Sample { temperature, top_k: 0, top_p: 1.0, repetition_penalty: 1.0 };
    Writing { prompts, samples, max_tokens: sample.tokens, choice, cached: true, seed: env.config.train.seed }
}

/// Continues the prompts. Returns the texts, each below its number.
fn texts(
    training: &dyn AnyTraining,
    tape: &Tape,
    writing: &Writing,
    text_use: TextUse,
) -> Result<String, TrainError> {
    let texts = training.write(tape, writing, &mut |_| {})?.unwrap_or_default();
    let mut all = String::new();
    for (number, text) in texts.iter().enumerate() {
        all += &format!("[{}]\n{}\n", number + 1, writing.whole(text, text_use));
    }
    Ok(all)
}

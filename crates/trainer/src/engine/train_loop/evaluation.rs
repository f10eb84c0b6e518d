//! Evaluation, generative metrics and samples of a run, between two steps.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::state::TrainState;
use crate::engine::TrainError;
use crate::engine::data::Data;
use crate::engine::distributed::{Distributed, Network};
use crate::engine::generative_metrics::GenerativeMetrics;
use crate::engine::inference::{
    GridStyle, TestPass, class_report, draw, draw_restored, evaluate, write_class_files,
};
use crate::engine::training::{Drawing, ImageSource};
use phalanx_run::RunError;
use phalanx_run::write_aside;

/// Measures of the model after a step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Evaluation {
    /// The step, counted from 1.
    pub(super) step: u64,
    /// Names and values.
    pub(super) measures: Vec<(String, f64)>,
}

/// Evaluates the averaged weights, or the weights, on the test split. Each rank takes its part. Rank 0 writes the files of a classifier's
/// evaluation. All ranks call this together.
pub(super) fn evaluate_run(
    env: &Environment<'_>,
    data: &Data,
    distributed: &Distributed,
    state: &mut TrainState,
) -> Result<Vec<(String, f64)>, TrainError> {
    let eval = &env.config.eval;
    let part = env.config.train.global_batch.div_ceil(distributed.data_size());
    let batch = if eval.batch > 0 { eval.batch } else { part };
    state.networks().try_for_each(Network::broadcast_buffers)?;
    let session = env.evaluation_session(state.listener());
    let pass = TestPass { step: state.step, limit: eval.limit, batch, mistakes: eval.mistakes };
    let groups = state.networks().next().map(Network::batch_groups).unwrap_or_default();
    let result = state
        .with_averages_by_block(|training| evaluate(training, data, distributed, &groups, &session, pass))?;
    let classes = state.training.outline().classes.filter(|_| distributed.rank() == 0);
    if let (Some(tally), Some(classes)) = (&result.classes, classes) {
        let report = class_report(tally, &classes, data, env.config, state.step)?;
        write_class_files(&report, tally, data, env.config, &env.folder.evaluation())?;
    }
    Ok(result.measures)
}

/// Measures images that the averaged weights, or the weights, generate. All ranks call this together.
pub(super) fn measure_samples(
    env: &Environment<'_>,
    quality: &mut GenerativeMetrics,
    data: &Data,
    distributed: &Distributed,
    state: &mut TrainState,
) -> Result<Vec<(String, f64)>, TrainError> {
    state.networks().try_for_each(Network::broadcast_buffers)?;
    let session = env.evaluation_session(state.listener());
    state.with_averages(|training| quality.measure(training, data, distributed, &session, env.config))
}

/// Generates images for the configured prompts, or for captions of the test split. Writes the prompts next to the image, one a line.
/// Returns false if the task generates nothing, and on ranks other than 0, which only contribute parameters.
pub(super) fn write_samples(
    env: &Environment<'_>,
    data: &Data,
    distributed: &Distributed,
    state: &mut TrainState,
    path: &Path,
) -> Result<bool, TrainError> {
    if state.training.image_source().is_none() {
        // Otherwise all ranks would gather all parameters for nothing.
        return Ok(false);
    }
    let sample = &env.config.sample;
    let restores = state.training.image_source() == Some(ImageSource::Images);
    let prompts = match sample.prompts.is_empty() {
        _ if restores => Vec::new(),
        true => data.test_captions(sample.rows)?,
        false => sample.prompts.clone(),
    };
    let session = env.evaluation_session(state.listener());
    let seed = env.config.train.seed;
    let (drawing, size) = (Drawing::samples(&prompts, sample.columns), env.config.model.image_size);
    let is_written = state.with_averages(|training| match distributed.rank() {
        0 if restores => {
            let batch = data.test_samples(sample.rows, 0..sample.rows)?;
            draw_restored(training, session.clone(), batch.tensor("images")?, size, path)
        }
        0 => draw(training, session.clone(), seed, &drawing, (size, GridStyle::default()), path),
        _ => Ok(false),
    })?;
    if is_written && !restores {
        let list = path.with_file_name("prompts.txt");
        let lines: String = prompts.iter().map(|prompt| format!("{prompt}\n")).collect();
        write_aside(&list, lines.as_bytes()).map_err(RunError::io("write", &list))?;
    }
    Ok(is_written)
}

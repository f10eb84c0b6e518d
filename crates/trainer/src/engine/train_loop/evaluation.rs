//! Evaluation and generative metrics of a run, between two steps.

use serde::{Deserialize, Serialize};

use super::environment::Environment;
use super::state::TrainState;
use crate::engine::TrainError;
use crate::engine::data::Data;
use crate::engine::distributed::{Distributed, Network};
use crate::engine::generative_metrics::GenerativeMetrics;
use crate::engine::inference::{TestPass, class_report, evaluate, write_class_files};

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
    let stages = match env.stages.as_ref().zip(distributed.pipeline()) {
        Some((stages, comm)) => stages.evaluation(comm, env.config)?,
        None => None,
    };
    let result = state.with_averages_by_block(|training| {
        evaluate(training, data, distributed, &groups, &session, stages.as_ref(), pass)
    })?;
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
    let folder = env.folder.evaluation();
    state
        .with_averages(|training| {
            quality.measure(training, data, distributed, &session, env.config, Some(&folder))
        })
        .map(|quality| quality.measures)
}

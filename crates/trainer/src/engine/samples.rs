//! Sample grids: the same noise and the same prompts every time, so that pictures can be compared over the run.

use std::path::Path;
use std::sync::Arc;

use phalanx_tensor::{Context, Key, Session, Tape};

use super::train::Run;
use super::{Task, TrainError};
use crate::run::Grid;

/// Draws the configured prompts, or captions of the test split. False if the task draws nothing.
pub(super) fn draw_for_run(run: &mut Run<'_>, path: &Path) -> Result<bool, TrainError> {
    let sample = &run.config.sample;
    let prompts = match sample.prompts.is_empty() {
        true => run.data.test_captions(sample.rows)?,
        false => sample.prompts.clone(),
    };
    let (context, seed) = (run.context.clone(), run.config.train.seed);
    let (columns, size) = (sample.columns, run.config.model.image_size);
    run.learner.with_averages(|task| draw(task, &context, seed, &prompts, columns, size, path))
}

/// Draws `columns` pictures for each prompt, a row each. False if the task draws nothing.
pub(super) fn draw(
    task: &dyn Task,
    context: &Arc<Context>,
    seed: u64,
    prompts: &[String],
    columns: usize,
    size: usize,
    path: &Path,
) -> Result<bool, TrainError> {
    let session = Session { key: Key::new(seed).stream("samples"), ..Session::evaluation(context.clone()) };
    let tape = Tape::forward_only(session);
    let Some(pictures) = task.sample(&tape, prompts, columns)? else { return Ok(false) };
    let mut grid = Grid::new(pictures.len(), columns, size, size)?;
    for picture in &pictures {
        grid.push(picture)?;
    }
    grid.write(path)?;
    Ok(true)
}

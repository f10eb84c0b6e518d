//! Sample grids: the same noise and the same prompts every time, so that pictures can be compared over the run.

use std::path::Path;

use phalanx_tensor::{Key, Session, Tape};

use super::train::Run;
use super::{Task, TrainError, precision};
use crate::run::atomic::write_aside;
use crate::run::{Grid, RunError};

/// Draws the configured prompts, or captions of the test split, and writes them beside the picture, a line each, in
/// the order of the pictures. False if the task draws nothing, and on ranks other than 0, which only give it their parts of
/// the parameters.
pub(super) fn draw_for_run(run: &mut Run<'_>, path: &Path) -> Result<bool, TrainError> {
    if !run.learner.task.draws() {
        // Otherwise all ranks would gather all parameters for nothing.
        return Ok(false);
    }
    let sample = &run.config.sample;
    let prompts = match sample.prompts.is_empty() {
        true => run.data.test_captions(sample.rows)?,
        false => sample.prompts.clone(),
    };
    let precision = precision::precision(run.config);
    let session = Session { precision, ..Session::evaluation(run.context.clone()) };
    let seed = run.config.train.seed;
    let (columns, size) = (sample.columns, run.config.model.image_size);
    let peers = run.peers;
    let drawn = run.learner.with_averages(peers, |task| match peers.rank() {
        0 => draw(task, session.clone(), seed, &prompts, columns, size, path),
        _ => Ok(false),
    })?;
    if drawn {
        let list = path.with_file_name("prompts.txt");
        let lines: String = prompts.iter().map(|prompt| format!("{prompt}\n")).collect();
        write_aside(&list, lines.as_bytes()).map_err(RunError::io("write", &list))?;
    }
    Ok(drawn)
}

/// How many prompts stand side by side when each has one picture.
const PROMPTS_ABREAST: usize = 8;

/// Draws `columns` pictures for each prompt, a row each; if that is one, prompts follow each other as words do, from
/// left to right and line by line. False if the task draws nothing.
pub(super) fn draw(
    task: &dyn Task,
    session: Session,
    seed: u64,
    prompts: &[String],
    columns: usize,
    size: usize,
    path: &Path,
) -> Result<bool, TrainError> {
    let tape = Tape::forward_only(Session { key: Key::new(seed).stream("samples"), ..session });
    let Some(pictures) = task.sample(&tape, prompts, columns)? else { return Ok(false) };
    let width = if columns == 1 { PROMPTS_ABREAST } else { columns };
    let mut grid = Grid::new(pictures.len(), width, size, size)?;
    for picture in &pictures {
        grid.push(picture)?;
    }
    grid.write(path)?;
    Ok(true)
}

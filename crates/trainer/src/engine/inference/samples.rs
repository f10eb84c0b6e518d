//! Sample grids: the same noise and the same prompts every time, so that pictures can be compared over the run.

use std::path::Path;

use phalanx_tensor::{Key, Session, Tape};

use crate::engine::error::TrainError;
use crate::engine::training::{AnyTraining, Drawing};
use crate::run::Grid;

/// How many prompts stand side by side when each has one picture.
const PROMPTS_ABREAST: usize = 8;

/// Makes a drawing: a row for each prompt, or, of samples of one picture each, prompts follow each other as words do,
/// from left to right and line by line. False if the training draws nothing.
pub(in crate::engine) fn draw(
    training: &dyn AnyTraining,
    session: Session,
    seed: u64,
    drawing: &Drawing,
    size: usize,
    path: &Path,
) -> Result<bool, TrainError> {
    let tape = Tape::forward_only(Session { key: Key::new(seed).stream("samples"), ..session });
    let Some(pictures) = training.draw(&tape, drawing)? else { return Ok(false) };
    let width = if drawing.columns == 1 { PROMPTS_ABREAST } else { drawing.columns };
    let mut grid = Grid::new(pictures.len(), width, size, size)?;
    for picture in &pictures {
        grid.push(picture)?;
    }
    grid.write(path)?;
    Ok(true)
}

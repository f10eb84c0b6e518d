//! Sample grids: the same noise and the same prompts every time, so that pictures can be compared over the run.

use std::path::Path;

use phalanx_tensor::{Key, Session, Tape};

use crate::engine::error::TrainError;
use crate::engine::training::AnyTraining;
use crate::run::Grid;

/// How many prompts stand side by side when each has one picture.
const PROMPTS_ABREAST: usize = 8;

/// Draws `columns` pictures for each prompt, a row each; if that is one, prompts follow each other as words do, from
/// left to right and line by line. Where a picture has several panels they stand side by side. False if the training draws
/// nothing.
pub(in crate::engine) fn draw(
    training: &dyn AnyTraining,
    session: Session,
    seed: u64,
    prompts: &[String],
    columns: usize,
    size: usize,
    path: &Path,
) -> Result<bool, TrainError> {
    let tape = Tape::forward_only(Session { key: Key::new(seed).stream("samples"), ..session });
    let pictures = match training.panels(&tape, prompts, columns)? {
        None => training.sample(&tape, prompts, columns)?,
        panels => panels,
    };
    let Some(pictures) = pictures else { return Ok(false) };
    let panels = (pictures.len() / (prompts.len() * columns).max(1)).max(1);
    let width = if columns == 1 { (PROMPTS_ABREAST / panels).max(1) } else { columns } * panels;
    let mut grid = Grid::new(pictures.len(), width, size, size)?;
    for picture in &pictures {
        grid.push(picture)?;
    }
    grid.write(path)?;
    Ok(true)
}

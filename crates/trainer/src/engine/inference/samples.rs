//! Sample grids: the same noise and the same prompts every time, so that pictures can be compared over the run.

use std::path::Path;

use candle_core::Tensor;
use phalanx_tensor::{Key, Session, Tape, Value};

use crate::engine::error::TrainError;
use crate::engine::training::{AnyTraining, Drawing, DrawingKind, planar};
use phalanx_run::Grid;

/// How many prompts stand side by side when each has one picture.
const PROMPTS_ABREAST: usize = 8;

/// Makes a drawing: a row for each prompt, or, of samples of one picture each, prompts follow each other as words do,
/// from left to right and line by line. Where samples have several panels these stand side by side. False if the training
/// draws nothing.
pub(in crate::engine) fn draw(
    training: &dyn AnyTraining,
    session: Session,
    seed: u64,
    drawing: &Drawing,
    size: usize,
    path: &Path,
) -> Result<bool, TrainError> {
    let tape = Tape::forward_only(Session { key: Key::new(seed).stream("samples"), ..session });
    let panels = match drawing.kind {
        DrawingKind::Samples => training.panels(&tape, &drawing.prompts, drawing.columns)?,
        _ => None,
    };
    // How many pictures stand for one.
    let cells = drawing.prompts.len() * drawing.columns;
    let abreast = panels.as_ref().map_or(1, |panels| (panels.len() / cells.max(1)).max(1));
    let Some(pictures) = panels.map_or_else(|| training.draw(&tape, drawing), |panels| Ok(Some(panels)))?
    else {
        return Ok(false);
    };
    let columns = if drawing.columns == 1 { (PROMPTS_ABREAST / abreast).max(1) } else { drawing.columns };
    let width = columns * abreast;
    write(&pictures, width, size, path)?;
    Ok(true)
}

/// Shows pictures [N, 3, size, size] in [-1, 1], each beside what comes back of it. False if the training restores nothing.
pub(in crate::engine) fn draw_restored(
    training: &dyn AnyTraining,
    session: Session,
    images: &Tensor,
    size: usize,
    path: &Path,
) -> Result<bool, TrainError> {
    let images = Value::constant(session.device.put(images)?);
    let tape = Tape::forward_only(session);
    let Some(restored) = training.restore(&tape, &images)? else { return Ok(false) };
    let (given, restored) = (planar(&images)?, planar(&restored)?);
    let pairs: Vec<Vec<f32>> = given.into_iter().zip(restored).flat_map(|pair| [pair.0, pair.1]).collect();
    write(&pairs, PROMPTS_ABREAST, size, path)?;
    Ok(true)
}

/// Writes pictures, so many abreast.
fn write(pictures: &[Vec<f32>], abreast: usize, size: usize, path: &Path) -> Result<(), TrainError> {
    let mut grid = Grid::new(pictures.len(), abreast, size, size)?;
    for picture in pictures {
        grid.push(picture)?;
    }
    Ok(grid.write(path)?)
}

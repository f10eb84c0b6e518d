//! Grids of samples, always from the same noise and prompts, so that images can be compared over the run.

use std::path::Path;

use candle_core::Tensor;
use phalanx_tensor::{Key, Session, Tape, Value};

use crate::engine::error::TrainError;
use crate::engine::training::{AnyTraining, Drawing, DrawingKind, planar};
use phalanx_run::Grid;

/// The number of prompts in a row if each has one image.
const PROMPTS_ABREAST: usize = 8;

/// Generates images and writes a grid: a row for each prompt, or eight prompts in a row if each has one image. The panels of a sample are
/// adjacent. Returns false if the training generates nothing.
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
    // The number of panels of one sample.
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

/// Writes a grid of images [N, 3, size, size] in [-1, 1], each next to its reconstruction. Returns false if the training restores
/// nothing.
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

/// Writes images as a grid with this number in a row.
fn write(pictures: &[Vec<f32>], abreast: usize, size: usize, path: &Path) -> Result<(), TrainError> {
    let mut grid = Grid::new(pictures.len(), abreast, size, size)?;
    for picture in pictures {
        grid.push(picture)?;
    }
    Ok(grid.write(path)?)
}

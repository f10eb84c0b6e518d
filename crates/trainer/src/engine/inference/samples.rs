//! Grids of samples, always from the same noise and prompts, so that images can be compared over the run.

use std::path::Path;

use candle_core::Tensor;
use phalanx_tensor::{Key, Session, Tape, Value};

use crate::engine::error::TrainError;
use crate::engine::training::{AnyTraining, Drawing, DrawingKind, planar};
use phalanx_run::Grid;

/// The number of prompts in a row if each has one image.
const PROMPTS_ABREAST: usize = 8;

/// The style of a grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GridStyle {
    /// The factor by which pixels are repeated; `None` magnifies small grids.
    pub scale: Option<usize>,
    /// True if the prompts are written below the images.
    pub captions: bool,
}

/// Generates images and writes a grid: a row for each prompt, or eight prompts in a row if each has one image. The panels of a sample are
/// adjacent. Returns false if the training generates nothing.
pub(in crate::engine) fn draw(
    training: &dyn AnyTraining,
    session: Session,
    seed: u64,
    drawing: &Drawing,
    (size, style): (usize, GridStyle),
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
    let mut grid = Grid::new(pictures.len(), columns * abreast, size, size)?.scaled(style.scale);
    let of_row = captions(drawing);
    let each = pictures.len() / of_row.len().max(1);
    for (index, picture) in pictures.iter().enumerate() {
        match of_row.get(index / each.max(1)).filter(|_| style.captions) {
            Some(caption) => grid.push_captioned(picture, caption)?,
            None => grid.push(picture)?,
        }
    }
    grid.write(path)?;
    Ok(true)
}

/// Returns the caption of each row of a drawing: its prompt, or both prompts of an interpolation.
fn captions(drawing: &Drawing) -> Vec<String> {
    match drawing.kind {
        DrawingKind::BetweenTexts => {
            drawing.prompts.windows(2).map(|pair| format!("{} -> {}", pair[0], pair[1])).collect()
        }
        _ => drawing.prompts.clone(),
    }
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
    let mut grid = Grid::new(pairs.len(), PROMPTS_ABREAST, size, size)?;
    for picture in &pairs {
        grid.push(picture)?;
    }
    grid.write(path)?;
    Ok(true)
}

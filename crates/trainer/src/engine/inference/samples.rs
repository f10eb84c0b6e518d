//! Grids of samples, always from the same noise and prompts, so that images can be compared over the run.

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

/// The images of a drawing, row by row.
pub(in crate::engine) struct Drawn {
    pictures: Vec<Vec<f32>>,
    /// The number of samples in a row.
    columns: usize,
    /// The number of panels of one sample.
    abreast: usize,
}

impl Drawn {
    /// Generates the images of a drawing; `None` if the training generates nothing.
    pub(in crate::engine) fn of(
        training: &dyn AnyTraining,
        session: Session,
        seed: u64,
        drawing: &Drawing,
    ) -> Result<Option<Self>, TrainError> {
        let tape = Tape::forward_only(Session { key: Key::new(seed).stream("samples"), ..session });
        let panels = match drawing.kind {
            DrawingKind::Samples => training.panels(&tape, &drawing.prompts, drawing.columns)?,
            _ => None,
        };
        let cells = drawing.prompts.len() * drawing.columns;
        let abreast = panels.as_ref().map_or(1, |panels| (panels.len() / cells.max(1)).max(1));
        let pictures = panels.map_or_else(|| training.draw(&tape, drawing), |panels| Ok(Some(panels)))?;
        Ok(pictures.map(|pictures| Self { pictures, columns: drawing.columns, abreast }))
    }

    /// Generates a sample of each prompt from each seed: a column for each seed, the first that a drawing of this seed has.
    pub(in crate::engine) fn of_seeds(
        training: &dyn AnyTraining,
        session: &Session,
        seeds: &[u64],
        drawing: &Drawing,
    ) -> Result<Option<Self>, TrainError> {
        let one = Drawing { columns: 1, ..drawing.clone() };
        let drawn = seeds.iter().map(|seed| Self::of(training, session.clone(), *seed, &one));
        let Some(of_seeds) = drawn.collect::<Result<Option<Vec<Self>>, _>>()? else { return Ok(None) };
        let abreast = of_seeds.first().map_or(1, |drawn| drawn.abreast);
        let row = |prompt: usize| {
            of_seeds.iter().flat_map(move |drawn| &drawn.pictures[prompt * abreast..(prompt + 1) * abreast])
        };
        let pictures = (0..drawing.prompts.len()).flat_map(row).cloned().collect();
        Ok(Some(Self { pictures, columns: seeds.len(), abreast }))
    }

    /// Returns the images, row by row, with the panels of a sample next to each other.
    pub(in crate::engine) fn into_pictures(self) -> Vec<Vec<f32>> {
        self.pictures
    }

    /// Returns the number of samples.
    pub(in crate::engine) fn samples(&self) -> usize {
        self.pictures.len() / self.abreast
    }
}

/// Generates images. Returns their grid; `None` if the training generates nothing.
pub(in crate::engine) fn drawn(
    training: &dyn AnyTraining,
    session: Session,
    seed: u64,
    drawing: &Drawing,
    shape: (usize, GridStyle),
) -> Result<Option<Grid>, TrainError> {
    let drawn = Drawn::of(training, session, seed, drawing)?;
    drawn.map(|drawn| grid_of(&drawn, drawing, shape)).transpose()
}

/// Returns a grid: a row for each prompt, or eight prompts in a row if each has one image. The panels of a sample are adjacent.
pub(in crate::engine) fn grid_of(
    drawn: &Drawn,
    drawing: &Drawing,
    (size, style): (usize, GridStyle),
) -> Result<Grid, TrainError> {
    let Drawn { pictures, columns, abreast } = drawn;
    let columns = if *columns == 1 { (PROMPTS_ABREAST / abreast).max(1) } else { *columns };
    let mut grid = Grid::new(pictures.len(), columns * abreast, size, size)?.scaled(style.scale);
    let of_row = captions(drawing);
    let each = pictures.len() / of_row.len().max(1);
    for (index, picture) in pictures.iter().enumerate() {
        match of_row.get(index / each.max(1)).filter(|_| style.captions) {
            Some(caption) => grid.push_captioned(picture, caption)?,
            None => grid.push(picture)?,
        }
    }
    Ok(grid)
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

/// Returns a grid of images [N, 3, size, size] in [-1, 1], each next to its reconstruction; `None` if the training restores nothing.
pub(in crate::engine) fn restored(
    training: &dyn AnyTraining,
    session: Session,
    images: &Tensor,
    size: usize,
) -> Result<Option<Grid>, TrainError> {
    let images = Value::constant(session.device.put(images)?);
    let tape = Tape::forward_only(session);
    let Some(restored) = training.restore(&tape, &images)? else { return Ok(None) };
    let (given, restored) = (planar(&images)?, planar(&restored)?);
    let pairs: Vec<Vec<f32>> = given.into_iter().zip(restored).flat_map(|pair| [pair.0, pair.1]).collect();
    let mut grid = Grid::new(pairs.len(), PROMPTS_ABREAST, size, size)?;
    for picture in &pairs {
        grid.push(picture)?;
    }
    Ok(Some(grid))
}

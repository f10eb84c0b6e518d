//! Pictures of several models for the same prompts: a row for each model, a column for each prompt.

use std::path::Path;

use super::{SampleArgs, configuration, speed};
use crate::Program;
use crate::commands::error::CliError;
use crate::commands::resolve::task_alone;
use crate::commands::trained_model::NamedModel;
use crate::console::out;
use phalanx_run::Grid;
use phalanx_trainer::engine::{CheckpointChoice, Drawing, DrawingKind, draw_pictures};

/// The pictures of a model.
struct Row {
    name: String,
    pictures: Vec<Vec<f32>>,
    /// The height and width of the pictures.
    size: usize,
}

/// Draws one picture of each prompt by each model and writes the grid. Pictures of smaller models are magnified.
pub(super) fn run(program: &Program, args: &SampleArgs) -> Result<(), CliError> {
    // A missing one is told before the others draw.
    let choice = if args.best { CheckpointChoice::Best } else { CheckpointChoice::Newest };
    let models = args.runs.iter().map(|run| NamedModel::open(program, run, choice));
    let models: Vec<NamedModel> = models.collect::<Result<_, _>>()?;
    let rows = models.into_iter().zip(names(&args.runs)).map(|(model, name)| row(program, args, model, name));
    let rows: Vec<Row> = rows.collect::<Result<_, _>>()?;
    let size = rows.iter().map(|row| row.size).max().unwrap_or(1);
    let style = args.style.grid();
    let (count, columns) = (rows.len() * args.prompts.len(), args.prompts.len());
    let mut grid = Grid::new(count, columns, size, size).map_err(CliError::failed)?.scaled(style.scale);
    if style.captions {
        grid = grid.titled(&args.prompts);
    }
    for Row { name, pictures, size: own } in &rows {
        for picture in pictures {
            let picture = magnified(picture, *own, size);
            let pushed = match style.captions {
                true => grid.push_captioned(&picture, name),
                false => grid.push(&picture),
            };
            pushed.map_err(CliError::failed)?;
        }
    }
    grid.write(&args.out).map_err(CliError::failed)?;
    out(&args.out.display().to_string());
    Ok(())
}

fn row(program: &Program, args: &SampleArgs, named: NamedModel, name: String) -> Result<Row, CliError> {
    let NamedModel { model, resolved, .. } = named;
    let resolved = configuration(args, resolved)?;
    let config = &resolved.config;
    let kind = DrawingKind::Each { first: 0 };
    let drawing = Drawing { prompts: args.prompts.clone(), columns: 1, kind };
    let seed = args.seed.unwrap_or(config.train.seed);
    let drawn = draw_pictures(&task_alone(program, config)?, &model, config, &drawing, seed);
    let drawn = drawn.map_err(CliError::failed)?;
    let of_run = format!("{name} (weights after step {})", model.step);
    out(&format!("{of_run}: {}", speed(drawn.pictures.len(), drawn.time, None)));
    Ok(Row { name, pictures: drawn.pictures, size: config.model.image_size })
}

/// The last part of each path, or all of it where several have the same.
fn names<P: AsRef<Path>>(runs: &[P]) -> Vec<String> {
    let short = |run: &Path| {
        let name = run.file_name()?.to_string_lossy();
        Some(name.strip_suffix(".safetensors").unwrap_or(&name).to_owned())
    };
    let name = |run: &P| {
        let run = run.as_ref();
        let same = runs.iter().filter(|other| short(other.as_ref()) == short(run)).count();
        short(run).filter(|_| same < 2).unwrap_or_else(|| run.display().to_string())
    };
    runs.iter().map(name).collect()
}

/// Magnifies a picture, `[3, from, from]`, to `[3, to, to]` by its nearest pixels.
fn magnified(picture: &[f32], from: usize, to: usize) -> Vec<f32> {
    let pixel = |at: usize| {
        let (channel, y, x) = (at / (to * to), at / to % to, at % to);
        picture[(channel * from + y * from / to) * from + x * from / to]
    };
    (0..3 * to * to).map(pixel).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_have_short_names_unless_they_are_the_same() {
        assert_eq!(names(&["runs/lr0.1", "runs/b.safetensors"]), ["lr0.1", "b"]);
        assert_eq!(names(&["x/first", "y/first", "z"]), ["x/first", "y/first", "z"]);
    }

    #[test]
    fn magnified_pictures_repeat_pixels() {
        let picture: Vec<f32> = (0..12).map(|at| at as f32).collect();
        let large = magnified(&picture, 2, 4);
        assert_eq!(large[..8], [0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0]);
        assert_eq!(large[44..], [10.0, 10.0, 11.0, 11.0]);
        assert_eq!(magnified(&picture, 2, 2), picture);
    }
}

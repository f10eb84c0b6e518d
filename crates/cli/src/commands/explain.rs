//! `phalanx explain`: what a text-to-image model makes of captions.

use std::path::{Path, PathBuf};

use clap::Args;

use super::error::CliError;
use super::former_run::former_run_option;
use super::resolve::task_of;
use super::trained_model::NamedModel;
use crate::Program;
use crate::console::out;
use phalanx_charts::{Axis, Figure, Panel, Series, Unit};
use phalanx_run::format::columns;
use phalanx_run::{CaptionUse, Grid, LevelErrors, write_aside};
use phalanx_trainer::engine::{
    CheckpointChoice, ExplainOptions, Explanation, ReadPicture, WordMap, explain_model,
};

/// The side in pixels that smaller pictures are magnified to, so that words fit below them.
const SIDE: usize = 64;

/// The share of the picture in a map; the rest is the attention.
const PICTURE: f32 = 0.4;

/// The colours of attention in [0, 1], from none to the most, in equal distances.
const HEAT: [[f32; 3]; 4] = [[0.0, 0.0, 0.2], [0.5, 0.0, 0.5], [1.0, 0.5, 0.0], [1.0, 1.0, 0.7]];

/// The size of a panel of the chart in pixels.
const PANEL: (f64, f64) = (680.0, 380.0);

/// Show what a text-to-image model makes of captions: the attributes that can be read from its encoded captions, the levels
/// of noise at which they count, and where it looks for each word.
#[derive(Debug, Args)]
#[command(arg = former_run_option())]
pub(super) struct ExplainArgs {
    /// A run's folder, or a checkpoint's (`…/checkpoints/step-N`).
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Use the best checkpoint (checkpoint.best) instead of the newest one.
    #[arg(long)]
    best: bool,
    /// The number of held-out samples.
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(2..))]
    samples: u32,
    /// The number of images whose attention is shown.
    #[arg(long, value_name = "N", default_value_t = 6)]
    pictures: u16,
    /// Override a key (see `phalanx config show`).
    #[arg(long = "set", value_name = "SECTION.KEY=VALUE")]
    sets: Vec<String>,
    /// The folder for explain.json, levels.svg and attention.png [default: RUN/explain].
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(program: &Program, args: &ExplainArgs) -> Result<(), CliError> {
    let choice = if args.best { CheckpointChoice::Best } else { CheckpointChoice::Newest };
    let NamedModel { model, mut resolved, run } = NamedModel::open(program, &args.run, choice)?;
    for set in &args.sets {
        resolved.set(&format!("--set {set}"), set)?;
    }
    resolved.validate()?;
    let config = &resolved.config;
    let folder = args.out.clone().or_else(|| Some(run?.path().join("explain")));
    let no_folder =
        || CliError::Usage("an exported model has no folder of its own; add --out DIR".to_owned());
    let folder = folder.ok_or_else(no_folder)?;
    // A folder that cannot be written is told before minutes of work.
    std::fs::create_dir_all(&folder)
        .map_err(|error| CliError::failed(format!("{}: {error}", folder.display())))?;
    let options = ExplainOptions { samples: args.samples as usize, pictures: args.pictures.into() };
    let explanation =
        explain_model(&task_of(program, config)?, &model, config, options).map_err(CliError::failed)?;
    let files = write_files(&explanation, &folder)?;
    if args.json {
        out(&serde_json::to_string(&explanation.captions).map_err(CliError::failed)?);
        return Ok(());
    }
    text(&explanation.captions).iter().for_each(|line| out(line));
    out(&format!("files: {}", files.join(", ")));
    Ok(())
}

/// Writes the files of an explanation into a folder, and returns their paths.
fn write_files(explanation: &Explanation, folder: &Path) -> Result<Vec<String>, CliError> {
    let mut files = vec![folder.join("explain.json")];
    let json = serde_json::to_string_pretty(&explanation.captions).map_err(CliError::failed)?;
    write_aside(&files[0], json.as_bytes()).map_err(CliError::failed)?;
    if !explanation.captions.levels.is_empty() {
        files.push(folder.join("levels.svg"));
        write_aside(&folder.join("levels.svg"), chart(&explanation.captions).as_bytes())
            .map_err(CliError::failed)?;
    }
    if !explanation.pictures.is_empty() {
        files.push(folder.join("attention.png"));
        attention(&explanation.pictures)
            .and_then(|grid| grid.write(&folder.join("attention.png")))
            .map_err(CliError::failed)?;
    }
    Ok(files.iter().map(|file| file.display().to_string()).collect())
}

/// The tables.
fn text(explanation: &CaptionUse) -> Vec<String> {
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let head = |first: &str, more: &[&str]| -> Vec<String> {
        let more = more.iter().copied().chain(explanation.attributes.iter().map(String::as_str));
        std::iter::once(first).chain(more).map(str::to_owned).collect()
    };
    let mut rows = vec![head("read from", &[])];
    rows.extend(explanation.features.iter().map(|read| {
        std::iter::once(read.label()).chain(read.accuracy.iter().map(|share| percent(*share))).collect()
    }));
    let samples = explanation.samples;
    let mut lines = vec![format!(
        "what a linear reader finds in the encoded captions of {samples} held-out images, after step {}:",
        explanation.step
    )];
    lines.extend(columns(&rows));
    if !explanation.levels.is_empty() {
        let mut rows = vec![head("level of noise", &["error", "no caption"])];
        rows.extend(explanation.levels.iter().map(|level| {
            let LevelErrors { level, error, without_caption, wrong } = level;
            let rises = std::iter::once(Some(*without_caption)).chain(wrong.iter().copied());
            let shown = |share: Option<f64>| {
                share.map_or_else(|| "?".to_owned(), |share| format!("{:+.1} %", 100.0 * share))
            };
            let numbers = [format!("{level:.2}"), format!("{error:.4}")];
            numbers.into_iter().chain(rises.map(shown)).collect()
        }));
        lines.extend([
            String::new(),
            "how much the error rises without a caption, and with one wrong value in it:".to_owned(),
        ]);
        lines.extend(columns(&rows));
    }
    lines.push(String::new());
    lines
}

/// The chart of the levels of noise.
fn chart(explanation: &CaptionUse) -> String {
    let line = |name: &str, of: &dyn Fn(&LevelErrors) -> f64| {
        Series::new(name, explanation.levels.iter().map(|level| (level.level, 100.0 * of(level))).collect())
    };
    let mut lines = vec![line("no caption", &|level| level.without_caption)];
    for (at, name) in explanation.attributes.iter().enumerate() {
        lines.push(line(&format!("wrong {name}"), &|level| level.wrong[at].unwrap_or(f64::NAN)));
    }
    let x = Axis::of("level of noise: 0 = image, 1 = noise alone", Unit::Plain);
    let panel = Panel::lines("rise of the error in percent", x, Axis::default(), lines);
    Figure::new("at which levels of noise captions count", vec![panel]).grid(1, PANEL).svg()
}

/// Draws a row for each picture: itself, then a map of where it looks for each word, with the word's share of the attention.
fn attention(pictures: &[ReadPicture]) -> Result<Grid, phalanx_run::RunError> {
    let words = pictures.iter().map(|picture| picture.words.len()).max().unwrap_or(0);
    let size = pictures.first().map_or(1, |picture| picture.size);
    let grid = Grid::new(pictures.len() * (1 + words), 1 + words, size, size)?;
    let mut grid = grid.scaled(Some(SIDE.div_ceil(size).max(1)));
    for picture in pictures {
        grid.push_captioned(&picture.pixels, &picture.caption)?;
        for word in &picture.words {
            let label = format!("{} {:.0}%", word.word, 100.0 * word.share());
            grid.push_captioned(&map(picture, word), &label)?;
        }
        for _ in picture.words.len()..words {
            grid.push(&vec![-1.0; 3 * size * size])?;
        }
    }
    Ok(grid)
}

/// Returns a picture in gray under the colours of its attention to a word, as shares of the most of a pixel.
fn map(picture: &ReadPicture, word: &WordMap) -> Vec<f32> {
    let pixels = word.shares.len();
    let most = word.shares.iter().fold(f32::MIN_POSITIVE, |most, share| most.max(*share));
    let gray = |at: usize| (0..3).map(|channel| picture.pixels[channel * pixels + at]).sum::<f32>() / 3.0;
    let value = |(channel, at): (usize, usize)| {
        let heat = 2.0 * heat(word.shares[at] / most)[channel] - 1.0;
        PICTURE * gray(at) + (1.0 - PICTURE) * heat
    };
    (0..3).flat_map(|channel| (0..pixels).map(move |at| (channel, at))).map(value).collect()
}

/// Returns the colour of a share from 0 to 1.
fn heat(share: f32) -> [f32; 3] {
    let place = share.clamp(0.0, 1.0) * (HEAT.len() - 1) as f32;
    let below = (place as usize).min(HEAT.len() - 2);
    let part = place - below as f32;
    std::array::from_fn(|channel| HEAT[below][channel] * (1.0 - part) + HEAT[below + 1][channel] * part)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explanation() -> Explanation {
        let read = |features: &str, width, accuracy: [f64; 2]| phalanx_run::ReadFeatures {
            features: features.to_owned(),
            width,
            accuracy: accuracy.to_vec(),
        };
        let level = |level, wrong: [f64; 2]| LevelErrors {
            level,
            error: 0.5,
            without_caption: 0.25,
            wrong: wrong.map(Some).to_vec(),
        };
        Explanation {
            captions: CaptionUse {
                step: 100,
                attributes: vec!["shape".to_owned(), "place".to_owned()],
                samples: 8,
                features: vec![read("tokens", 64, [1.0, 0.5]), read("chance", 0, [0.25, 0.125])],
                levels: vec![level(0.25, [0.0, 0.01]), level(0.75, [0.1, 0.2])],
            },
            pictures: vec![ReadPicture {
                caption: "a star".to_owned(),
                size: 2,
                pixels: vec![1.0; 12],
                words: vec![WordMap { word: "star".to_owned(), shares: vec![0.5, 0.0, 0.25, 0.25] }],
            }],
        }
    }

    #[test]
    fn tables_name_attributes_and_shares() {
        let lines = text(&explanation().captions).join("\n");
        for part in
            ["8 held-out images, after step 100", "tokens (64 numbers)  100.0 %  50.0 %", "+10.0 %  +20.0 %"]
        {
            assert!(lines.contains(part), "{part:?} in\n{lines}");
        }
        let none = CaptionUse { levels: Vec::new(), ..explanation().captions };
        assert!(!text(&none).join("\n").contains("rises"));
    }

    #[test]
    fn attention_is_brightest_where_a_picture_looks_most() {
        let explanation = explanation();
        let picture = &explanation.pictures[0];
        let map = map(picture, &picture.words[0]);
        let sum = |at: usize| map[at] + map[4 + at] + map[8 + at];
        assert!(sum(0) > sum(2) && sum(2) > sum(1) && sum(2) == sum(3), "{map:?}");
        assert!(map.iter().all(|value| (-1.0..=1.0).contains(value)), "{map:?}");
        assert_eq!(heat(0.0), HEAT[0]);
        assert_eq!(heat(1.0), HEAT[3]);
        assert!(attention(&explanation.pictures).is_ok());
    }

    #[test]
    fn the_chart_has_a_line_for_each_attribute() {
        let svg = chart(&explanation().captions);
        assert!(svg.contains("wrong shape") && svg.contains("wrong place") && svg.contains("no caption"));
    }
}

//! A grid of judged images: each with its caption, and marked with what it does not show.

use std::path::Path;

use image::RgbImage;
use phalanx_run::{Grid, RunError};

use super::judged_answer::JudgedAnswer;
use crate::engine::error::TrainError;

/// The number of images of a grid.
const IMAGES: usize = 32;

/// The number of images in a row.
const COLUMNS: usize = 8;

/// The width in pixels up to which images are magnified, so that there is room for captions.
const READABLE: usize = 136;

/// The file of the grid in the folder of evaluations.
const FILE: &str = "judged.png";

/// The first images that are judged.
#[derive(Default)]
pub(super) struct JudgedGrid {
    images: Vec<JudgedImage>,
}

struct JudgedImage {
    image: RgbImage,
    caption: String,
    /// The properties that it does not show as it should.
    wrong: Vec<String>,
}

impl JudgedGrid {
    /// Adds images with their captions and the answers of all evaluators, as far as there is room.
    pub(super) fn add(&mut self, images: &[RgbImage], captions: &[String], answers: &[JudgedAnswer]) {
        let room = IMAGES.saturating_sub(self.images.len());
        for (at, (image, caption)) in images.iter().zip(captions).enumerate().take(room) {
            // A scene as a whole is wrong because of what it lacks, which is named; the second of its relations is one of them.
            let named =
                |answer: &&JudgedAnswer| !["scene", "second_relation"].contains(&answer.name.as_str());
            let wrong =
                answers.iter().filter(named).filter(|answer| answer.right[at].is_some_and(|part| part < 1.0));
            let wrong = wrong.map(|answer| if answer.name == "labels" { "class" } else { &answer.name });
            self.images.push(JudgedImage {
                image: image.clone(),
                caption: caption.clone(),
                wrong: wrong.map(str::to_owned).collect(),
            });
        }
    }

    /// Writes the grid into a folder, which is made if it does not exist. Without images nothing is written.
    pub(super) fn write(&self, folder: &Path) -> Result<(), TrainError> {
        let Some(first) = self.images.first() else { return Ok(()) };
        let (width, height) = (first.image.width() as usize, first.image.height() as usize);
        let scale = (READABLE / width).max(1);
        let mut grid = Grid::new(self.images.len(), COLUMNS, width, height)?.scaled(Some(scale));
        for JudgedImage { image, caption, wrong } in &self.images {
            let pixels = image.as_raw();
            let channel = |channel: usize| pixels.iter().skip(channel).step_by(3);
            let planar = (0..3).flat_map(channel).map(|level| f32::from(*level) / 127.5 - 1.0);
            grid.push_captioned(&planar.collect::<Vec<_>>(), caption)?;
            if !wrong.is_empty() {
                grid.mark(&format!("not: {}", wrong.join(", ")));
            }
        }
        std::fs::create_dir_all(folder).map_err(RunError::io("make", folder))?;
        Ok(grid.write(&folder.join(FILE))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_images_are_written_with_what_they_lack() {
        let place = tempfile::tempdir().expect("a folder");
        let mut grid = JudgedGrid::default();
        grid.write(&place.path().join("none")).expect("nothing to write");
        assert!(!place.path().join("none").exists());
        let images = vec![RgbImage::from_pixel(8, 8, image::Rgb([10, 200, 30])); 20];
        let captions = vec!["a circle".to_owned(); 20];
        let answer = |name: &str, right: f64| JudgedAnswer {
            name: name.to_owned(),
            right: vec![Some(right); 20],
            confusion: None,
        };
        grid.add(
            &images,
            &captions,
            &[answer("shape", 1.0), answer("second_relation", 0.0), answer("scene", 0.0)],
        );
        grid.add(&images, &captions, &[answer("labels", 0.0), answer("relation", 0.5)]);
        assert_eq!(grid.images.len(), IMAGES);
        assert!(grid.images[19].wrong.is_empty());
        assert_eq!(grid.images[20].wrong, ["class", "relation"]);
        grid.write(&place.path().join("evaluation")).expect("writes");
        let written = image::open(place.path().join("evaluation/judged.png")).expect("a picture").to_rgb8();
        assert!(written.pixels().any(|pixel| pixel.0 == [10, 200, 30]));
    }
}

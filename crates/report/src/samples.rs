//! The samples of a run.

use std::path::{Path, PathBuf};

use phalanx_run::Links;

use super::step_files::StepFiles;
use super::texts::Texts;

/// A grid of samples, with its size for the layout of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sample {
    /// The step after which it was drawn.
    pub(crate) step: u64,
    /// The file.
    pub(crate) path: PathBuf,
    /// The file's bytes.
    pub(crate) png: Vec<u8>,
    /// The width in pixels.
    pub(crate) width: u32,
    /// The height in pixels.
    pub(crate) height: u32,
}

/// The samples of a run, reduced to a maximum number.
#[derive(Debug, Clone, Default)]
pub(crate) struct Samples {
    /// The shown samples, in the order of steps.
    pub(crate) shown: Vec<Sample>,
    /// The number of samples.
    pub(crate) all: usize,
    /// Errors of damaged files.
    pub(crate) damaged: Vec<String>,
    /// The captions of the last samples.
    pub(crate) prompts: Vec<String>,
    /// The texts, of language models.
    pub(crate) texts: Texts,
}

/// The maximum size of a shown file in bytes.
const MAX_BYTES: u64 = 16 << 20;
/// The maximum number of times that an image is halved.
const MOST_HALVINGS: u32 = 6;
/// The maximum number of listed prompts.
const MAX_PROMPTS: usize = 256;

impl Samples {
    /// Reads at most `most` evenly spaced files of a folder `samples`, including the first and the last.
    pub(crate) fn read(folder: &Path, most: usize) -> Self {
        let StepFiles { all, shown } = StepFiles::of(folder, ".png", most);
        let mut samples = Self { all, texts: Texts::read(folder, most), ..Self::default() };
        for (step, path) in shown {
            match read(&path) {
                Ok((png, (width, height))) => {
                    samples.shown.push(Sample { step, path, png, width, height });
                }
                Err(problem) => {
                    let name = path.file_name().unwrap_or_default().to_string_lossy();
                    samples.damaged.push(format!("samples/{name} {problem}"));
                }
            }
        }
        let prompts = Links::Refuse.read(&folder.join("prompts.txt")).unwrap_or_default();
        let prompts = String::from_utf8_lossy(&prompts);
        samples.prompts = prompts.lines().take(MAX_PROMPTS).map(str::to_owned).collect();
        samples
    }
}

impl Sample {
    /// Returns the image, scaled down by halving until it fits `bytes`. A file that is no image is returned unchanged.
    pub(crate) fn within(&self, bytes: usize) -> Self {
        if self.png.len() <= bytes {
            return self.clone();
        }
        let smaller =
            phalanx_data::decode_image(&self.png).ok().map(image::DynamicImage::from).and_then(|image| {
                (1..=MOST_HALVINGS).find_map(|halvings| {
                    let (width, height) = ((self.width >> halvings).max(1), (self.height >> halvings).max(1));
                    let mut png = std::io::Cursor::new(Vec::new());
                    image.thumbnail_exact(width, height).write_to(&mut png, image::ImageFormat::Png).ok()?;
                    let png = png.into_inner();
                    (png.len() <= bytes || halvings == MOST_HALVINGS).then(|| Self {
                        png,
                        width,
                        height,
                        ..self.clone()
                    })
                })
            });
        smaller.unwrap_or_else(|| self.clone())
    }
}

/// Reads the bytes and the size of an image.
fn read(path: &Path) -> Result<(Vec<u8>, (u32, u32)), String> {
    let length = std::fs::metadata(path).map_err(|error| format!("cannot be read: {error}"))?.len();
    if length > MAX_BYTES {
        return Err(format!("has {} MiB, more than {} are not shown", length >> 20, MAX_BYTES >> 20));
    }
    let bytes = Links::Refuse.read(path).map_err(|error| format!("cannot be read: {error}"))?;
    let size = png_size(&bytes)?;
    Ok((bytes, size))
}

/// Returns the width and height of a PNG.
///
/// # Errors
/// The reason why it is none.
pub(crate) fn png_size(bytes: &[u8]) -> Result<(u32, u32), String> {
    let reader = image::ImageReader::with_format(std::io::Cursor::new(bytes), image::ImageFormat::Png);
    let size = reader.into_dimensions().map_err(|error| format!("is no picture: {error}"))?;
    // Every PNG ends with this chunk.
    match bytes.ends_with(b"IEND\xaeB`\x82") {
        true => Ok(size),
        false => Err("is cut off".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_pictures_become_few_and_damaged_ones_are_told() {
        let folder = tempfile::tempdir().expect("a folder");
        for step in 1..=30 {
            let path = folder.path().join(format!("step-{step:08}.png"));
            image::RgbImage::new(5, 4).save(&path).expect("saves");
        }
        std::fs::write(folder.path().join("prompts.txt"), "a <b>\nc\n").expect("writes");
        std::fs::write(folder.path().join("other.png"), "x").expect("writes");
        let samples = Samples::read(folder.path(), 4);
        let steps: Vec<u64> = samples.shown.iter().map(|sample| sample.step).collect();
        assert_eq!((steps, samples.all), (vec![1, 10, 20, 30], 30));
        assert_eq!((samples.shown[0].width, samples.shown[0].height), (5, 4));
        assert_eq!(samples.prompts, ["a <b>", "c"]);
        let last = folder.path().join("step-00000030.png");
        let bytes = std::fs::read(&last).expect("reads");
        std::fs::write(&last, &bytes[..bytes.len() - 5]).expect("writes");
        std::fs::write(folder.path().join("step-00000001.png"), "no picture").expect("writes");
        let samples = Samples::read(folder.path(), 100);
        assert_eq!(samples.shown.len(), 28);
        assert!(samples.damaged[0].contains("step-00000001.png is no picture"), "{:?}", samples.damaged);
        assert!(samples.damaged[1].contains("is cut off"), "{:?}", samples.damaged);
        assert!(Samples::read(&folder.path().join("none"), 4).shown.is_empty());
    }

    #[test]
    fn large_pictures_are_made_smaller_until_they_fit() {
        let folder = tempfile::tempdir().expect("a folder");
        let noise =
            |x: u32, y: u32| (x.wrapping_mul(2_654_435_761) ^ y.wrapping_mul(40_503)).wrapping_mul(97) >> 7;
        let picture = image::RgbImage::from_fn(200, 100, |x, y| {
            image::Rgb([noise(x, y) as u8, noise(y, x) as u8, noise(x + 7, y) as u8])
        });
        picture.save(folder.path().join("step-00000001.png")).expect("saves");
        let samples = Samples::read(folder.path(), 1);
        let whole = &samples.shown[0];
        assert_eq!(whole.within(whole.png.len()), *whole);
        let small = whole.within(whole.png.len() - 1);
        assert!(small.png.len() < whole.png.len() && (small.width, small.height) == (100, 50));
        let smaller = whole.within(6000);
        assert!(
            smaller.png.len() <= 6000 && smaller.width * 2 == smaller.height * 4,
            "{}",
            smaller.png.len()
        );
        assert_eq!(read_size(&smaller.png), (smaller.width, smaller.height));
        assert_eq!(whole.within(0).width, 3, "no smaller than that");
    }

    fn read_size(png: &[u8]) -> (u32, u32) {
        let image = image::load_from_memory(png).expect("a picture");
        (image.width(), image.height())
    }
}

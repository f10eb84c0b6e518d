//! The worst mistakes of a classifier as an SVG picture, with the images in it.

use std::fmt::Write as _;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use image::imageops::FilterType;
use image::{ImageFormat, Rgb, RgbImage};
use phalanx_charts::escape;

use super::matrix_picture::short;
use super::report::{ClassReport, Mistake};
use crate::folder::RunError;
use crate::picture::level;

/// Images in a row.
const COLUMNS: usize = 6;
/// The side of an image, in units.
const SIDE: f64 = 120.0;
/// The largest side of an image in the file, in pixels.
const PIXELS: u32 = 160;

/// An image `[3, height, width]`, planar, with values from -1 (black) to 1 (full intensity).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PlanarPicture {
    /// The values.
    pub values: Vec<f32>,
    /// The width in pixels.
    pub width: usize,
    /// The height in pixels.
    pub height: usize,
}

impl PlanarPicture {
    /// Returns the picture as a PNG file of at most [`PIXELS`] pixels a side; `None` if the number of values does not match.
    fn png(&self) -> Option<Vec<u8>> {
        let (width, height) = (u32::try_from(self.width).ok()?, u32::try_from(self.height).ok()?);
        let plane = self.width.checked_mul(self.height)?;
        if plane == 0 || self.values.len() != plane.checked_mul(3)? {
            return None;
        }
        let mut picture = RgbImage::from_fn(width, height, |x, y| {
            let at = y as usize * self.width + x as usize;
            let level = |channel: usize| level(self.values[channel * plane + at]);
            Rgb([level(0), level(1), level(2)])
        });
        let longest = width.max(height);
        if longest > PIXELS {
            let side = |side: u32| (side * PIXELS / longest).max(1);
            picture = image::imageops::resize(&picture, side(width), side(height), FilterType::Triangle);
        }
        let mut bytes = std::io::Cursor::new(Vec::new());
        picture.write_to(&mut bytes, ImageFormat::Png).ok()?;
        Some(bytes.into_inner())
    }
}

/// Draws the mistakes of a report, each with its image, true class, predicted class and probability. `pictures` has one image for each
/// mistake.
///
/// # Errors
/// [`RunError::Malformed`] with `path` if an image does not have the values of its size.
pub fn mistakes_svg(
    report: &ClassReport,
    pictures: &[PlanarPicture],
    path: &Path,
) -> Result<String, RunError> {
    let shown = report.mistakes.len().min(pictures.len());
    let (cell, row, top) = (SIDE + 12.0, SIDE + 48.0, 36.0);
    let width = cell * COLUMNS as f64 + 12.0;
    let height = top + row * shown.div_ceil(COLUMNS) as f64 + 8.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"12\" y=\"22\" font-size=\"14\">The {shown} wrong predictions of the highest loss after step {}</text>\n",
        report.step
    );
    for (at, (mistake, picture)) in report.mistakes.iter().zip(pictures).enumerate() {
        let problem = || RunError::Malformed {
            path: path.to_owned(),
            problem: format!("the image of {} has {} values", mistake.sample, picture.values.len()),
        };
        let png = STANDARD.encode(picture.png().ok_or_else(problem)?);
        let place = (12.0 + cell * (at % COLUMNS) as f64, top + row * (at / COLUMNS) as f64);
        svg.push_str(&one(mistake, &png, place));
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// An image with its caption.
fn one(mistake: &Mistake, png: &str, (x, y): (f64, f64)) -> String {
    let mut svg = String::new();
    let percent = |part: f64| format!("{:.0} %", 100.0 * part);
    let title = format!("{}: loss {:.3}", mistake.sample, mistake.loss);
    let truth = format!("{} {}", short(&mistake.truth), percent(mistake.truth_probability));
    let predicted = format!("{} {}", short(&mistake.predicted), percent(mistake.probability));
    let (first, second) = (y + SIDE + 14.0, y + SIDE + 28.0);
    let _ = writeln!(
        svg,
        "<g><title>{}</title><image x=\"{x:.1}\" y=\"{y:.1}\" width=\"{SIDE}\" height=\"{SIDE}\" style=\"image-rendering:pixelated\" \
         href=\"data:image/png;base64,{png}\"/><text x=\"{x:.1}\" y=\"{first:.1}\" fill=\"#1f6feb\">true {}</text>\
         <text x=\"{x:.1}\" y=\"{second:.1}\" fill=\"#d1242f\">predicted {}</text></g>",
        escape(&title),
        escape(&truth),
        escape(&predicted)
    );
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_have_images_and_captions() {
        let mistake = |sample: &str| Mistake {
            sample: sample.into(),
            truth: "cat".into(),
            predicted: "d&g".into(),
            probability: 0.876,
            truth_probability: 0.05,
            loss: 2.9957,
        };
        let report =
            ClassReport { mistakes: vec![mistake("a.png"), mistake("b.png")], ..ClassReport::default() };
        let white = PlanarPicture { values: vec![1.0; 3 * 400 * 200], width: 400, height: 200 };
        let pictures = [PlanarPicture { values: vec![0.0; 12], width: 2, height: 2 }, white];
        let svg = mistakes_svg(&report, &pictures, Path::new("x.svg")).expect("sound");
        for text in ["true cat 5 %", "predicted d&amp;g 88 %", "a.png: loss 2.996", "The 2 wrong predictions"]
        {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        let png = svg.split("base64,").nth(2).and_then(|rest| rest.split('"').next()).expect("two images");
        let picture = image::load_from_memory(&STANDARD.decode(png).expect("base64")).expect("a picture");
        assert_eq!((picture.width(), picture.height()), (160, 80));
        let broken = [PlanarPicture { values: vec![0.0; 11], width: 2, height: 2 }];
        let error = mistakes_svg(&report, &broken, Path::new("x.svg")).expect_err("11 values").to_string();
        assert!(error.contains("x.svg") && error.contains("a.png has 11 values"), "{error}");
    }
}

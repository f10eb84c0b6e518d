//! Input images: read from files, cropped and resized.

use std::path::Path;

use image::RgbImage;
use image::imageops::{FilterType, resize};
use phalanx_data::Links;

use super::RunError;

fn read(path: &Path, size: usize, filter: FilterType) -> Result<RgbImage, RunError> {
    let malformed = |problem: String| RunError::Malformed { path: path.to_owned(), problem };
    let bytes = Links::Follow.read(path).map_err(RunError::io("read", path))?;
    let picture = phalanx_data::decode_image(&bytes).map_err(malformed)?;
    let side = u32::try_from(size).map_err(|_| malformed(format!("cannot be resized to {size} pixels")))?;
    if picture.width() == 0 || picture.height() == 0 {
        return Err(malformed("it has no pixels".to_owned()));
    }
    // The central square.
    let edge = picture.width().min(picture.height());
    let (left, top) = ((picture.width() - edge) / 2, (picture.height() - edge) / 2);
    let square = image::imageops::crop_imm(&picture, left, top, edge, edge).to_image();
    Ok(if edge == side { square } else { resize(&square, side, side, filter) })
}

/// Returns the level, 0 to 255, of a value from -1 (black) to 1 (full intensity). NaN is black.
pub(crate) fn level(value: f32) -> u8 {
    // The cast maps NaN to 0.
    ((value * 0.5 + 0.5) * 255.0).round().clamp(0.0, 255.0) as u8
}

/// Reads the central square of an image, resized: `[3, size, size]`, planar in [-1, 1].
///
/// # Errors
/// [`RunError::Io`] and [`RunError::Malformed`] if the file cannot be read or is no picture.
pub fn read_picture(path: &Path, size: usize) -> Result<Vec<f32>, RunError> {
    let picture = read(path, size, FilterType::Triangle)?;
    let plane = |channel: usize| picture.pixels().map(move |pixel| f32::from(pixel.0[channel]) / 127.5 - 1.0);
    Ok((0..3).flat_map(plane).collect())
}

/// Reads the central square of an image as a mask, resized: 1 for bright and 0 for dark pixels, `[size, size]`.
///
/// # Errors
/// [`RunError::Io`] and [`RunError::Malformed`] if the file cannot be read or is no picture.
pub fn read_mask(path: &Path, size: usize) -> Result<Vec<f32>, RunError> {
    let picture = read(path, size, FilterType::Nearest)?;
    let bright =
        |pixel: &image::Rgb<u8>| pixel.0.iter().map(|level| u32::from(*level)).sum::<u32>() > 3 * 127;
    Ok(picture.pixels().map(|pixel| f32::from(u8::from(bright(pixel)))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_a_picture_is_read_and_what_is_none_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("picture.png");
        let colour = |x: u32, _| image::Rgb(if x < 2 { [255, 0, 0] } else { [0, 255, 255] });
        RgbImage::from_fn(6, 4, colour).save(&path).expect("writes");
        let pixels = read_picture(&path, 2).expect("a picture");
        assert_eq!(pixels.len(), 12);
        assert!(pixels[0] > pixels[1] && pixels[4] < pixels[5], "{pixels:?}");
        assert_eq!(read_mask(&path, 4).expect("a picture")[..4], [0.0, 1.0, 1.0, 1.0]);
        assert_eq!(read_picture(&path, 4).expect("a picture")[1], -1.0);
        std::fs::write(&path, b"no picture").expect("writes");
        assert!(read_picture(&path, 4).expect_err("none").to_string().contains("picture.png"));
        assert!(
            read_mask(&folder.path().join("gone.png"), 4).expect_err("none").to_string().contains("gone.png")
        );
    }
}

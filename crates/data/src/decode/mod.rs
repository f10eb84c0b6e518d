//! Compressed images become 8-bit RGB, whatever they were.
//!
//! | what a file holds | what becomes of it |
//! |---|---|
//! | grey scale | the grey three times |
//! | CMYK or YCCK as Adobe's programs write it, inverted | RGB; without Adobe's marker it is refused, since nobody knows whether it is inverted |
//! | a palette | its colours |
//! | alpha | laid over white, as a browser shows it |
//! | 16 bits per channel | the upper 8, rounded |
//! | an orientation (EXIF) | turned and mirrored so that it is upright |
//! | less than it should | an error |

mod jpeg;

use crate::error::{Checked, DataError, Result};
use image::{DynamicImage, GenericImageView, ImageDecoder, ImageFormat, ImageReader, RgbImage};
use std::io::Cursor;
use std::path::Path;

/// The largest picture that is decoded, in bytes of pixels, as the file has them or as RGB, whichever are more: about 9,400 pixels
/// wide and high, at which Pillow begins to warn of files that claim much and hold little. A decoder, or what turns its pixels into
/// RGB, may take twice as much for a moment.
const MAX_BYTES: u64 = 256 << 20;

/// A rectangle in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Region {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// Decodes PNG, JPEG, BMP or WebP, by what the bytes begin with, as 8-bit RGB, upright, with what is transparent laid over white.
///
/// # Errors
/// In words, what is wrong with them; also if it has more than 256 MiB of pixels.
pub fn decode(bytes: &[u8]) -> Checked<RgbImage> {
    decode_region(bytes, |_, _| Ok(None))
}

/// Decodes and keeps only a region, which is chosen by width and height of the image as it is stored: before it is turned
/// upright.
pub(crate) fn decode_region(
    bytes: &[u8],
    region: impl FnOnce(u32, u32) -> Checked<Option<Region>>,
) -> Checked<RgbImage> {
    let format = image::guess_format(bytes).map_err(|_| not_an_image(bytes))?;
    if format == ImageFormat::Jpeg {
        jpeg::check(bytes)?;
    }
    let refused = |error: image::ImageError| error.to_string();
    let mut decoder = ImageReader::with_format(Cursor::new(bytes), format).into_decoder().map_err(refused)?;
    let (width, height) = decoder.dimensions();
    // What is laid over white has four bytes for each pixel before, and WebP's decoder takes so many with alpha and without.
    let channels = if decoder.color_type().has_alpha() || format == ImageFormat::WebP { 4 } else { 3 };
    if decoder.total_bytes().max(channels * u64::from(width) * u64::from(height)) > MAX_BYTES {
        return Err(format!(
            "{width}x{height} pixels are more than the {} MiB that are decoded",
            MAX_BYTES >> 20
        ));
    }
    let orientation = decoder.orientation().map_err(refused)?;
    let region = region(width, height)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(refused)?;
    if let Some(Region { x, y, width, height }) = region {
        image = image.crop_imm(x, y, width, height);
    }
    image.apply_orientation(orientation);
    Ok(opaque(image))
}

/// Decodes a file of its own.
///
/// # Errors
/// If it cannot be read or decoded; the error names it.
pub(crate) fn decode_file(file: &Path) -> Result<RgbImage> {
    let bytes = read(file)?;
    decode(&bytes).map_err(|reason| DataError::ImageFile { file: file.to_path_buf(), reason })
}

/// A file's bytes.
///
/// # Errors
/// If it cannot be read, which names it.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).map_err(|error| DataError::io(file, error))
}

/// The image as RGB; what is transparent is laid over white.
fn opaque(image: DynamicImage) -> RgbImage {
    if !image.color().has_alpha() {
        return image.into_rgb8();
    }
    let (width, height) = image.dimensions();
    let with_alpha = image.into_rgba8();
    let mut opaque = RgbImage::new(width, height);
    for (to, from) in opaque.pixels_mut().zip(with_alpha.pixels()) {
        let [red, green, blue, alpha] = from.0.map(u32::from);
        // Rounded to the nearest; exact for opaque and for transparent pixels.
        to.0 = [red, green, blue].map(|value| ((value * alpha + 255 * (255 - alpha) + 127) / 255) as u8);
    }
    opaque
}

fn not_an_image(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "the file is empty".to_owned();
    }
    let begins: Vec<u8> = bytes.iter().copied().take(16).collect();
    format!("neither PNG, JPEG, BMP nor WebP: it begins with \"{}\"", begins.escape_ascii())
}

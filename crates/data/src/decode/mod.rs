//! Decoding of compressed images to 8-bit RGB.
//!
//! | the file holds | the result |
//! |---|---|
//! | grey scale | the grey value in all three channels |
//! | CMYK or YCCK as Adobe's programs write it, inverted | RGB; an error without Adobe's marker, since the inversion is then unknown |
//! | a palette | its colours |
//! | alpha | composited over white, as in a browser |
//! | 16 bits per channel | the upper 8 bits, rounded |
//! | an EXIF orientation | rotated and mirrored to be upright |
//! | fewer bytes than it should | an error |

mod jpeg;

use crate::error::{DataError, ParseResult, Result};
use image::{DynamicImage, GenericImageView, ImageDecoder, ImageFormat, ImageReader, RgbImage};
use std::io::Cursor;
use std::path::Path;

/// The largest decoded image, in bytes of pixels: as stored or as RGB, the larger of the two. It is about 9,400 pixels
/// square, the size at which Pillow warns of decompression bombs. Decoding or the conversion to RGB may briefly take
/// twice as much.
const MAX_BYTES: u64 = 256 << 20;

/// A rectangle in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rectangle {
    pub(crate) x: u32,
    pub(crate) y: u32,
    pub(crate) width: u32,
    pub(crate) height: u32,
}

/// Decodes PNG, JPEG, BMP or WebP to 8-bit RGB, upright, with transparency composited over white. The first bytes
/// determine the format.
///
/// # Errors
/// A description of the problem; also if the image has more than 256 MiB of pixels.
pub fn decode(bytes: &[u8]) -> ParseResult<RgbImage> {
    decode_cropped(bytes, |_, _| Ok(None))
}

/// Decodes an image and crops it. `crop` chooses the rectangle by the stored width and height, before the image is
/// turned upright.
pub(crate) fn decode_cropped(
    bytes: &[u8],
    crop: impl FnOnce(u32, u32) -> ParseResult<Option<Rectangle>>,
) -> ParseResult<RgbImage> {
    let format = image::guess_format(bytes).map_err(|_| not_an_image(bytes))?;
    if format == ImageFormat::Jpeg {
        jpeg::check(bytes)?;
    }
    let refused = |error: image::ImageError| error.to_string();
    let mut decoder = ImageReader::with_format(Cursor::new(bytes), format).into_decoder().map_err(refused)?;
    let (width, height) = decoder.dimensions();
    // Images with alpha take four bytes a pixel until they are composited; WebP's decoder always takes four.
    let channels = if decoder.color_type().has_alpha() || format == ImageFormat::WebP { 4 } else { 3 };
    if decoder.total_bytes().max(channels * u64::from(width) * u64::from(height)) > MAX_BYTES {
        return Err(format!("{width}x{height} pixels are more than the limit of {} MiB", MAX_BYTES >> 20));
    }
    let orientation = decoder.orientation().map_err(refused)?;
    let crop = crop(width, height)?;
    let mut image = DynamicImage::from_decoder(decoder).map_err(refused)?;
    if let Some(Rectangle { x, y, width, height }) = crop {
        image = image.crop_imm(x, y, width, height);
    }
    image.apply_orientation(orientation);
    Ok(opaque(image))
}

/// Decodes an image file.
///
/// # Errors
/// If the file cannot be read or decoded; the error names it.
pub(crate) fn decode_file(file: &Path) -> Result<RgbImage> {
    let bytes = read(file)?;
    decode(&bytes).map_err(|reason| DataError::ImageFile { file: file.to_path_buf(), reason })
}

/// Reads the bytes of a file.
///
/// # Errors
/// If the file cannot be read; the error names it.
pub(crate) fn read(file: &Path) -> Result<Vec<u8>> {
    crate::Links::Follow.read(file).map_err(|error| DataError::io(file, error))
}

/// Converts an image to RGB, with transparency composited over white.
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

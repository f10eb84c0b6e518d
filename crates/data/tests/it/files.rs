//! Test files like those of real datasets: JPEGs of every colour space, PNGs, tables.

use image::{DynamicImage, ImageFormat, Rgb, RgbImage};
use std::fs;
use std::path::Path;

/// The colours of the four quarters of a test image, row by row from the top left. No 8x8 block mixes them.
pub(crate) const QUARTERS: [[u8; 3]; 4] = [[208, 32, 40], [24, 160, 56], [40, 64, 200], [240, 240, 232]];

/// Makes an image of four coloured quarters.
pub(crate) fn quarters(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        Rgb(QUARTERS[usize::from(x >= width / 2) + 2 * usize::from(y >= height / 2)])
    })
}

/// Encodes an image in a format of the `image` crate.
pub(crate) fn encoded(image: &DynamicImage, format: ImageFormat) -> Vec<u8> {
    let mut bytes = std::io::Cursor::new(Vec::new());
    image.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// Makes a JPEG like a camera's.
pub(crate) fn photo(width: u32, height: u32) -> Vec<u8> {
    encoded(&DynamicImage::ImageRgb8(quarters(width, height)), ImageFormat::Jpeg)
}

/// Writes a file and creates its folders.
pub(crate) fn write(path: &Path, contents: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, contents).unwrap();
}

/// Makes Adobe's marker: 0 for CMYK or RGB, 2 for YCCK.
pub(crate) fn adobe(transform: u8) -> Vec<u8> {
    let mut segment = vec![0xff, 0xee, 0, 14];
    segment.extend(b"Adobe");
    segment.extend([0, 100, 0, 0, 0, 0, transform]);
    segment
}

/// Makes an EXIF segment with an orientation, 1 to 8.
pub(crate) fn exif(orientation: u8) -> Vec<u8> {
    let mut tiff = b"Exif\0\0MM\0*\0\0\0\x08\0\x01".to_vec();
    // Tag 0x0112, of type SHORT, one value.
    tiff.extend([0x01, 0x12, 0, 3, 0, 0, 0, 1, 0, orientation, 0, 0, 0, 0, 0, 0]);
    let length = (tiff.len() + 2) as u16;
    [&[0xff, 0xe1], length.to_be_bytes().as_slice(), &tiff].concat()
}

/// Inserts a segment after the first two bytes of a JPEG.
pub(crate) fn with_segment(jpeg: &[u8], segment: &[u8]) -> Vec<u8> {
    [&jpeg[..2], segment, &jpeg[2..]].concat()
}

/// Makes a baseline JPEG of `side` x `side` blocks of 8x8 pixels, each of one colour, with any number of components.
/// `value` returns the components of a block by its column and row.
pub(crate) fn blocks(side: u16, segments: &[u8], value: impl Fn(u16, u16) -> Vec<u8>) -> Vec<u8> {
    let components = value(0, 0).len() as u8;
    let size = (8 * side).to_be_bytes();
    let mut jpeg = vec![0xff, 0xd8];
    jpeg.extend(segments);
    // One quantisation table, all 8: the first coefficient of a block is its value less 128.
    jpeg.extend([0xff, 0xdb, 0, 67, 0]);
    jpeg.extend([8; 64]);
    jpeg.extend([0xff, 0xc0, 0, 8 + 3 * components, 8, size[0], size[1], size[0], size[1], components]);
    (1..=components).for_each(|number| jpeg.extend([number, 0x11, 0]));
    // The standard's first Huffman table for first coefficients, and one with only "end of block".
    jpeg.extend([0xff, 0xc4, 0, 31, 0, 0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0]);
    jpeg.extend(0..12);
    jpeg.extend([0xff, 0xc4, 0, 20, 0x10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    jpeg.extend([0xff, 0xda, 0, 6 + 2 * components, components]);
    (1..=components).for_each(|number| jpeg.extend([number, 0]));
    jpeg.extend([0, 63, 0]);

    let mut bits: Vec<bool> = Vec::new();
    let mut push = |code: u32, length: u32| bits.extend((0..length).rev().map(|bit| code >> bit & 1 == 1));
    let mut before = vec![0_i32; usize::from(components)];
    for row in 0..side {
        for column in 0..side {
            for (value, before) in value(column, row).into_iter().zip(&mut before) {
                let now = i32::from(value) - 128;
                let difference = now - std::mem::replace(before, now);
                let size = 32 - difference.unsigned_abs().leading_zeros();
                match size {
                    0 => push(0b00, 2),
                    1..=5 => push(0b010 + size - 1, 3),
                    // 1110, 11110, ...
                    _ => push((1 << (size - 2)) - 2, size - 2),
                }
                let low = if difference < 0 { difference - 1 } else { difference };
                push(low as u32 & ((1 << size) - 1), size);
                push(0, 1);
            }
        }
    }
    while !bits.len().is_multiple_of(8) {
        bits.push(true);
    }
    for byte in bits.chunks(8) {
        let byte = byte.iter().fold(0_u8, |byte, bit| byte << 1 | u8::from(*bit));
        jpeg.push(byte);
        if byte == 0xff {
            jpeg.push(0);
        }
    }
    jpeg.extend([0xff, 0xd9]);
    jpeg
}

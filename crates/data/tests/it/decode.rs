//! Decoding of all kinds of images, valid and damaged.

use crate::files::{QUARTERS, adobe, blocks, encoded, exif, photo, quarters, with_segment, write};
use image::{DynamicImage, GrayImage, ImageBuffer, ImageFormat, Luma, LumaA, Rgb, RgbImage, Rgba};
use phalanx_data::{DataError, Dataset, Exclusions, ImageFolder, Split};
use std::path::Path;
use tempfile::TempDir;

/// Decodes these bytes as the only image of a class folder.
fn open(bytes: &[u8]) -> Result<RgbImage, DataError> {
    let place = TempDir::new().unwrap();
    // The bytes determine the format, not the name.
    write(&place.path().join("train/a bird/one file.JPG"), bytes);
    ImageFolder::open(place.path(), Split::Train)?.get(0, 0).map(|sample| sample.image)
}

fn reason(bytes: &[u8]) -> String {
    let error = open(bytes).unwrap_err();
    assert!(
        matches!(&error, DataError::ImageFile { file, .. } if file.ends_with("train/a bird/one file.JPG")),
        "{error}"
    );
    error.to_string()
}

/// Checks the colours in the middle of the quarters, up to coding errors of `off`.
fn assert_quarters(image: &RgbImage, expected: [[u8; 3]; 4], off: u8) {
    let (width, height) = image.dimensions();
    for (number, expected) in expected.into_iter().enumerate() {
        let (x, y) =
            (width / 4 + width / 2 * (number as u32 % 2), height / 4 + height / 2 * (number as u32 / 2));
        let found = image.get_pixel(x, y).0;
        let most = found.iter().zip(expected).map(|(a, b)| a.abs_diff(b)).max().unwrap();
        assert!(most <= off, "quarter {number}: {found:?} for {expected:?}");
    }
}

#[test]
fn grey_jpegs_have_three_equal_channels() {
    let grey = GrayImage::from_fn(32, 32, |x, _| Luma([if x < 16 { 40 } else { 220 }]));
    let image = open(&encoded(&DynamicImage::ImageLuma8(grey), ImageFormat::Jpeg)).unwrap();
    assert_quarters(&image, [[40; 3], [220; 3], [40; 3], [220; 3]], 2);
    assert!(image.pixels().all(|pixel| pixel.0[0] == pixel.0[1] && pixel.0[0] == pixel.0[2]));
}

/// Encodes the quarters in other components.
fn quarter_blocks(segments: &[u8], convert: impl Fn([u8; 3]) -> Vec<u8>) -> Vec<u8> {
    blocks(4, segments, |x, y| convert(QUARTERS[usize::from(x >= 2) + 2 * usize::from(y >= 2)]))
}

#[test]
fn cmyk_as_adobe_writes_it_becomes_rgb() {
    // Inverted: 255 is no ink. Without black ink the others are red, green and blue.
    let cmyk = quarter_blocks(&adobe(0), |[red, green, blue]| vec![red, green, blue, 255]);
    assert_quarters(&open(&cmyk).unwrap(), QUARTERS, 2);
    let dark = quarter_blocks(&adobe(0), |[red, green, blue]| vec![red, green, blue, 128]);
    let halves = QUARTERS.map(|colour| colour.map(|value| value / 2));
    assert_quarters(&open(&dark).unwrap(), halves, 2);
    // As YCCK: luma and chroma of the inverse of what CMYK holds.
    let ycck = quarter_blocks(&adobe(2), |colour| {
        let [red, green, blue] = colour.map(|value| f64::from(255 - value));
        let luma = 0.299 * red + 0.587 * green + 0.114 * blue;
        let chroma = [(blue - luma) * 0.564 + 128.0, (red - luma) * 0.713 + 128.0];
        vec![luma.round() as u8, chroma[0].round() as u8, chroma[1].round() as u8, 255]
    });
    assert_quarters(&open(&ycck).unwrap(), QUARTERS, 4);
    let unknown = quarter_blocks(&[], |[red, green, blue]| vec![red, green, blue, 255]);
    assert!(reason(&unknown).contains("CMYK without Adobe's marker"));
}

#[test]
fn alpha_is_composited_over_white_and_palettes_and_sixteen_bits_keep_their_colours() {
    let clear = ImageBuffer::from_fn(8, 8, |x, y| match (x < 4, y < 4) {
        (true, true) => Rgba([200, 100, 0, 255]),
        (false, true) => Rgba([200, 100, 0, 0]),
        (true, false) => Rgba([200, 100, 0, 51]),
        (false, false) => Rgba([0, 0, 0, 255]),
    });
    let image = open(&encoded(&DynamicImage::ImageRgba8(clear), ImageFormat::Png)).unwrap();
    assert_quarters(&image, [[200, 100, 0], [255; 3], [244, 224, 204], [0; 3]], 0);
    let grey = ImageBuffer::from_fn(8, 8, |x, _| LumaA([10, if x < 4 { 255 } else { 0 }]));
    let image = open(&encoded(&DynamicImage::ImageLumaA8(grey), ImageFormat::Png)).unwrap();
    assert_quarters(&image, [[10; 3], [255; 3], [10; 3], [255; 3]], 0);

    let deep: ImageBuffer<Rgb<u16>, Vec<u16>> =
        ImageBuffer::from_fn(8, 8, |x, _| Rgb(if x < 4 { [0xffff, 0x8080, 0x0101] } else { [0, 257, 514] }));
    let image = open(&encoded(&DynamicImage::ImageRgb16(deep), ImageFormat::Png)).unwrap();
    assert_quarters(&image, [[255, 128, 1], [0, 1, 2], [255, 128, 1], [0, 1, 2]], 0);

    assert_quarters(
        &open(&palette_png()).unwrap(),
        [[208, 32, 40], [24, 160, 56], [208, 32, 40], [255; 3]],
        0,
    );
}

/// Makes a PNG of chunks, with their lengths and checksums.
fn png(chunks: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in chunks {
        png.extend((data.len() as u32).to_be_bytes());
        let begin = png.len();
        png.extend(*kind);
        png.extend(*data);
        let mut crc = flate2::Crc::new();
        crc.update(&png[begin..]);
        png.extend(crc.sum().to_be_bytes());
    }
    png
}

/// Makes a PNG of 2x2 pixels with a palette of three, the last of which is transparent.
fn palette_png() -> Vec<u8> {
    let rows = [0, 0, 1, 0, 0, 2];
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut packed, &rows).unwrap();
    png(&[
        (b"IHDR", &[0, 0, 0, 2, 0, 0, 0, 2, 8, 3, 0, 0, 0]),
        (b"PLTE", &[208, 32, 40, 24, 160, 56, 1, 2, 3]),
        (b"tRNS", &[255, 255, 0]),
        (b"IDAT", &packed.finish().unwrap()),
        (b"IEND", &[]),
    ])
}

#[test]
fn pictures_are_turned_upright() {
    let upright = photo(64, 32);
    assert_quarters(&open(&upright).unwrap(), QUARTERS, 8);
    let [a, b, c, d] = QUARTERS;
    for (orientation, expected) in [
        (1, [a, b, c, d]),
        (2, [b, a, d, c]),
        (3, [d, c, b, a]),
        (4, [c, d, a, b]),
        (5, [a, c, b, d]),
        (6, [c, a, d, b]),
        (7, [d, b, c, a]),
        (8, [b, d, a, c]),
    ] {
        let image = open(&with_segment(&upright, &exif(orientation))).unwrap();
        assert_eq!(image.dimensions(), if orientation < 5 { (64, 32) } else { (32, 64) });
        assert_quarters(&image, expected, 8);
    }
}

#[test]
fn truncated_images_are_refused() {
    let whole = photo(64, 64);
    // The end of a thumbnail is not the end of the image.
    let thumbnail = [&[0xff, 0xe2, 0, 6], [0xff, 0xd8, 0xff, 0xd9].as_slice()].concat();
    let with_thumbnail = with_segment(&whole, &thumbnail);
    assert!(open(&with_thumbnail).is_ok());
    // Some cameras append bytes after the end.
    assert!(open(&[whole.as_slice(), &[0; 40]].concat()).is_ok());
    for cut in [whole.len() - 1, whole.len() / 2, whole.len() * 9 / 10, 30, 3] {
        assert!(reason(&whole[..cut]).contains("truncated"), "{cut} of {}", whole.len());
        let cut_later = &with_thumbnail[..with_thumbnail.len() - (whole.len() - cut)];
        assert!(reason(cut_later).contains("truncated"), "{cut} with a thumbnail");
    }
    let png = encoded(&DynamicImage::ImageRgb8(quarters(64, 64)), ImageFormat::Png);
    assert!(open(&png).is_ok());
    for format in [ImageFormat::Png, ImageFormat::Bmp, ImageFormat::WebP] {
        let whole = encoded(&DynamicImage::ImageRgb8(quarters(64, 64)), format);
        assert_eq!(open(&whole).unwrap(), quarters(64, 64));
        reason(&whole[..whole.len() / 2]);
    }
}

#[test]
fn other_files_are_refused_with_advice() {
    let page = reason(b"<!DOCTYPE html><title>404</title>");
    assert!(page.contains("it begins with \"<!DOCTYPE html><\"") && page.contains("exclude it"), "{page}");
    assert!(reason(b"").contains("the file is empty"));
    assert!(reason(b"GIF89a\x01\0\x01\0").contains("neither") || reason(b"GIF89a").contains("Gif"));
    // A header that promises 60,000 x 60,000 pixels.
    let mut huge = photo(16, 16);
    let frame = huge.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    huge[frame + 5..frame + 9].copy_from_slice(&[0xea, 0x60, 0xea, 0x60]);
    assert!(reason(&huge).contains("60000x60000"));
}

#[test]
fn large_images_are_refused_by_their_decoded_size() {
    // Side and colour type: grey grows threefold as RGB, and alpha takes four bytes a pixel.
    for (side, colours, refused) in [
        (9_400_u32, 2, false),
        (9_400, 0, false),
        (12_000, 0, true),
        (8_100, 4, false),
        (9_000, 4, true),
        (9_000, 6, true),
    ] {
        let size = side.to_be_bytes();
        let header = [&size[..], &size, &[8, colours, 0, 0, 0]].concat();
        let picture = png(&[(b"IHDR", &header), (b"IDAT", b""), (b"IEND", b"")]);
        let reason = reason(&picture);
        assert_eq!(reason.contains(&format!("{side}x{side} pixels are more than")), refused, "{reason}");
    }
}

#[test]
fn excluded_and_hidden_files_are_left_out() {
    let place = TempDir::new().unwrap();
    let root = place.path();
    for (name, bytes) in [
        ("a/1.jpg", photo(8, 8)),
        ("a/2.jpg", b"broken".to_vec()),
        ("a/._1.jpg", b"mac".to_vec()),
        ("b/2.jpg", photo(8, 8)),
    ] {
        write(&root.join("train").join(name), bytes);
    }
    write(&root.join("bad.txt"), "train/a/2.jpg\r\n");
    let excluded = Exclusions::read(root.join("bad.txt")).unwrap();
    let all = ImageFolder::open(root, Split::Train).unwrap();
    let sound = ImageFolder::open_seeded(root, Split::Train, 0, &excluded).unwrap();
    assert_eq!((all.len(), sound.len()), (3, 2));
    assert_eq!(sound.file(1).unwrap(), Path::new(root).join("train/b/2.jpg"));
    assert!((0..2).all(|index| sound.get(index, 0).is_ok()));
}

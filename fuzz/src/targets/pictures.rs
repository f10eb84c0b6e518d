//! Pictures, with damage behind the checksums of their formats.

use std::io::Cursor;

use image::{DynamicImage, ImageFormat, RgbImage};
use phalanx_data::{Split, open_cifar10};
use phalanx_fuzz_harness::files::{self, folder};
use phalanx_fuzz_harness::{Random, damage};

use super::Target;

/// Returns a small picture in a format.
pub(super) fn picture(format: ImageFormat) -> Vec<u8> {
    let image = RgbImage::from_fn(9, 7, |x, y| image::Rgb([x as u8 * 20, y as u8 * 30, 90]));
    let mut bytes = Cursor::new(Vec::new());
    let written = DynamicImage::ImageRgb8(image).write_to(&mut bytes, format);
    assert!(written.is_ok(), "a picture is written");
    bytes.into_inner()
}

fn pictures() -> Vec<Vec<u8>> {
    let all = [
        ("a.png", ImageFormat::Png),
        ("a.jpg", ImageFormat::Jpeg),
        ("a.bmp", ImageFormat::Bmp),
        ("a.webp", ImageFormat::WebP),
    ];
    all.map(|(name, format)| {
        files::join([(format!("train/one/{name}").as_str(), picture(format).as_slice())])
    })
    .to_vec()
}

/// Opens the folder of an input as CIFAR-10, in any of its formats, and reads some pictures.
pub(super) fn open_images(bytes: &[u8]) {
    let place = folder();
    files::write(bytes, place.path());
    let Ok(images) = open_cifar10(place.path(), Split::Train) else { return };
    for sample in 0..images.len().min(3) {
        let _ = images.get(sample, 0);
    }
}

pub(super) const PICTURES: Target = Target {
    name: "pictures",
    about: "pictures in folders of classes",
    seeds: pictures,
    words: &["IHDR", "IDAT", "Exif\0\0MM\0*", "RIFF", "\u{0}\u{0}"],
    change: damaged,
    read: open_images,
    cases: 200,
    // Pictures of up to 256 MiB of pixels are decoded. A decoder may take twice as much.
    memory: 560 << 20,
};

/// Changes a chunk of a PNG, and updates its length and checksum. For other pictures, and sometimes for a PNG, changes
/// any bytes.
fn damaged(input: &mut Vec<u8>, random: &mut Random) -> bool {
    let mut all: Vec<(String, Vec<u8>)> =
        files::split(input).into_iter().map(|(name, contents)| (name, contents.to_vec())).collect();
    let png = all.iter_mut().find(|(name, contents)| name.ends_with(".png") && contents.len() > 40);
    let Some((_, png)) = png.filter(|_| !random.once_in(4)) else { return files::change(input, random) };
    let mut chunks = vec![8];
    while let Some(length) = chunks.last().and_then(|at| png.get(*at..at + 4)) {
        let length = u32::from_be_bytes(std::array::from_fn(|i| length[i])) as usize;
        chunks.push(chunks[chunks.len() - 1] + 12 + length);
    }
    let at = chunks[random.below(chunks.len() - 1)];
    let end = chunks.iter().find(|next| **next > at && **next <= png.len());
    let Some(body) = end.and_then(|end| png.get(at + 4..end - 4)) else {
        return files::change(input, random);
    };
    let (end, mut body) = (at + 8 + body.len(), body.to_vec());
    damage::bytes(&mut body, b"\0\0\x40\0", random);
    let mut sum = flate2::Crc::new();
    sum.update(&body);
    let length = (body.len().saturating_sub(4) as u32).to_be_bytes();
    let chunk = [&length[..], &body, &sum.sum().to_be_bytes()].concat();
    png.splice(at..end, chunk);
    *input = files::join(all.iter().map(|(name, contents)| (name.as_str(), contents.as_slice())));
    true
}

//! Comparison with pictures that torchvision has made; `tests/it/fixtures/torchvision_augment.py` says how.

use super::rand_augment::{AugmentOp, Interpolation, RandAugment};
use super::{colours, erasing::RandomErasing};
use image::RgbImage;

const WIDTH: u32 = 19;
const HEIGHT: u32 = 14;
const BINS: [usize; 4] = [3, 9, 17, 30];

/// Returns the tiles of the fixture; the first is the input.
fn tiles() -> Vec<RgbImage> {
    let bytes = include_bytes!("../../tests/it/fixtures/torchvision_augment.png");
    let all = image::load_from_memory(bytes).unwrap().to_rgb8();
    assert_eq!((all.width(), all.height() % HEIGHT), (WIDTH, 0));
    let tile = |at| image::imageops::crop_imm(&all, 0, at * HEIGHT, WIDTH, HEIGHT).to_image();
    (0..all.height() / HEIGHT).map(tile).collect()
}

/// Compares byte by byte: the arithmetic is Pillow's.
fn compare(what: &str, found: &RgbImage, expected: &RgbImage) {
    let off = found.iter().zip(expected.iter()).filter(|(found, expected)| found != expected);
    let off: Vec<(u8, u8)> = off.map(|(found, expected)| (*found, *expected)).collect();
    assert!(off.is_empty(), "{what}: {} bytes differ: {:?}", off.len(), &off[..off.len().min(8)]);
}

/// A change of an image by a factor.
type Adjust = fn(&mut RgbImage, f64);

#[test]
fn operations_have_the_bytes_of_torchvision() {
    let tiles = tiles();
    let (input, mut expected) = (&tiles[0], tiles[1..].iter());
    for interpolation in [Interpolation::Nearest, Interpolation::Bilinear] {
        for op in AugmentOp::ALL {
            let name = format!("{op:?}");
            let is_geometric = ["Shear", "Trans", "Rotat"].contains(&&name[..5.min(name.len())]);
            if interpolation == Interpolation::Bilinear && !is_geometric {
                continue;
            }
            let enhances = ["Brightness", "Color", "Contrast", "Sharpness"].contains(&name.as_str());
            let signs: &[bool] = if is_geometric || enhances { &[false, true] } else { &[false] };
            for magnitude in BINS {
                let augment = RandAugment { ops: 1, magnitude, interpolation, fill: [10, 200, 77] };
                for negative in signs {
                    let found = augment.apply_op(op, *negative, input.clone());
                    let what = format!("{op:?} {magnitude} {negative} {interpolation}");
                    compare(&what, &found, expected.next().expect("a tile"));
                }
            }
        }
    }
    let adjusts: [(&str, Adjust, [f64; 4]); 4] = [
        ("brightness", colours::brightness, [0.0, 0.35, 1.0, 1.8]),
        ("contrast", colours::contrast, [0.0, 0.35, 1.0, 1.8]),
        ("saturation", colours::saturation, [0.0, 0.35, 1.0, 1.8]),
        ("hue", colours::hue, [-0.5, -0.07, 0.1, 0.37]),
    ];
    for (name, adjust, factors) in adjusts {
        for factor in factors {
            let mut found = input.clone();
            adjust(&mut found, factor);
            compare(&format!("{name} {factor}"), &found, expected.next().expect("a tile"));
        }
    }
    assert_eq!(expected.count(), 0);
}

#[test]
fn defaults_are_those_of_torchvision() {
    let erasing = RandomErasing::new(0.25);
    assert_eq!((erasing.area, erasing.aspect), ((0.02, 0.33), (0.3, 3.3)));
    let augment = RandAugment::new(2, 9);
    assert_eq!((augment.fill, augment.interpolation), ([0; 3], Interpolation::Nearest));
}

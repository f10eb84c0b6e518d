//! Lists of datasets: classes and their names, single pictures.

use image::ImageFormat;
use phalanx_data::{ArchivesConfig, ArchivesDataset, Dataset, Exclusions, Split, open_imagenet};
use phalanx_fuzz_harness::files::{self, folder};
use phalanx_run::{read_mask, read_picture};

use super::Target;
use super::pictures::picture;
use super::shards::tar;

/// Returns ImageNet in torchvision's and in Kaggle's layout, shards with class names, and a picture.
fn lists() -> Vec<Vec<u8>> {
    let (jpeg, png) = (picture(ImageFormat::Jpeg), picture(ImageFormat::Png));
    let shard = tar(&[("a.png", &png), ("a.cls", b"1"), ("b.png", &png), ("b.cls", b"0")]);
    let table = b"ImageId,PredictionString\nILSVRC2012_val_00000001,n01440764 1 2 3 4\nILSVRC2012_val_00000002,n01443537 0 0 9 7 n01443537 1 1 2 2 \n";
    vec![
        files::join([
            ("imagenet/train/n01440764/a.JPEG", jpeg.as_slice()),
            ("imagenet/train/n01443537/b.JPEG", &jpeg),
            ("imagenet/val/n01440764/c.JPEG", &jpeg),
            (
                "imagenet/words.txt",
                b"n01440764\ttench, Tinca tinca\nn01443537\tgoldfish\nn00000001\tentity\n",
            ),
            ("shards/s.tar", &shard),
            ("names", b"gull\nwren\n"),
            ("picture.png", &png),
        ]),
        files::join([
            ("imagenet/ILSVRC/Data/CLS-LOC/train/n01440764/a.JPEG", jpeg.as_slice()),
            ("imagenet/ILSVRC/Data/CLS-LOC/train/n01443537/b.JPEG", &jpeg),
            ("imagenet/ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000001.JPEG", &jpeg),
            ("imagenet/ILSVRC/Data/CLS-LOC/val/ILSVRC2012_val_00000002.JPEG", &jpeg),
            ("imagenet/LOC_synset_mapping.txt", b"n01440764 tench, Tinca tinca\nn01443537 goldfish\n"),
            ("imagenet/LOC_val_solution.csv", table),
            ("exclusions", b"a.JPEG\n"),
            ("shards/s.tar", &shard),
            ("shards/classes.txt", b"gull\nwren\n"),
        ]),
    ]
}

/// Reads all of it.
fn read_lists(bytes: &[u8]) {
    let place = folder();
    files::write(bytes, place.path());
    let excluded = Exclusions::read(place.path().join("exclusions")).unwrap_or_default();
    for split in [Split::Train, Split::Test] {
        let Ok(images) = open_imagenet(place.path().join("imagenet"), split, 1, &excluded) else { continue };
        for sample in 0..images.len().min(2) {
            let _ = (images.get(sample, 0), images.file(sample));
        }
    }
    let names = Some(place.path().join("names")).filter(|names| names.exists());
    let shards = vec![place.path().join("shards/s.tar")];
    let config =
        ArchivesConfig { name: "s".into(), archives: shards, index: None, classes: names, caption_seed: 0 };
    if let Ok(shards) = ArchivesDataset::open(&config) {
        for sample in 0..shards.len().min(2) {
            let _ = shards.get(sample, 0);
        }
    }
    let path = place.path().join("picture.png");
    for size in [1, 16] {
        if let Ok(pixels) = read_picture(&path, size) {
            assert!(pixels.len() == 3 * size * size && pixels.iter().all(|level| level.abs() <= 1.0));
        }
        if let Ok(mask) = read_mask(&path, size) {
            assert!(mask.len() == size * size && mask.iter().all(|level| [0.0, 1.0].contains(level)));
        }
    }
}

pub(super) const LISTS: Target = Target {
    name: "lists",
    about: "classes and their names, single pictures",
    seeds: lists,
    words: &["n01440764", "\t", ",", "\n", "ImageId", "\u{feff}", "\0"],
    change: files::change,
    read: read_lists,
    cases: 120,
    // As for pictures in folders of classes.
    memory: 560 << 20,
};

//! Classifiers of class folders: measures of each class, confusion matrices and mistakes, the same on any number of ranks.

use std::fs;
use std::path::Path;

use image::{ImageFormat, Rgb, RgbImage};
use phalanx_run::ClassReport;
use serde_json::Value;

use crate::harness::Place;
use crate::harness::results::{column, json};

/// The classes of the folders.
const CLASSES: [&str; 7] = ["black", "blue", "green", "red", "teal", "white", "yellow"];

/// Makes an image of 8x8 pixels in the colour of a class, with noise. Some images look like other classes.
fn image(class: usize, number: usize) -> Vec<u8> {
    let full = [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 1, 1], [1, 1, 1], [1, 1, 0]][class];
    let mut noise = (class * 1000 + number) as u32;
    let image = RgbImage::from_fn(8, 8, |_, _| {
        Rgb(full.map(|level: u8| {
            noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let shift = (number % 5) as i32 * 24 + (noise >> 24) as i32 / 4 - 32;
            (70 + 100 * i32::from(level) + if level == 1 { -shift } else { shift }).clamp(0, 255) as u8
        }))
    });
    let mut bytes = std::io::Cursor::new(Vec::new());
    image.write_to(&mut bytes, ImageFormat::Png).expect("encodes");
    bytes.into_inner()
}

/// Writes `train` images of each class, and fewer test images: none of the last class, and one more of each class than of the class before.
fn folders(place: &Place, train: usize) -> usize {
    let mut tests = 0;
    for (class, name) in CLASSES.iter().enumerate() {
        for number in 0..train {
            place.write(&format!("colours/train/{name}/{number:02}.png"), image(class, number));
        }
        let count = if class == 6 { 0 } else { 2 + class };
        tests += count;
        for number in 0..count {
            place.write(&format!("colours/test/{name}/{number:02}.png"), image(class, 100 + number));
        }
    }
    tests
}

/// The options of a small classifier of the folders.
pub(crate) const SMALL: &str = "train cifar10-resnet18 --data folder=colours --set model.kind=mlp --set model.mlp_width=16 \
    --set model.mlp_depth=1 --set model.image_size=8 --set data.crop_padding=0 --set train.global_batch=12 \
    --set train.logical_ranks=3 --set train.threads=1 --set eval.batch=4 --set log.every=1";

fn report(run: &Path) -> ClassReport {
    ClassReport::read(&run.join("evaluation/classes.json")).expect("a report")
}

#[test]
fn a_classifier_is_evaluated_class_by_class_on_any_number_of_ranks() {
    let place = Place::new();
    let tests = folders(&place, 12);
    for ranks in [1, 2, 3] {
        place.succeed(&format!("{SMALL} --ranks {ranks} --set train.epochs=2 --out run-{ranks}"));
    }
    let alone = report(&place.path("run-1"));
    assert_eq!(alone.confusion.total(), tests as f64);
    for (class, name) in CLASSES.iter().enumerate() {
        assert_eq!(alone.name(class), *name);
        let samples = if class == 6 { 0.0 } else { (2 + class) as f64 };
        assert_eq!((alone.confusion.samples(class), alone.classes[class].samples), (samples, samples));
    }
    let correct: f64 = (0..7).map(|class| alone.confusion.count(class, class)).sum();
    assert_eq!(alone.accuracy, correct / tests as f64);
    assert!(alone.accuracy > 0.2 && alone.accuracy < 1.0, "{}: neither guessed nor perfect", alone.accuracy);
    let wrong = tests - correct as usize;
    assert_eq!(alone.mistakes.len(), wrong.min(24));
    assert!(alone.mistakes.is_sorted_by(|a, b| a.loss >= b.loss));
    for mistake in &alone.mistakes {
        let (truth, path) = (&mistake.truth, Path::new(&mistake.sample));
        assert!(path.is_file() && mistake.sample.contains(&format!("/test/{truth}/")), "{mistake:?}");
        assert!(mistake.truth != mistake.predicted && mistake.probability >= mistake.truth_probability);
        assert!((mistake.loss + mistake.truth_probability.ln()).abs() < 1e-9, "{mistake:?}");
    }
    for ranks in [2, 3] {
        assert_eq!(report(&place.path(&format!("run-{ranks}"))), alone, "{ranks} ranks");
    }
    // The measures of the lines are those of the report.
    let run = place.path("run-1");
    for (name, expected) in [
        ("test_accuracy", Some(alone.accuracy)),
        ("test_top5_accuracy", alone.top5_accuracy),
        ("test_macro_precision", Some(alone.macro_precision)),
        ("test_macro_recall", Some(alone.macro_recall)),
        ("test_macro_f1", Some(alone.macro_f1)),
    ] {
        assert_eq!(column(&run, name).last().copied(), expected, "{name}");
        assert_eq!(json(&run.join("summary.json"))["metrics"][name].as_f64(), expected, "{name}");
    }
    let top5 = alone.top5_accuracy.expect("seven classes");
    assert!(top5 >= alone.accuracy && top5 <= 1.0, "{top5}");
    for (file, text) in [("confusion.svg", "teal</text>"), ("mistakes.svg", "predicted ")] {
        let svg = fs::read_to_string(run.join("evaluation").join(file)).expect("a picture");
        assert!(svg.contains(text), "{file}: {svg}");
    }
    // The command has the same of the checkpoint.
    let found: Value = serde_json::from_str(&place.succeed("eval --json run-1")).expect("is JSON");
    assert_eq!(found["accuracy"].as_f64(), Some(alone.accuracy));
    assert_eq!(found["confusion"], serde_json::to_value(&alone.confusion).expect("whole numbers"));
    assert!(run.join("eval/mistakes.svg").is_file());
    let shown = place.succeed("eval run-1 --out other --set eval.mistakes=0 --set eval.limit=9");
    for text in ["accuracy", "macro mean", "true class (rows)", "3 red", "files: other"] {
        assert!(shown.contains(text), "{text}: {shown}");
    }
    let limited = ClassReport::read(&place.path("other/classes.json")).expect("a report");
    assert_eq!((limited.confusion.total(), limited.mistakes.len()), (9.0, 0));
    assert!(!place.path("other/mistakes.svg").exists());
}

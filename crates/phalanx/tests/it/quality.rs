//! Judges of drawn pictures, by the built program: trained here, asked in runs and by `eval`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::harness::Place;

/// Trains a preset for a few steps on few pictures.
fn train(place: &Place, preset: &str, name: &str, steps: usize, more: &[&str]) {
    let steps = format!("train.steps={steps}");
    let sets = ["data.images=256", "data.test_images=64", "train.global_batch=32", "train.threads=1", &steps];
    let sets: Vec<String> = sets.iter().chain(more).map(|set| format!("--set {set}")).collect();
    place.succeed(&format!("train {preset} --out {name} {}", sets.join(" ")));
}

/// The last line of a run's metrics.
fn last(run: &Path) -> Value {
    let text = fs::read_to_string(run.join("metrics.jsonl")).expect("reads");
    serde_json::from_str(text.lines().last().expect("a line")).expect("is JSON")
}

#[test]
fn an_autoencoder_is_judged_by_what_comes_back_of_pictures() {
    let place = Place::new();
    train(
        &place,
        "shapes-attributes",
        "judge",
        30,
        &["train.ranks=1", "eval.enabled=false", "model.width=8"],
    );
    let judged =
        ["quality.judges=[\"judge\"]", "quality.samples=24", "quality.batch=7", "eval.enabled=false"];
    let network = ["model.widths=[8,8]", "train.ema=0.0", "train.steps=2", "sample.rows=3"];
    let measures = |name: &str, more: &[&str]| {
        train(&place, "shapes-autoencoder", name, 2, &[&judged[..], &network, more].concat());
        last(&place.path(name))
    };
    let (one, two) =
        (measures("one", &["train.ranks=1"]), measures("two", &["train.ranks=2", "train.strategy=fsdp"]));
    // What comes back of a network that has learnt nothing is not what it was given; which pictures it was given, and what the
    // judge says of them, does not depend on ranks.
    for key in ["sharpness", "background_accuracy", "place_accuracy"] {
        let of = |line: &Value, whose: &str| line[format!("test_{whose}_{key}")].as_f64().expect("a number");
        assert!((of(&one, "real") - of(&two, "real")).abs() < 1e-9, "{key}: {one} {two}");
        assert!(
            (of(&one, "drawn") - of(&two, "drawn")).abs() <= 0.05 * of(&one, "real"),
            "{key}: {one} {two}"
        );
    }
    let picture = image::open(place.path("one/samples/step-00000002.png")).expect("a picture");
    // Three pictures with what came back of each, lines of 2 pixels between them, and all enlarged.
    assert_eq!((picture.width(), picture.height()), (3 * (6 * (32 + 2) + 2), 3 * (32 + 2 * 2)));
}

#[test]
fn judges_say_the_same_on_any_number_of_ranks_and_in_eval() {
    let place = Place::new();
    let small = ["train.ranks=1", "eval.enabled=false"];
    train(&place, "shapes-attributes", "attributes", 30, &[&small[..], &["model.width=4"]].concat());
    train(&place, "shapes-clip", "clip", 4, &small);
    let judges = ["quality.judges=[\"attributes\",\"clip\"]", "quality.samples=24", "quality.batch=7"];
    let base = ["model.widths=[8,8]", "sample.rows=1", "eval.enabled=false", "train.ema=0.0"];
    let mut measured = Vec::new();
    for (name, ranks, strategy, stages) in [
        ("one", 1, "ddp", 1),
        ("fsdp", 2, "fsdp", 1),
        ("dp", 2, "dp", 1),
        ("three", 3, "ddp", 1),
        ("stages", 4, "ddp", 2),
    ] {
        let (ranks, strategy) = (format!("train.ranks={ranks}"), format!("train.strategy={strategy}"));
        let stages = format!("parallel.pipeline={stages}");
        train(&place, "shapes-cvae", name, 2, &[&judges[..], &base, &[&ranks, &strategy, &stages]].concat());
        measured.push(last(&place.path(name)));
    }
    // The real pictures and their judges are the same everywhere, to the bit where nothing is added up in another order.
    let keys: Vec<&String> = measured[0].as_object().expect("an object").keys().collect();
    let judged: Vec<&str> = keys
        .iter()
        .map(|key| key.as_str())
        .filter(|key| {
            ["test_drawn_", "test_real_", "test_attributes_", "test_clip_"].iter().any(|p| key.starts_with(p))
        })
        .collect();
    let expected = [
        "test_drawn_sharpness",
        "test_real_sharpness",
        "test_drawn_shape_accuracy",
        "test_real_colour_accuracy",
        "test_attributes_frechet_distance",
        "test_attributes_precision",
        "test_attributes_recall",
        "test_drawn_clip_score",
        "test_clip_frechet_distance",
    ];
    assert!(expected.iter().all(|key| judged.contains(key)), "{judged:?}");
    for other in &measured[1..] {
        for key in &judged {
            let [one, other] = [&measured[0], other].map(|line| line[*key].as_f64().expect("a number"));
            // Of 24 drawn pictures, which differ by rounding errors, one may look like another value.
            let flips: f64 =
                if key.starts_with("test_drawn_") && key.ends_with("_accuracy") { 1.5 / 24.0 } else { 0.0 };
            assert!((one - other).abs() <= flips.max(0.02 * one.abs().max(0.05)), "{key}: {one} {other}");
        }
    }
    let real = |line: &Value| line["test_real_sharpness"].as_f64().expect("a number");
    assert!(
        real(&measured[0]) > 0.0
            && measured.iter().all(|line| (real(line) - real(&measured[0])).abs() < 1e-9)
    );

    // The judged pictures of the first rank, with their captions: at most four rows of eight, each with a band below.
    for name in ["one", "three"] {
        let judged = image::open(place.path(name).join("evaluation/judged.png")).expect("a picture");
        assert!(judged.width() > 200 && judged.height() > judged.width() / 8 + 10, "{name}");
    }

    // `eval` has the same to say of the newest checkpoint.
    let report: Value = serde_json::from_str(&place.succeed("eval --json one")).expect("is JSON");
    for key in &judged {
        let [run, eval] = [&measured[0][*key], &report[key.trim_start_matches("test_")]].map(Value::as_f64);
        let (run, eval) = (run.expect("a number"), eval.expect("a number"));
        assert!((run - eval).abs() <= 1e-4 * run.abs().max(1.0), "{key}: {run} {eval}");
    }
    // Images that show another shape than they should are those that lack it, on any number of ranks.
    for (at, name) in ["one", "fsdp", "dp", "three"].into_iter().enumerate() {
        let confused = fs::read_to_string(place.path(name).join("evaluation/confusion.json")).expect("reads");
        let confused: Vec<Value> = serde_json::from_str(&confused).expect("is JSON");
        for kind in ["drawn", "real"] {
            let of_shapes = confused.iter().filter(|pair| pair["property"] == "shape");
            let wrong: f64 = of_shapes.map(|pair| pair[kind].as_f64().expect("a number")).sum();
            let right = &measured[at][format!("test_{kind}_shape_accuracy")];
            let right = right.as_f64().expect("a number");
            assert!((wrong - 24.0 * (1.0 - right)).abs() < 1e-6, "{name}, {kind}: {wrong} {right}");
        }
    }
    assert_eq!(report["confusions"].as_array().map(Vec::is_empty), Some(false), "{report}");
    assert!(place.succeed("eval one").contains("most confused, as judges see drawn and real images:"));
    // Judges of one's own choice.
    let report = place.succeed("eval one --judge clip --set quality.samples=8");
    assert!(report.contains("clip_frechet_distance") && !report.contains("colour"), "{report}");

    for (line, expected) in [
        ("eval one --judge nowhere", "nowhere"),
        ("eval one --judge clip --judge clip", "quality.judges has two runs of a `clip`"),
        ("eval one --judge dp", "a `cvae` judges no pictures"),
        ("train tiny --set quality.judges=[\"clip\"] --set model.kind=\"mlp\"", "draws no pictures"),
        ("eval one --judge clip --set quality.samples=1", "quality.samples = 1 is not at least 2"),
    ] {
        let said = place.fail(line);
        assert!(said.contains(expected), "{line}: {said}");
    }
}

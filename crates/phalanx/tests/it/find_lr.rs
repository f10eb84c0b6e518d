//! `phalanx find-lr`: range tests of real trainings.

use serde_json::Value;

use crate::harness::{MLP, Place};

fn found(place: &Place, options: &str) -> Value {
    let said = place.succeed(&format!("find-lr tiny {MLP} --from 1e-5 --to 30 --steps 120 --json {options}"));
    serde_json::from_str(&said).expect("JSON")
}

fn number(found: &Value, path: &str) -> f64 {
    found.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {found}"))
}

#[test]
fn a_range_test_suggests_the_same_rate_on_any_world() {
    let place = Place::new();
    let one = found(&place, "--ranks 1 --out one");
    let (rate, lowest) = (number(&one, "/rate"), number(&one, "/lowest/rate"));
    assert!((1e-4..0.1).contains(&rate) && rate < lowest && lowest < 3.0, "{one}");
    assert_eq!(number(&one, "/optim.lr"), rate, "the rate is not scaled by the batch");
    let losses = one["curve"].as_array().expect("a curve").iter().map(|point| number(point, "/loss"));
    let losses: Vec<f64> = losses.collect();
    assert!(number(&one, "/lowest/loss") < 0.95 * losses[0], "{losses:?}");
    assert_eq!(one["curve"], found(&place, "--ranks 1 --out again")["curve"], "repeatable");
    let two = found(&place, "--ranks 2 --out two");
    // At most the next of the rates that were tried.
    assert!((number(&two, "/rate") / rate).ln().abs() < 0.13, "{one}\n{two}");
    let svg = std::fs::read_to_string(place.path("one/rates.svg")).expect("a picture");
    assert!(svg.contains("suggested: ") && svg.contains("learning rate, logarithmic"), "{svg}");
    let scaled = found(&place, "--ranks 1 --set optim.base_batch=8 --out scaled");
    let batch = number(&scaled, "/rate") / number(&scaled, "/optim.lr") * 8.0;
    assert_eq!(
        (number(&scaled, "/rate"), batch.round()),
        (rate, 12.0),
        "the configured rate is that of 8 samples"
    );
    // The training of the test is a run like others, which ended by itself when its loss diverged.
    let config = std::fs::read_to_string(place.path("one/config.toml")).expect("a run");
    assert!(config.contains("kind = \"range-test\""), "{config}");
    let summary = std::fs::read_to_string(place.path("one/summary.json")).expect("a run");
    let summary: Value = serde_json::from_str(&summary).expect("JSON");
    assert!(summary["status"] == "finished" && number(&summary, "/step") < 120.0, "{summary}");
}

#[test]
fn tests_that_cannot_be_are_refused_before_they_run() {
    let place = Place::new();
    for (line, words) in [
        ("find-lr tiny --from 1 --to 0.1", "--from 1 is not below --to 0.1"),
        ("find-lr tiny --from 0", "expected a number above 0"),
        ("find-lr shapes-stackgan", "schedule.kind = range-test is for a training of one loss"),
        ("find-lr tiny --steps 10", "--steps 10: a test needs more than 16"),
    ] {
        assert!(place.fail(line).contains(words), "{line}");
    }
    let launched =
        ["RANK", "LOCAL_RANK", "MASTER_PORT"].iter().fold(place, |place, name| place.with(*name, "0"));
    let launched = launched.with("WORLD_SIZE", "2").with("MASTER_ADDR", "127.0.0.1").fail("find-lr tiny");
    assert!(launched.contains("find-lr starts its ranks itself"), "{launched}");
}

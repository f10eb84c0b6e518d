//! Frozen parameters, parameters that are trained later, and rates by name, under each strategy.

use std::path::Path;

use serde_json::Value;

use super::{SMALL, in_file, setting, train, weights};
use crate::harness::Place;
use crate::harness::engine::words;
use crate::harness::results::{Tensors, assert_close, checkpoint, contents, json, losses};

/// Every strategy whose ranks are equal.
const STRATEGIES: [&str; 13] = [
    "dp",
    "ddp",
    "zero1",
    "zero2",
    "fsdp",
    "hsdp",
    "ps-bsp",
    "ps-asp",
    "local-sgd",
    "diloco",
    "d-psgd",
    "sgp",
    "ad-psgd",
];

#[test]
fn frozen_parameters_stay_to_the_bit_and_later_ones_until_their_step() {
    let place = Place::new();
    let file = weights(&place, "w.safetensors", 7);
    let (from, given) = (setting("model.weights", &file), in_file(&file));
    let changed = |run: &Path, step: u64, name: &str| contents(&checkpoint(run, step))[name] != given[name];
    for strategy in STRATEGIES {
        for ranks in if ["local-sgd", "d-psgd", "sgp"].contains(&strategy) { 2..=3 } else { 2..=2 } {
            let own = format!(
                "train.steps=4 train.ranks={ranks} train.strategy={strategy} checkpoint.every=2 train.ema=0.5 sync.every=2 \
                 train.clip_norm=1"
            );
            let what = format!("{strategy} on {ranks} ranks");
            let name = format!("{strategy}-{ranks}");
            let run = train(&place, &name, &[&own, &from, "optim.freeze=[\"0\"]"]);
            assert!(!changed(&run, 4, "model 0.weight") && !changed(&run, 4, "model 0.bias"), "{what}");
            assert!(changed(&run, 2, "model 2.weight") && changed(&run, 4, "model 2.bias"), "{what}");
            let kept = contents(&checkpoint(&run, 4));
            assert!(
                !kept.keys().any(|key| key.starts_with("exp_avg") && key.contains(" 0.")),
                "{what}: state"
            );
            let later = ["optim.freeze=[\"0\"]", "optim.unfreeze_step=2"];
            let run = train(&place, &format!("{name}-later"), &[&own, &from, later[0], later[1]]);
            assert!(!changed(&run, 2, "model 0.weight") && !changed(&run, 2, "model 0.bias"), "{what}");
            assert!(changed(&run, 4, "model 0.weight") && changed(&run, 4, "model 0.bias"), "{what}");
        }
    }
}

#[test]
fn frozen_parameters_are_not_sent() {
    let place = Place::new();
    let sent = |out: &str, settings: &[&str]| {
        let run = train(&place, out, &[&["train.steps=4"], settings].concat());
        let ranks = json(&run.join("summary.json"))["ranks"].clone();
        ranks
            .as_array()
            .expect("ranks")
            .iter()
            .map(|rank| rank["step_bytes_sent"].as_u64().expect("bytes"))
            .sum::<u64>()
    };
    let elements = [24 * 192 + 24, 7 * 24 + 7_u64];
    for (strategy, ranks) in [("ddp", 2), ("zero2", 3), ("ps-bsp", 2), ("local-sgd", 2), ("sgp", 2)] {
        let own = format!("train.ranks={ranks} train.strategy={strategy} sync.every=1");
        let all = sent(&format!("{strategy}-all"), &[&own]);
        let frozen = sent(&format!("{strategy}-frozen"), &[&own, "optim.freeze=[\"0\"]"]);
        // Also what servers answer, whose threads run at any time.
        assert_eq!(sent(&format!("{strategy}-again"), &[&own]), all, "{strategy}: bytes of a repeated run");
        // The first layer has 4632 of 4807 elements; messages have headers.
        let part = elements[1] as f64 / elements.iter().sum::<u64>() as f64;
        assert!((frozen as f64) < (part + 0.05) * all as f64, "{strategy}: {frozen} of {all} bytes");
        let later = ["optim.freeze=[\"0\"] optim.unfreeze_step=2"];
        let later = sent(&format!("{strategy}-later"), &[&own, later[0]]);
        let is_between = (frozen + (all - frozen) / 3..all).contains(&later);
        assert!(is_between, "{strategy}: {later} bytes, {frozen} while frozen and {all} without");
    }
    // Sharded layers are gathered for forward, and frozen ones not again for backward, as planned.
    let own = "train.ranks=2 train.strategy=fsdp train.bucket_kib=0 train.prefetch=0";
    for (out, freeze) in [("fsdp-all", ""), ("fsdp-frozen", "optim.freeze=[\"0\"]")] {
        let sets: Vec<String> =
            words(&[SMALL, own, freeze]).iter().map(|setting| format!("--set {setting}")).collect();
        let plan: Value =
            serde_json::from_str(&place.succeed(&format!("plan tiny {} --json", sets.join(" "))))
                .expect("is JSON");
        let rows = plan["strategies"].as_array().expect("rows");
        let row = rows.iter().find(|row| row["strategy"] == "fsdp").expect("a row");
        let planned = row["bytes_sent_per_step"].as_f64().expect("bytes");
        let measured = sent(out, &[own, freeze]) as f64 / (2.0 * 4.0);
        assert!(
            (measured - planned).abs() < 0.02 * planned,
            "{out}: {measured} bytes a step, planned {planned}"
        );
    }
}

#[test]
fn any_number_of_ranks_fine_tunes_alike() {
    let place = Place::new();
    let file = weights(&place, "w.safetensors", 9);
    let common = "train.steps=6 optim.freeze=[\"0.weight\"] optim.unfreeze_step=3 optim.rates=[\"2=3\",\"0.bias=0.5\"] \
        train.clip_norm=1 train.ema=0.5 data.tail=ragged train.global_batch=13";
    let from = setting("model.weights", &file);
    let run = |ranks: usize, strategy: &str| {
        let own = format!("train.ranks={ranks} train.strategy={strategy}");
        train(&place, &format!("{strategy}-{ranks}"), &[common, &from, &own])
    };
    let alone = losses(&run(1, "ddp"));
    for ranks in [2, 3] {
        let expected = contents(&checkpoint(&run(ranks, "ddp"), 6));
        for strategy in ["zero1", "fsdp"] {
            let run = run(ranks, strategy);
            assert_close(&format!("{strategy} {ranks}"), &losses(&run), &alone, 1e-4);
            let found = contents(&checkpoint(&run, 6));
            let differs: Vec<&String> =
                expected.keys().filter(|key| found.get(*key) != expected.get(*key)).collect();
            // The norm's squares are added part by part.
            let close = |key: &&&String| {
                let values = |tensors: &Tensors| {
                    tensors[**key].1.iter().map(|bits| f64::from_bits(*bits)).collect::<Vec<_>>()
                };
                values(&expected).iter().zip(values(&found)).all(|(a, b)| (a - b).abs() < 1e-5)
            };
            assert!(differs.iter().all(|key| close(&key)), "{strategy} on {ranks} ranks: {differs:?}");
        }
    }
}

#[test]
fn a_resumption_across_the_unfreezing_is_exact() {
    let place = Place::new();
    let file = weights(&place, "w.safetensors", 7);
    let from = setting("model.weights", &file);
    let later = "optim.freeze=[\"0\"] optim.unfreeze_step=3 train.ema=0.5 train.steps=6";
    for (strategy, ranks) in
        [("ddp", 1), ("ddp", 2), ("zero1", 2), ("fsdp", 3), ("ps-bsp", 2), ("local-sgd", 2), ("diloco", 2)]
    {
        let own = format!("train.ranks={ranks} train.strategy={strategy} sync.every=2");
        let whole = train(&place, &format!("{strategy}-{ranks}"), &[later, &own, &from]);
        let expected = contents(&checkpoint(&whole, 6));
        for stop in [2, 3, 4] {
            let out = format!("{strategy}-{ranks}-{stop}");
            train(&place, &out, &[later, &own, &from, &format!("train.stop_step={stop}")]);
            let run = train(&place, &out, &[later, &own, &from]);
            assert!(
                contents(&checkpoint(&run, 6)) == expected,
                "{strategy} on {ranks} ranks, stopped after {stop}"
            );
            assert_eq!(losses(&run), losses(&whole), "{strategy} on {ranks} ranks, stopped after {stop}");
        }
    }
}

/// The largest change of a parameter between two checkpoints.
fn change(run: &Path, name: &str, steps: [u64; 2]) -> f64 {
    let [before, after] =
        steps.map(|step| contents(&checkpoint(run, step))[&format!("model {name}")].1.clone());
    let pairs = before.into_iter().zip(after);
    pairs.map(|(a, b)| (f64::from_bits(a) - f64::from_bits(b)).abs()).fold(0.0, f64::max)
}

#[test]
fn adams_bias_correction_begins_with_the_first_update_of_a_parameter() {
    let place = Place::new();
    let file = weights(&place, "w.safetensors", 7);
    let from = setting("model.weights", &file);
    let common = "optim.weight_decay=0 checkpoint.every=1 checkpoint.keep=9 train.ranks=2";
    for strategy in ["ddp", "fsdp"] {
        let strategy = format!("train.strategy={strategy}");
        let steps = "optim.freeze=[\"0\"] optim.unfreeze_step=4 train.steps=6";
        let run = train(&place, &strategy[15..], &[common, steps, &from, &strategy]);
        // The first step of Adam is its learning rate, for every gradient.
        assert!(
            (change(&run, "0.weight", [4, 5]) - 0.01).abs() < 1e-4,
            "{}",
            change(&run, "0.weight", [4, 5])
        );
        // The same if a resumption unfreezes them.
        let out = format!("{}-resumed", &strategy[15..]);
        train(&place, &out, &[common, "optim.freeze=[\"0\"] train.steps=4", &from, &strategy]);
        let run = train(&place, &out, &[common, "train.steps=6", &from, &strategy]);
        assert!(
            (change(&run, "0.weight", [4, 5]) - 0.01).abs() < 1e-4,
            "{}",
            change(&run, "0.weight", [4, 5])
        );
    }
}

#[test]
fn rates_multiply_the_steps_of_the_parameters_that_they_name() {
    let place = Place::new();
    let file = weights(&place, "w.safetensors", 7);
    let from = setting("model.weights", &file);
    let sgd = "optim.kind=sgd optim.momentum=0 optim.weight_decay=0 train.steps=1";
    let given = in_file(&file);
    let steps = |out: &str, settings: &[&str]| {
        let run = train(&place, out, &[&[sgd, &from], settings].concat());
        let after = contents(&checkpoint(&run, 1));
        let of = |name: &str| -> Vec<f64> {
            let (before, after) = (&given[name].1, &after[name].1);
            let pairs = before.iter().zip(after);
            pairs.map(|(a, b)| f64::from_bits(*b) - f64::from_bits(*a)).collect()
        };
        ["model 0.weight", "model 0.bias", "model 2.weight", "model 2.bias"].map(of)
    };
    let plain = steps("plain", &["train.ranks=1"]);
    for (strategy, ranks) in [
        ("ddp", 1),
        ("ddp", 2),
        ("zero1", 3),
        ("fsdp", 2),
        ("fsdp", 3),
        ("ps-bsp", 2),
        ("local-sgd", 2),
        ("diloco", 2),
    ] {
        let own = format!("train.ranks={ranks} train.strategy={strategy}");
        let rates = "optim.rates=[\"*=0.5\",\"2=10\",\"*.bias=0\"]";
        let found = steps(&format!("{strategy}-{ranks}"), &[&own, rates]);
        for ((plain, found), factor) in plain.iter().zip(&found).zip([0.5, 0.0, 10.0, 0.0]) {
            let most = plain.iter().fold(0.0_f64, |most, step| most.max(step.abs()));
            for (plain, found) in plain.iter().zip(found) {
                let off = (factor * plain - found).abs();
                assert!(off <= 1e-3 * most * factor + 1e-8, "{strategy} {ranks} x {factor}: {plain} {found}");
            }
        }
    }
}

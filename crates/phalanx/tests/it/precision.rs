//! Mixed precision and recomputation by configuration, in the built program.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::harness::results::{checkpoint, column, json, write_index};
use crate::harness::{Place, side_by_side};

/// The tensors of a checkpoint, as they lie in its files.
fn tensors(run: &Path, step: u64) -> Vec<(std::ffi::OsString, Vec<u8>)> {
    let entries = fs::read_dir(checkpoint(run, step)).expect("a checkpoint");
    let paths = entries.map(|entry| entry.expect("lists").path());
    let mut all: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .map(|path| (path.file_name().expect("has one").to_owned(), fs::read(&path).expect("reads")))
        .collect();
    all.sort();
    assert!(!all.is_empty());
    all
}

fn loss_scale(run: &Path, step: u64) -> Option<f64> {
    json(&checkpoint(run, step).join("checkpoint.json"))["state"]["loss_scale"].as_f64()
}

#[test]
fn runs_in_low_precision_go_on_bit_for_bit_by_any_strategy() {
    let place = Place::new();
    side_by_side(["bf16", "f16"], |precision| {
        let common = format!(
            "train tiny --set log.every=1 --set train.precision={precision} --set train.recompute=2 \
             --set train.clip_norm=1 --set train.ema=0.9 --ranks 2"
        );
        let name = |what: &str| format!("{precision}-{what}");
        place.succeed(&format!("{common} --steps 6 --out {}", name("whole")));
        place.succeed(&format!("{common} --steps 3 --strategy fsdp --out {}", name("parts")));
        place.succeed(&format!("{common} --steps 6 --strategy zero2 --out {} --resume", name("parts")));
        let [whole, parts] = [place.path(&name("whole")), place.path(&name("parts"))];
        assert_eq!(column(&whole, "loss"), column(&parts, "loss"));
        // The squares are summed by parts, in f64.
        for (a, b) in column(&whole, "grad_norm").iter().zip(column(&parts, "grad_norm")) {
            assert!((a - b).abs() < 1e-9 * a, "{a} and {b}");
        }
        for averages in ["", " --ema"] {
            let export = |what: &str| {
                let run = name(what);
                place.succeed(&format!("export {run} --out {run}{}.safetensors{averages}", averages.trim()));
                fs::read(place.path(&format!("{run}{}.safetensors", averages.trim()))).expect("reads")
            };
            assert!(export("whole") == export("parts"), "{precision}{averages}: they differ");
        }
        let scale = (precision == "f16").then_some(65_536.0);
        assert_eq!([loss_scale(&whole, 6), loss_scale(&parts, 6)], [scale; 2]);
    });
    // Rounding shows, and no more than that.
    place.succeed("train tiny --set log.every=1 --set train.clip_norm=1 --steps 6 --ranks 2 --out plain");
    let plain = column(&place.path("plain"), "loss");
    for (precision, tolerance) in [("bf16", 0.03), ("f16", 0.01)] {
        let low = column(&place.path(&format!("{precision}-whole")), "loss");
        assert_ne!(low, plain);
        for (low, plain) in low.iter().zip(&plain) {
            assert!((low - plain).abs() < tolerance * plain, "{precision}: {low} and {plain}");
        }
    }
}

#[test]
fn an_overflow_leaves_the_step_out_on_all_ranks() {
    let place = Place::new();
    side_by_side(["ddp", "zero2", "fsdp"], |strategy| {
        let common = format!(
            "train tiny --ranks 2 --strategy {strategy} --set log.every=1 --set train.precision=f16 \
             --set train.ema=0.9 --set checkpoint.keep=9 --set checkpoint.every=1 --out {strategy}"
        );
        place.succeed(&format!("{common} --steps 2"));
        let run = place.path(strategy);
        // A scale that no gradient of f16 survives, as a run would come to that had grown it too far.
        let index = checkpoint(&run, 2).join("checkpoint.json");
        let mut changed = json(&index);
        changed["state"]["loss_scale"] = Value::from(f64::powi(2.0, 40));
        write_index(&index, changed);
        place.succeed(&format!("{common} --steps 4 --resume"));
        assert_eq!(column(&run, "left_out"), [0.0, 0.0, 1.0, 1.0]);
        assert_eq!(column(&run, "loss_scale")[2..], [f64::powi(2.0, 40), f64::powi(2.0, 39)]);
        assert_eq!(loss_scale(&run, 4), Some(f64::powi(2.0, 38)));
        assert!(column(&run, "loss").iter().all(|loss| loss.is_finite() && *loss < 10.0), "not unscaled");
        assert!(tensors(&run, 2) == tensors(&run, 4), "{strategy}: something has changed");
    });
    // A fixed scale does not fall, and at some point that is told.
    let said = place.fail_with(
        1,
        "train tiny --ranks 2 --steps 60 --set train.precision=f16 --set train.loss_scale=1e30 --out never",
    );
    assert!(
        said.contains("step 41: the gradients are not finite") && said.contains("train.precision"),
        "{said}"
    );
}

#[test]
fn every_model_trains_and_is_evaluated_in_every_precision() {
    let place = Place::new();
    let small = "vit --set model.width=24 --set model.layers=2";
    for kind in ["cvae", "clip", "resnet18 --set model.width=8", "mobilenetv2", small] {
        for precision in ["bf16", "f16"] {
            let run = format!("{}-{precision}", kind.split(' ').next().unwrap_or_default());
            place.succeed(&format!(
                "train tiny --set model.kind={kind} --ranks 1 --steps 2 --set log.every=1 --set train.recompute=1 --set data.images=32 --set data.test_images=8 \
                 --set train.precision={precision} --out {run}"
            ));
            let found = [column(&place.path(&run), "loss"), column(&place.path(&run), "test_loss")].concat();
            assert!(found.len() == 3 && found.iter().all(|loss| loss.is_finite()), "{run}: {found:?}");
        }
    }
}

#[test]
fn low_precision_and_recomputation_take_less_memory() {
    let place = Place::new();
    let peak = |name: &str, more: &str| {
        place.succeed(&format!(
            "train tiny --set model.kind=mobilenetv2 --set model.image_size=32 --set data.images=32 --set eval.limit=2 \
             --set data.test_images=2 --ranks 1 --set train.global_batch=32 --steps 1 --set train.threads=2 {more} \
             --out {name}"
        ));
        json(&place.path(name).join("summary.json"))["ranks"][0]["peak_memory_bytes"].as_f64()
    };
    // Where the system does not tell there is nothing to compare.
    let Some(plain) = peak("plain", "") else { return };
    let recomputed = peak("recomputed", "--set train.recompute=1").expect("told before");
    let low = peak("low", "--set train.precision=bf16").expect("told before");
    let both = peak("both", "--set train.precision=bf16 --set train.recompute=1").expect("told before");
    assert!(recomputed < 0.7 * plain, "recomputed {recomputed:e}, plain {plain:e}");
    assert!(low < 0.85 * plain, "bf16 {low:e}, plain {plain:e}");
    // What is left is the largest block, while it is computed in f32. How much of it lives at the same time depends on when
    // threads run: 0.76 of it alone, 0.88 under load.
    assert!(both < 0.95 * low, "both {both:e}, bf16 {low:e}");
}

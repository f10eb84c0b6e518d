//! Loss scales that stay on the GPU: it decides without asking the host.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::place::{Place, column, json};
use crate::harness::results::{checkpoint, copy, write_index};

/// Steps of a run, the first of which is taken on the CPU.
const STEPS: u64 = 9;

/// The index of a checkpoint.
fn index(run: &Path, step: u64) -> std::path::PathBuf {
    checkpoint(run, step).join("checkpoint.json")
}

fn state(run: &Path, step: u64) -> Value {
    json(&index(run, step))["state"].take()
}

/// The learnt weights of a run, and their averages.
fn learnt(place: &Place, run: &str) -> [Vec<u8>; 2] {
    ["", " --ema"].map(|averages| {
        let file = format!("{run}{}.safetensors", averages.trim());
        place.succeed(&format!("export {run} --out {file}{averages}"));
        fs::read(place.path(&file)).expect("reads")
    })
}

/// The largest difference between two files of weights, relative to the largest weight.
fn apart(a: &[u8], b: &[u8]) -> f64 {
    let numbers = |file: &[u8]| {
        let (length, rest) = file.split_first_chunk::<8>().expect("a header");
        let data = &rest[u64::from_le_bytes(*length) as usize..];
        data.as_chunks::<4>().0.iter().map(|bytes| f64::from(f32::from_le_bytes(*bytes))).collect::<Vec<_>>()
    };
    let (a, b) = (numbers(a), numbers(b));
    assert_eq!(a.len(), b.len());
    let size = a.iter().fold(0.0_f64, |size, a| size.max(a.abs()));
    a.iter().zip(&b).fold(0.0_f64, |most, (a, b)| most.max((a - b).abs())) / size
}

/// Steps of a run that were left out.
fn left_out_of(place: &Place, run: &str) -> f64 {
    column(&place.path(run), "left_out").iter().sum()
}

const COMMON: &str = "train tiny --set train.threads=1 --set log.every=1 --set train.precision=f16 --set train.ema=0.9 \
                      --set train.clip_norm=1 --set checkpoint.every=1 --set checkpoint.keep=99 --set eval.every=4";

/// Takes the first step on the CPU, and makes the checkpoint continue with a scale at which the gradients of the next
/// steps overflow, as after too much growth.
fn begin(place: &Place) {
    place.succeed(&format!("{COMMON} --steps 1 --set train.ranks=1 --set train.device=cpu --out begun"));
    // The largest of these gradients overflows near 2²⁰, a bit earlier on GPUs, which have gradients of weights in f16 too: it
    // halves past that.
    let mut changed = json(&index(&place.path("begun"), 1));
    changed["state"]["loss_scale"] = Value::from(11_500_000.0);
    write_index(&index(&place.path("begun"), 1), changed);
}

/// Goes on from there, stopping after some steps; what was learnt.
fn run(place: &Place, name: &str, ranks: usize, more: &str, stops: &[u64]) -> [Vec<u8>; 2] {
    copy(&place.path("begun"), &place.path(name));
    for stop in stops {
        let line = format!("{COMMON} --steps {stop} --set train.ranks={ranks} {more} --out {name} --resume");
        place.succeed(&line);
    }
    learnt(place, name)
}

/// The scale of each step, and whether its update was left out.
fn told(place: &Place, name: &str) -> [Vec<f64>; 2] {
    ["loss_scale", "left_out"].map(|what| column(&place.path(name), what))
}

#[test]
fn a_gpu_leaves_steps_out_as_the_processor_does() {
    let Some(place) = Place::anywhere() else { return };
    begin(&place);
    let told = |name: &str| told(&place, name);
    let on_cpu = run(&place, "cpu", 1, "--set train.device=cpu", &[STEPS]);
    let [scales, left_out] = told("cpu");
    let out = left_out_of(&place, "cpu");
    assert!(scales.len() == STEPS as usize && (2.0..7.0).contains(&out), "{scales:?}, {left_out:?}");
    let last = state(&place.path("cpu"), STEPS);
    assert_eq!(last["optimizer_steps"], STEPS - out as u64);
    assert_eq!(last["ema_updates"], STEPS - out as u64);
    let eager = run(&place, "eager", 1, "--set train.device=cuda", &[STEPS]);
    let graphs = run(&place, "graphs", 1, "--set train.device=cuda --set train.graphs=true", &[STEPS]);
    assert!(eager == graphs, "graphs have other bits");
    for name in ["eager", "graphs"] {
        assert_eq!(told(name), [scales.clone(), left_out.clone()], "{name}");
        for step in 2..=STEPS {
            let [found, expected] = [name, "cpu"].map(|name| state(&place.path(name), step));
            for what in [
                "loss_scale",
                "loss_scale_good_steps",
                "loss_scale_left_out",
                "optimizer_steps",
                "ema_updates",
            ] {
                assert_eq!(found[what], expected[what], "{name}, step {step}: {what}");
            }
        }
        let [found, expected] = [name, "cpu"].map(|name| column(&place.path(name), "loss"));
        for (found, expected) in found.iter().zip(&expected) {
            assert!((found - expected).abs() < 4e-3 * expected, "{name}: {found}, not {expected}");
        }
        let norms = [name, "cpu"].map(|name| column(&place.path(name), "grad_norm").len());
        assert_eq!(norms[0], norms[1], "{name}");
    }
    for (found, expected) in eager.iter().zip(&on_cpu) {
        let apart = apart(found, expected);
        assert!(apart < 2e-2, "{apart:e}");
    }
}

#[test]
#[ignore = "runs of two GPUs in fibres take minutes: cargo xtask test --full"]
fn ranks_with_a_gpu_each_leave_the_same_steps_out() {
    let Some(place) = Place::anywhere().filter(|place| place.has(2)) else { return };
    begin(&place);
    for strategy in ["ddp", "fsdp"] {
        let more = format!("--set train.device=cuda --strategy {strategy}");
        let whole = run(&place, strategy, 2, &more, &[STEPS]);
        // Interrupted while steps are left out, and after.
        let parts = format!("{strategy}-parts");
        let in_parts = run(&place, &parts, 2, &format!("{more} --set train.graphs=true"), &[3, 7, STEPS]);
        assert!(whole == in_parts, "{strategy}: a resumed run has other bits");
        let told = |name: &str| told(&place, name);
        let [whole, parts] = [strategy, &parts].map(|name| (column(&place.path(name), "loss"), told(name)));
        assert_eq!(whole, parts, "{strategy}");
        // Each rank's gradients are of half a batch, so another step may be the last that overflows.
        let out = left_out_of(&place, strategy);
        assert!((2.0..7.0).contains(&out), "{strategy}: {:?}", told(strategy));
        assert_eq!(told(strategy), told("ddp"), "what one rank sees counts for all");
        let last = state(&place.path(strategy), STEPS);
        assert_eq!(last["optimizer_steps"], STEPS - out as u64, "{strategy}");
        assert_eq!(last["ema_updates"], STEPS - out as u64, "{strategy}");
    }
}

#[test]
fn a_scale_that_never_fits_ends_a_run_on_gpus() {
    let Some(place) = Place::anywhere() else { return };
    let line = "train tiny --steps 60 --set model.kind=mlp --set model.mlp_width=16 --set model.mlp_depth=1 --set model.image_size=8 \
                --set train.global_batch=8 --set train.precision=f16 --set train.loss_scale=1e30 --set train.device=cuda \
                --set log.every=100 --set checkpoint.every=100 --set train.ranks=1";
    let said = place.fail(&format!("{line} --out never"));
    let told = "step 41: the gradients are not finite";
    assert!(said.contains(told) && said.contains("train.precision"), "{said}");
}

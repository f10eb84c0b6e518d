//! State on the host or on disk.

use std::fs;
use std::path::Path;

use super::graphs::graphs_change_nothing;
use super::place::{Place, column, json, losses};

#[test]
fn the_state_of_an_optimizer_may_lie_on_the_host() {
    let Some(place) = Place::anywhere() else { return };
    let common =
        "train tiny --set train.ranks=1 --set log.every=1 --set train.device=cuda --set train.ema=0.9";
    let offload = "--set train.offload=optimizer";
    place.succeed(&format!("{common} --steps 5 --out there"));
    place.succeed(&format!("{common} {offload} --steps 5 --out whole"));
    place.succeed(&format!("{common} {offload} --steps 3 --out parts"));
    place.succeed(&format!("{common} {offload} --steps 5 --out parts --resume"));
    let [there, whole, parts] = ["there", "whole", "parts"].map(|run| column(&place.path(run), "loss"));
    assert_eq!(whole, parts);
    for (a, b) in there.iter().zip(&whole) {
        assert!((a - b).abs() <= 1e-5 * a.abs(), "{there:?} and {whole:?}");
    }
    let peak = |run: &str| {
        let summary = json(&place.path(run).join("summary.json"));
        summary["metrics"]["gpu_peak_optimizer_bytes"].as_u64().expect("a number")
    };
    assert_eq!((peak("there"), peak("whole")), (143_467 * 12, 0));
    // In files: to the bit the CPU's results.
    let disk = "--set train.offload=disk --set train.offload_folder=files";
    place.succeed(&format!("{common} {disk} --steps 5 --out disk"));
    assert_eq!(column(&place.path("disk"), "loss"), whole);
    assert_eq!(peak("disk"), 0);
    assert!(!place.path("files").exists(), "files are deleted");
}

/// The most bytes of a kind that a run's first GPU held.
pub(crate) fn peak(run: &Path, kind: &str) -> u64 {
    let summary = json(&run.join("summary.json"));
    summary["metrics"][format!("gpu_peak_{kind}_bytes")].as_u64().expect("a number")
}

#[test]
fn parameters_may_lie_on_the_host() {
    parameters_on_the_host_change_nothing(&[(1, "ddp"), (2, "fsdp")]);
}

#[test]
#[ignore = "further trainings take minutes in fibres: cargo xtask test --full"]
fn parameters_may_lie_on_the_host_by_further_strategies() {
    parameters_on_the_host_change_nothing(&[(2, "ddp"), (4, "hsdp")]);
}

/// Trainings on ranks by a strategy have the same losses and weights with parameters on the host, and take less memory of the GPU.
fn parameters_on_the_host_change_nothing(cells: &[(usize, &str)]) {
    let Some(place) = Place::anywhere() else { return };
    // Units of at most a block; evaluations, samples and checkpoints between.
    let common = "tiny --steps 5 --set train.threads=1 --set log.every=1 --set train.device=cuda --set train.ema=0.9 \
                  --set train.bucket_kib=0 --set eval.every=2 --set checkpoint.every=2 --set sample.every=4";
    for &(ranks, strategy) in cells {
        if !place.has(ranks) {
            continue;
        }
        let line = format!("train {common} --set train.ranks={ranks} --strategy {strategy}");
        for offload in ["optimizer", "parameters"] {
            place.succeed(&format!("{line} --set train.offload={offload} --out {offload}"));
        }
        let [there, here] = ["optimizer", "parameters"].map(|run| place.path(run));
        assert_eq!(losses(&there), losses(&here), "{strategy} on {ranks}");
        assert!(losses(&here).len() >= 5);
        for run in ["optimizer", "parameters"] {
            place.succeed(&format!("export {run} --out {run}.safetensors"));
        }
        let [a, b] =
            ["optimizer", "parameters"].map(|run| fs::read(place.path(&format!("{run}.safetensors"))));
        assert!(a.expect("reads") == b.expect("reads"), "{strategy} on {ranks}: the weights differ");
        let [parameters, gradients] =
            ["parameters", "gradients"].map(|kind| [&there, &here].map(|run| peak(run, kind)));
        // Where ranks have shards, samples want all parameters; between groups the shards of all gradients wait for each other.
        assert!(parameters[1] < parameters[0] || strategy != "ddp", "{strategy} on {ranks}: {parameters:?}");
        assert!(gradients[1] < gradients[0] || strategy == "hsdp", "{strategy} on {ranks}: {gradients:?}");
        if ranks == 1 {
            // Of 143,467 parameters two buckets, of which the largest has 34,664; nothing of what the host keeps.
            assert!(peak(&here, "parameters") <= 2 * 4 * 34_664, "{}", peak(&here, "parameters"));
            assert_eq!(peak(&here, "optimizer"), 0);
            place.succeed("sample parameters --prompt red --out red.png");
            place.succeed("eval parameters");
        }
        for run in [there, here] {
            fs::remove_dir_all(run).expect("removes");
        }
    }
}

#[test]
#[ignore = "resumptions of offloaded runs take minutes in fibres: cargo xtask test --full"]
fn runs_with_parameters_on_the_host_go_on_bit_for_bit() {
    let Some(place) = Place::anywhere() else { return };
    for (ranks, strategy) in [(1, "ddp"), (2, "fsdp")] {
        if !place.has(ranks) {
            continue;
        }
        let common = format!(
            "train tiny --set train.ranks={ranks} --strategy {strategy} --set log.every=1 --set train.device=cuda \
             --set train.threads=1 --set train.ema=0.9 --set train.bucket_kib=0 --set train.clip_norm=1"
        );
        let offload = "--set train.offload=parameters";
        place.succeed(&format!("{common} {offload} --steps 5 --out whole"));
        place.succeed(&format!("{common} {offload} --steps 3 --out parts"));
        place.succeed(&format!("{common} {offload} --steps 5 --out parts --resume"));
        place.succeed(&format!("{common} --set train.offload=optimizer --steps 5 --out there"));
        let [whole, parts, there] = ["whole", "parts", "there"].map(|run| column(&place.path(run), "loss"));
        assert_eq!(whole, parts, "{strategy}");
        // Norms are added up elsewhere.
        for (a, b) in there.iter().zip(&whole) {
            assert!((a - b).abs() <= 1e-5 * a.abs(), "{strategy}: {there:?} and {whole:?}");
        }
        for run in ["whole", "parts", "there"] {
            fs::remove_dir_all(place.path(run)).expect("removes");
        }
    }
    let on_host = "--set train.offload=parameters --set train.bucket_kib=0";
    graphs_change_nothing(&place, 1, &format!("tiny {on_host} --set eval.every=3"));
    graphs_change_nothing(&place, 2, &format!("tiny {on_host} --strategy fsdp"));
    if place.has(2) {
        let refused =
            "train tiny --steps 1 --set train.ranks=2 --set train.device=cuda --strategy zero2 --out refused";
        let error = place.fail(&format!("{refused} {on_host}"));
        assert!(error.contains("zero2") && error.contains("`ddp`, `fsdp` and `hsdp` can"), "{error}");
    }
}

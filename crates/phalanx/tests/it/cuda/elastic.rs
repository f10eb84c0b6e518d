//! Worlds of ranks with a GPU each that change while training goes on.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::place::{DEVICES, Place, column};
use crate::victims::{kill, ranks_of};

/// GPUs of the machine: one more than ranks in the end.
const GPUS: &str = "4";

fn metrics(place: &Place, run: &str) -> Vec<Value> {
    let lines = fs::read_to_string(place.run(run).join("metrics.jsonl")).unwrap_or_default();
    lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn start(place: &Place, line: &str) -> Child {
    let mut command = place.command(line);
    command.env(DEVICES, GPUS).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().expect("phalanx runs")
}

/// Waits until a run has told of a step, or for what else there is to see.
fn wait_for(what: &str, holds: impl Fn() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_secs(240), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn has_ended_well(what: &str, process: Child) {
    let output = process.wait_with_output().expect("phalanx ends");
    assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A rank of three is killed and another comes in its place; the losses are those of three that nothing happens to, and with logical
/// ranks the weights are those of one GPU alone.
#[test]
fn ranks_with_gpus_are_lost_and_others_come() {
    let Some(place) = Place::new() else { return };
    let small =
        "--set model.kind=mlp --set model.mlp_width=24 --set model.mlp_depth=1 --set model.image_size=8";
    for strategy in ["ddp", "fsdp --set elastic.redundancy=1"] {
        let line = format!(
            "train tiny --steps 40 {small} --set train.threads=1 --set log.every=1 --set eval.every=20 --set train.global_batch=12 \
             --set train.clip_norm=1 --set train.ema=0.9 --strategy {strategy}"
        );
        let alone = line.replace(" --set elastic.redundancy=1", "");
        place.succeed(&format!("{alone} --set train.ranks=3 --set train.device=cpu --out whole"));
        let line = format!("{line} --set train.logical_ranks=3 --set train.device=cuda");
        let one = line.replace(strategy, "ddp");
        place.succeed(&format!("{one} --set train.ranks=1 --out one"));
        let slow = (0..3).map(|rank| format!("rank={rank},ms=25")).collect::<Vec<_>>().join(";");
        let running =
            start(&place, &format!("{line} --ranks 3 --elastic 2:3 --set chaos.delay={slow} --out run"));
        let told = |steps: usize| metrics(&place, "run").len() >= steps;
        wait_for("three steps", || told(3));
        kill(ranks_of(&running)[2]);
        wait_for("another three steps", || told(8));
        let joined = start(&place, "join run");
        has_ended_well(strategy, running);
        has_ended_well(strategy, joined);
        let summary = fs::read(place.run("run").join("summary.json")).expect("reads");
        let summary: Value = serde_json::from_slice(&summary).expect("is JSON");
        let changes = summary["changes"].as_array().expect("changes");
        assert!(changes.len() == 2 && changes[0]["left"][0] == 2, "{strategy}: {changes:?}");
        assert_eq!(changes[1]["came"].as_array().map(Vec::len), Some(1), "{strategy}: {changes:?}");
        let log = fs::read_to_string(place.run("run").join("logs/rank-3.log")).expect("reads");
        assert!(log.contains("GPU 2, "), "it takes the GPU of the lost rank: {log}");
        let [whole, run] = ["whole", "run"].map(|run| column(&place.run(run), "loss"));
        assert_eq!(whole.len(), run.len(), "{strategy}: {:?}", metrics(&place, "run"));
        let changed: Vec<u64> = changes.iter().filter_map(|change| change["after_step"].as_u64()).collect();
        for (step, (a, b)) in (1_u64..).zip(whole.iter().zip(&run)) {
            // Of the step in which a rank was lost its part of the loss may be missing.
            let near = if changed.contains(&step) || changed.contains(&(step - 1)) { 0.2 } else { 1e-4 };
            assert!((a - b).abs() <= near * a.abs(), "{strategy}, step {step}: {b} against {a}; {changes:?}");
        }
        let [one, run] = ["one", "run"].map(|run| place.succeed(&format!("hash {run} --state")));
        assert_eq!(one, run, "{strategy}: {changes:?}");
        for run in ["whole", "one", "run"] {
            fs::remove_dir_all(place.run(run)).expect("removes");
        }
    }
}

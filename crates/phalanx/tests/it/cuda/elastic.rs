//! Worlds of ranks with a GPU each that change while training goes on.

use std::fs;

use super::place::{DEVICES, Place, column, json};
use crate::harness::processes::kill;
use crate::harness::results::{lines, log};
use crate::harness::{Running, delayed};

/// GPUs of the machine: one more than ranks in the end.
const GPUS: &str = "4";

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
        let command = |line: &str| {
            let mut command = place.command(line);
            command.env(DEVICES, GPUS);
            command
        };
        let line = format!("{line} --ranks 3 --elastic 2:3 {} --out run", delayed(3, 25));
        let mut running = Running::spawn(place.path("run"), command(&line));
        running.wait_for_step(3);
        kill(running.ranks()[2]);
        running.wait_for_step(8);
        running.add(command("join run"));
        running.succeed();
        let summary = json(&place.path("run").join("summary.json"));
        let changes = summary["changes"].as_array().expect("changes");
        assert!(changes.len() == 2 && changes[0]["left"][0] == 2, "{strategy}: {changes:?}");
        assert_eq!(changes[1]["came"].as_array().map(Vec::len), Some(1), "{strategy}: {changes:?}");
        let log = log(&place.path("run"), 3);
        assert!(log.contains("GPU 2, "), "it takes the GPU of the lost rank: {log}");
        let [whole, run] = ["whole", "run"].map(|run| column(&place.path(run), "loss"));
        assert_eq!(whole.len(), run.len(), "{strategy}: {:?}", lines(&place.path("run")));
        let changed: Vec<u64> = changes.iter().filter_map(|change| change["after_step"].as_u64()).collect();
        for (step, (a, b)) in (1_u64..).zip(whole.iter().zip(&run)) {
            // Of the step in which a rank was lost its part of the loss may be missing.
            let near = if changed.contains(&step) || changed.contains(&(step - 1)) { 0.2 } else { 1e-4 };
            assert!((a - b).abs() <= near * a.abs(), "{strategy}, step {step}: {b} against {a}; {changes:?}");
        }
        let [one, run] = ["one", "run"].map(|run| place.succeed(&format!("hash {run} --state")));
        assert_eq!(one, run, "{strategy}: {changes:?}");
        for run in ["whole", "one", "run"] {
            fs::remove_dir_all(place.path(run)).expect("removes");
        }
    }
}

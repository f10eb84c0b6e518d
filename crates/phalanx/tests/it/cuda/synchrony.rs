//! Ranks with a GPU each that do not take every step together.

use std::fs;

use super::place::{DEVICES, Place, agree_on, column, goes_on_bit_for_bit, json, losses};
use crate::harness::Running;
use crate::harness::processes::kill;

/// Returns the settings of a run on 2 GPUs.
fn on_two(line: &str) -> String {
    format!(
        "train tiny --set train.ranks=2 --set train.threads=1 --set log.every=1 --set train.device=cuda {line}"
    )
}

/// A run of twelve steps that is evaluated after every four knows the test split better and better.
fn assert_learns(place: &Place, run: &str) {
    let (steps, tests) = (column(&place.path(run), "loss"), column(&place.path(run), "test_loss"));
    assert_eq!((steps.len(), tests.len()), (12, 3), "{run}");
    assert!(tests[2] < 0.98 * tests[0], "{run}: {tests:?}");
}

/// One of each kind: ranks that meet from time to time, neighbours, and servers of their own, which have no GPU.
#[test]
fn ranks_that_do_not_take_every_step_together_train_as_on_the_processor() {
    let Some(place) = Place::anywhere() else { return };
    let streaming = "--strategy diloco --set sync.every=2 --set sync.fragments=2 --set sync.overlap=1";
    let servers = "--strategy ps-bsp --set sync.servers=1 --set train.ema=0.9 --set train.clip_norm=1";
    for settings in [streaming, "--strategy d-psgd", servers] {
        agree_on(&place, 2, &format!("tiny --steps 5 {settings}"), 1e-4);
    }
}

#[test]
#[ignore = "further trainings take minutes in fibres: cargo xtask test --full"]
fn ranks_that_meet_from_time_to_time_train_as_on_the_processor() {
    let Some(place) = Place::anywhere() else { return };
    let averages = "--set train.ema=0.9 --set train.clip_norm=1 --set eval.every=3";
    agree_on(
        &place,
        2,
        &format!("tiny --steps 5 --strategy post-local-sgd --set sync.start=2 --set sync.every=2 {averages}"),
        1e-4,
    );
    let streaming = "--strategy diloco --set sync.every=2 --set sync.fragments=2 --set sync.overlap=1";
    agree_on(&place, 4, &format!("tiny --steps 5 {streaming}"), 1e-4);
    agree_on(
        &place,
        2,
        "tiny --steps 5 --strategy local-sgd --set sync.every=2 --set train.precision=bf16",
        2e-2,
    );
    if !place.has(2) {
        return;
    }
    // Rounded sums, of which one is under way when the run is interrupted.
    goes_on_bit_for_bit(&place, &on_two(&format!("{streaming} --set sync.outer_bf16=true")));
}

#[test]
#[ignore = "further trainings take minutes in fibres: cargo xtask test --full"]
fn neighbours_average_what_gpus_compute() {
    let Some(place) = Place::anywhere() else { return };
    let averages = "--set train.ema=0.9 --set eval.every=3";
    agree_on(&place, 2, &format!("tiny --steps 5 --strategy d-psgd {averages}"), 1e-4);
    agree_on(&place, 4, "tiny --steps 5 --strategy sgp --set sync.topology=exponential", 1e-4);
    agree_on(&place, 2, "tiny --steps 5 --strategy d-psgd --set train.precision=bf16", 2e-2);
    if !place.has(2) {
        return;
    }
    goes_on_bit_for_bit(&place, &on_two("--strategy sgp"));
    // Whose average comes when is not the same in every run: it learns, and goes on from what was saved.
    let random = on_two("--strategy ad-psgd --set optim.lr=0.002 --set eval.every=4");
    place.succeed(&format!("{random} --steps 8 --out random"));
    place.succeed(&format!("{random} --steps 12 --out random --resume"));
    assert_learns(&place, "random");
}

#[test]
#[ignore = "further trainings take minutes in fibres: cargo xtask test --full"]
fn servers_update_what_gpus_compute_with() {
    let Some(place) = Place::anywhere() else { return };
    let averages = "--set train.ema=0.9 --set train.clip_norm=1 --set eval.every=3";
    // Servers of their own have no GPU.
    let apart = "--strategy ps-bsp --set sync.servers=1";
    agree_on(&place, 2, &format!("tiny --steps 5 {apart} {averages}"), 1e-4);
    agree_on(&place, 2, "tiny --steps 5 --strategy ps-bsp --set train.precision=bf16", 2e-2);
    agree_on(
        &place,
        2,
        "tiny --steps 5 --strategy ps-bsp --set codec.kind=int8 --set codec.weights=int8",
        1e-3,
    );
    if !place.has(2) {
        return;
    }
    goes_on_bit_for_bit(&place, &on_two("--strategy ps-bsp --set train.accumulate=2"));
    // `whole` has pushed and pulled; here gradients are summed, and every GPU updates.
    place.succeed(&on_two("--strategy ddp --set train.accumulate=2 --steps 5 --out summed"));
    let [pulled, summed] = ["whole", "summed"].map(|run| losses(&place.path(run)));
    for (a, b) in summed.iter().zip(&pulled) {
        assert!((a - b).abs() <= 1e-5 * a.abs(), "{summed:?} and {pulled:?}");
    }
    for strategy in ["ps-ssp --set train.clip_norm=1", "ps-asp --set sync.compensation=0.1"] {
        let line =
            format!("--strategy {strategy} --set optim.lr=0.002 --set eval.every=4 --steps 12 --out apart");
        place.succeed(&on_two(&line));
        assert_learns(&place, "apart");
        fs::remove_dir_all(place.path("apart")).expect("removes");
    }
}

#[test]
fn those_who_are_left_go_on_with_their_gpus() {
    let Some(place) = Place::new() else { return };
    for (strategy, ranks) in [("d-psgd", 3), ("ps-asp --set sync.servers=1", 2)] {
        let small =
            "--set model.kind=mlp --set model.mlp_width=24 --set model.mlp_depth=1 --set model.image_size=8";
        let slow = (0..ranks).map(|rank| format!("rank={rank},ms=20")).collect::<Vec<_>>().join(";");
        let line = format!(
            "train tiny --steps 30 {small} --set train.ranks={ranks} --set train.threads=1 --set log.every=1 --set eval.every=10 \
             --set train.device=cuda --set sync.min_workers=1 --set train.global_batch=12 --strategy {strategy} --out left \
             --set chaos.delay={slow}"
        );
        let mut command = place.command(&line);
        command.env(DEVICES, ranks.to_string());
        let mut running = Running::spawn(place.path("left"), command);
        running.wait_for_step(3);
        // The last worker; a server comes after it.
        kill(running.ranks()[ranks - 1]);
        running.succeed();
        let summary = json(&place.path("left").join("summary.json"));
        assert_eq!(summary["dead"][0]["rank"].as_u64(), Some(ranks as u64 - 1), "{strategy}");
        let seen = column(&place.path("left"), "loss");
        assert!(seen.len() == 30 && seen.iter().all(|loss| loss.is_finite()), "{strategy}: {seen:?}");
        fs::remove_dir_all(place.path("left")).expect("removes");
    }
}

#[test]
fn what_ranks_that_are_apart_cannot_do_on_gpus_is_refused_by_name() {
    let Some(place) = Place::anywhere() else { return };
    for (strategy, setting, why) in [
        ("local-sgd", "train.graphs=true", "local-sgd computes other things from step to step"),
        ("ps-asp", "train.offload=parameters", "ps-asp has parameters where they are computed with"),
    ] {
        let line = format!("--strategy {strategy} --set {setting} --steps 1 --out refused");
        let error = place.fail(&on_two(&line));
        assert!(error.contains(why), "{error}");
    }
}

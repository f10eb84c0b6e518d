//! When a run is evaluated, which checkpoint is its best, and how it ends when evaluations do not improve.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::harness::results::{json, lines, saved, summary};
use crate::harness::{MLP, Place, side_by_side};

/// The steps of the evaluations of a run.
fn evaluated(run: &Path) -> Vec<u64> {
    let lines = lines(run).into_iter().filter(|line| line.number("test_loss").is_some());
    lines.map(|line| line.step()).collect()
}

#[test]
fn a_run_is_evaluated_and_saved_after_each_epoch_unless_it_says_steps() {
    let place = Place::new();
    // An epoch has five steps.
    for (name, sets, tests, checkpoints) in [
        ("default", "", &[5, 10, 12][..], &[5, 10, 12][..]),
        ("epochs", "--set eval.every_epochs=2 --set checkpoint.every_epochs=0", &[10, 12], &[12]),
        ("steps", "--set eval.every=4 --set checkpoint.every=7", &[4, 8, 12], &[7, 12]),
        ("short", "--set train.steps=3", &[3], &[3]),
    ] {
        let line = format!("train tiny {MLP} --ranks 1 --set train.steps=12 --set checkpoint.keep=9 {sets}");
        place.succeed(&format!("{line} --out {name}"));
        let run = place.path(name);
        assert_eq!((&evaluated(&run)[..], &saved(&run)[..]), (tests, checkpoints), "{name}");
    }
    let said = place.fail_with(2, "train tiny --set eval.every=5 --set eval.every_epochs=2 --out both");
    assert!(said.contains("eval.every = 5 and eval.every_epochs = 2 are both set"), "{said}");
}

#[test]
fn the_best_checkpoint_is_kept_and_used() {
    let place = Place::new();
    // The loss falls, so the highest one is that of the first evaluation.
    let line = format!(
        "train tiny {MLP} --set train.logical_ranks=3 --set train.steps=14 --set eval.every=3 --set optim.lr=0.01 \
         --set checkpoint.keep=1 --set checkpoint.every=4 --set checkpoint.best=max:test_loss --set train.ema=0.5"
    );
    let shown = place.succeed(&format!("{line} --ranks 1 --out run"));
    let run = place.path("run");
    assert!(shown.contains("step  3/14") && shown.contains("(the best so far)"), "{shown}");
    assert!(shown.contains("eval run --best") && !shown.contains("phalanx sample"), "{shown}");
    let of_step = |step: u64| {
        let line = lines(&run).into_iter().find(|line| line.step() == step).expect("a line");
        line.number("test_loss").expect("evaluated")
    };
    let best = summary(&run).best.expect("compared");
    assert_eq!((best.measure.as_str(), best.step, best.value), ("test_loss", 3, of_step(3)));
    assert!(of_step(3) > of_step(14), "the loss falls");
    assert_eq!(saved(&run), [3, 14]);
    let mark = json(&run.join("checkpoints/best.json"));
    assert_eq!((mark["step"].as_u64(), mark["value"].as_f64()), (Some(3), Some(best.value)));
    let evaluated = |options: &str| -> Value {
        serde_json::from_str(&place.succeed(&format!("eval run --json {options}"))).expect("is JSON")
    };
    for (options, step) in [("--best", 3), ("", 14)] {
        let found = evaluated(options);
        let loss = found["loss"].as_f64().expect("a number");
        assert_eq!(found["step"], step);
        assert!((loss - of_step(step)).abs() < 1e-6 * loss, "{options}: {loss} {}", of_step(step));
    }
    place.succeed("export run --best --out best.safetensors");
    place.succeed("export run/checkpoints/step-00000003 --out third.safetensors");
    let read = |name: &str| fs::read(place.path(name)).expect("reads");
    assert!(read("best.safetensors") == read("third.safetensors"));
    // Other numbers of ranks, and a run in two parts, have the same weights, and evaluate them in other batches.
    let is_same = |name: &str| {
        let found = summary(&place.path(name)).best.expect("compared");
        let close = (found.value - best.value).abs() < 1e-6 * best.value;
        assert!(
            close && (&found.measure, found.step) == (&best.measure, best.step),
            "{name}: {found:?}, {best:?}"
        );
    };
    for (name, first, second) in
        [("two", "--ranks 2", None), ("parts", "--ranks 3 --steps 7", Some("--ranks 1 --steps 0"))]
    {
        place.succeed(&format!("{line} {first} --out {name}"));
        if let Some(second) = second {
            place.succeed(&format!("train --resume --out {name} {second}"));
        }
        is_same(name);
        assert_eq!(saved(&place.path(name)), [3, 14], "{name}");
    }
    // The last step is saved before its evaluation, and marked after it.
    place.succeed(&format!("{line} --ranks 1 --set train.steps=3 --out last"));
    let last = place.path("last");
    assert_eq!((summary(&last).best.expect("compared").step, saved(&last)), (3, vec![3]));
    assert_eq!(json(&last.join("checkpoints/best.json"))["step"], 3);
    // A run can begin to compare when it is resumed: the metrics have the evaluations so far.
    place.succeed(&format!("{line} --ranks 1 --steps 9 --set checkpoint.best=\"\" --out later"));
    place.succeed("train --resume --out later --steps 0 --set checkpoint.best=max:test_loss");
    is_same("later");
    for (line, words) in [
        ("eval later --best", "later has no best checkpoint"),
        ("export run/checkpoints/step-00000003 --best --out x.safetensors", "--best is for a run"),
        ("train tiny --set checkpoint.best=test_acuracy --out x", "there is no measure `test_acuracy`"),
        (
            "train tiny --set checkpoint.best=test_accuracy --out x",
            "; the evaluation has test_loss, test_l1, test_kl",
        ),
    ] {
        let said = place.fail(line);
        assert!(said.contains(words), "{line}: {said}");
    }
}

/// Options of a run that learns nothing, so that only its first evaluation is an improvement: after step 4.
const IDLE: &str = "--set optim.lr=0 --set train.steps=60 --set eval.every=4 --set train.patience=3";

#[test]
fn a_run_without_improvement_ends_at_the_same_step_on_any_number_of_ranks() {
    let cases = [
        ("--ranks 1", None),
        ("--ranks 2 --strategy fsdp", None),
        ("--ranks 3 --strategy dp", None),
        ("--ranks 2 --strategy ps-bsp --servers 1", None),
        ("--ranks 2 --strategy local-sgd", None),
        // Stopped between two evaluations, and after one.
        ("--ranks 1 --steps 10", Some("--ranks 2 --steps 0")),
        ("--ranks 2 --steps 12", Some("--ranks 1 --steps 0")),
    ];
    side_by_side(cases, |(first, second)| {
        let place = Place::new();
        let mut shown = place.succeed(&format!("train tiny {MLP} {IDLE} {first} --out run"));
        if let Some(second) = second {
            assert!(!shown.contains("stops early"), "{first}: {shown}");
            shown = place.succeed(&format!("train --resume --out run {second}"));
        }
        let words =
            "stops early after step 16: no better test_loss in 3 evaluations (train.patience); the best is ";
        assert!(shown.contains(words) && shown.contains(" at step 4"), "{first}: {shown}");
        let run = place.path("run");
        let summary = summary(&run);
        assert_eq!((summary.status.as_str(), summary.step, summary.stopped_early), ("finished", 16, true));
        assert_eq!(saved(&run).last(), Some(&16), "{first}");
        let shown = place.succeed("train --resume --out run");
        assert!(shown.contains("nothing to do: stopped early after step 16"), "{first}: {shown}");
        place.succeed("train --resume --out run --set train.patience=5");
        assert_eq!(crate::harness::results::summary(&run).step, 24, "{first}");
    });
}

#[cfg(target_os = "linux")]
#[test]
fn evaluations_so_far_survive_the_loss_of_ranks() {
    use crate::harness::Running;
    use crate::harness::place::MLP;
    use crate::harness::processes::kill;

    let place = Place::new();
    // Rank 0 dies, and then another rank compares.
    let line = format!(
        "train tiny {MLP} {IDLE} --set train.patience=8 --set train.logical_ranks=3 --elastic 1:3 {}",
        crate::harness::delayed(3, 20)
    );
    let mut running = Running::start(&place, &format!("{line} --out run"));
    running.wait_for("two evaluations", |run| run.lines().len() >= 10);
    kill(running.ranks()[0]);
    let end = running.end();
    assert_eq!(end.code, Some(0), "{end:?}");
    let summary = summary(&place.path("run"));
    let best = summary.best.as_ref().map(|best| best.step);
    assert_eq!((summary.step, best, summary.stopped_early), (36, Some(4), true), "{end:?}");
    assert_eq!(summary.dead.len(), 1, "{end:?}");
}

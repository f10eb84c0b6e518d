//! Replicas that are compared: one whose bit has changed by itself ends the run and is named, and comparing changes nothing.

use crate::harness::results::{hashes, saved};
use crate::harness::{MLP, Place, side_by_side};

/// A training of a few steps.
fn train(line: &str) -> String {
    let further =
        "--set train.steps=8 --set optim.kind=adamw --set eval.enabled=false --set train.ema=0.9 --out run";
    format!("train tiny {MLP} {further} {line}")
}

#[test]
fn the_rank_whose_bit_has_changed_is_named_with_the_parameter() {
    side_by_side(
        [
            (
                "--ranks 3 --set chaos.flip=rank=1,step=4,param=2.weight",
                &[
                    "after step 4: rank 1 of ",
                    "other bits of `2.weight` (model) than ranks 0, 2",
                    "silent data corruption",
                ][..],
            ),
            // Nothing is compared before step 6; by then the weights of all steps have followed.
            (
                "--ranks 3 --set train.check_replicas=3 --set checkpoint.every_epochs=0 --set chaos.flip=rank=0,step=4,bit=20",
                &["after step 6: rank 0 of ", "`0.weight` (model) than ranks 1, 2", "further tensors"],
            ),
            // The checkpoint of step 5 comes before the next comparison.
            (
                "--ranks 3 --set train.check_replicas=8 --set checkpoint.every=5 --set chaos.flip=rank=0,step=4,bit=20",
                &["after step 5: rank 0 of ", "`0.weight` (model) than ranks 1, 2"],
            ),
            (
                "--ranks 2 --set chaos.flip=rank=1,step=2",
                &[
                    "after step 2: ranks 0, 1 hold different bits of `0.weight` (model)",
                    "there is no majority",
                ],
            ),
            // The shards of a group are compared with those of the others; of two there is no majority.
            (
                "--ranks 4 --strategy hsdp --set comm.link=10Gbit,1us --set comm.hosts=2 --set chaos.flip=rank=3,step=2",
                &["after step 2: ranks 1, 3 hold different bits of"],
            ),
        ],
        |(line, told)| {
            let place = Place::new();
            let every = if line.contains("check_replicas") { "" } else { "--set train.check_replicas=2" };
            let said = place.fail(&train(&format!("{line} {every}")));
            for words in told {
                assert!(said.contains(words), "{line}: {words:?} is not in {said}");
            }
            let saved = saved(&place.path("run"));
            assert!(saved.is_empty(), "{line}: nothing of it is saved, not {saved:?}: {said}");
        },
    );
}

#[test]
fn comparing_changes_no_bit() {
    let hashes = |line: &str| {
        let place = Place::new();
        place.succeed(&train(line));
        hashes(&place.path("run"))
    };
    side_by_side(
        ["--ranks 3 --strategy ddp", "--ranks 2 --strategy zero2", "--ranks 4 --strategy hsdp"],
        |line| {
            assert_eq!(hashes(line), hashes(&format!("{line} --set train.check_replicas=1")), "{line}");
        },
    );
}

#[test]
fn what_has_no_replicas_is_refused() {
    let place = Place::new();
    for (line, told) in [
        ("--ranks 2 --strategy fsdp", "hsdp has some"),
        ("--ranks 2 --strategy local-sgd", "differ between meetings"),
    ] {
        let said = place.fail(&train(&format!("{line} --set train.check_replicas=5")));
        assert!(said.contains("train.check_replicas = 5") && said.contains(told), "{said}");
    }
}

//! Replicas that are compared: one whose bit has changed by itself ends the run and is named, and comparing changes nothing.

use std::path::Path;
use std::process::{Command, Stdio};

use phalanx_checkpoint::Checkpoint;

/// A model whose steps take milliseconds.
const SMALL: &str = "--set model.kind=mlp --set model.mlp_width=16 --set model.mlp_depth=1 --set model.image_size=8 --set optim.kind=adamw \
    --set train.global_batch=12 --set train.threads=1 --set train.steps=8 --set log.every=1 --set data.images=60 --set data.test_images=12 \
    --set sample.rows=1 --set sample.columns=1 --set eval.enabled=false --set train.ema=0.9";

/// Returns true if a run ended well, and its output.
fn train(place: &Path, line: &str) -> (bool, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    program.args(format!("train tiny {SMALL} {line} --out run").split_whitespace());
    let output = program.current_dir(place).stdout(Stdio::null()).output().expect("phalanx runs");
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn the_rank_whose_bit_has_changed_is_named_with_the_parameter() {
    for (line, told) in [
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
            "--ranks 3 --set train.check_replicas=3 --set chaos.flip=rank=0,step=4,bit=20",
            &["after step 6: rank 0 of ", "`0.weight` (model) than ranks 1, 2", "further tensors"],
        ),
        (
            "--ranks 2 --set chaos.flip=rank=1,step=2",
            &["after step 2: ranks 0, 1 hold different bits of `0.weight` (model)", "there is no majority"],
        ),
        // The shards of a group are compared with those of the others; of two there is no majority.
        (
            "--ranks 4 --strategy hsdp --set comm.link=10Gbit,1us --set comm.hosts=2 --set chaos.flip=rank=3,step=2",
            &["after step 2: ranks 1, 3 hold different bits of"],
        ),
    ] {
        let place = tempfile::tempdir().expect("a folder");
        let every = if line.contains("check_replicas") { "" } else { "--set train.check_replicas=2" };
        let (ended_well, said) = train(place.path(), &format!("{line} {every}"));
        assert!(!ended_well, "{line}");
        for words in told {
            assert!(said.contains(words), "{line}: {words:?} is not in {said}");
        }
        assert_eq!(Checkpoint::list(&place.path().join("run/checkpoints")), [], "nothing of it is saved");
    }
}

#[test]
fn comparing_changes_no_bit() {
    let hashes = |line: &str| {
        let place = tempfile::tempdir().expect("a folder");
        let (ended_well, said) = train(place.path(), line);
        assert!(ended_well, "{line}: {said}");
        let (newest, damaged) = Checkpoint::newest(&place.path().join("run/checkpoints"));
        assert!(damaged.is_empty(), "{damaged:?}");
        newest.expect("a checkpoint").hashes().expect("in the index")
    };
    for line in ["--ranks 3 --strategy ddp", "--ranks 2 --strategy zero2", "--ranks 4 --strategy hsdp"] {
        assert_eq!(hashes(line), hashes(&format!("{line} --set train.check_replicas=1")), "{line}");
    }
}

#[test]
fn what_has_no_replicas_is_refused() {
    let place = tempfile::tempdir().expect("a folder");
    for (line, told) in [
        ("--ranks 2 --strategy fsdp", "hsdp has some"),
        ("--ranks 2 --strategy local-sgd", "differ between meetings"),
    ] {
        let (ended_well, said) = train(place.path(), &format!("{line} --set train.check_replicas=5"));
        assert!(!ended_well && said.contains("train.check_replicas = 5") && said.contains(told), "{said}");
    }
}

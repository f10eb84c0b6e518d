//! Worlds that change while a training goes on: ranks that are killed, that leave and that come, and runs that end in the weights of
//! one whose world never changed.

use crate::victims;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use phalanx_checkpoint::{Checkpoint, Hashes};
use phalanx_run::{Line, RunState, Summary, read_metrics};
use victims::{kill, ranks_of};

/// A model whose steps take milliseconds, on ranks that are held up a little in each step.
const MLP: &str = "--set model.kind=mlp --set model.mlp_width=24 --set model.mlp_depth=1 --set model.image_size=8 --set \
    optim.kind=adamw --set optim.lr=0.01 --set train.ema=0.8 --set train.clip_norm=1";

const SMALL: &str = "--set train.global_batch=12 --set train.threads=1 --set log.every=1 --set data.images=60 --set data.test_images=12 \
    --set sample.rows=1 --set sample.columns=1 --set eval.batch=4 --set log.usage_seconds=0";

/// A run of the program, with its launcher and the processes that have joined.
struct Running {
    place: PathBuf,
    launcher: Child,
    joined: Vec<Child>,
}

fn phalanx(place: &Path, line: &str) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    program.args(line.split_whitespace()).current_dir(place).stdout(Stdio::null()).stderr(Stdio::piped());
    program
}

/// Delays each of `ranks` ranks in every step.
fn held_up(ranks: usize, ms: usize) -> String {
    let delays: Vec<String> = (0..ranks).map(|rank| format!("rank={rank},ms={ms}")).collect();
    format!("--set chaos.delay={}", delays.join(";"))
}

impl Running {
    fn start(place: &Path, line: &str) -> Self {
        let launcher =
            phalanx(place, &format!("train tiny {SMALL} {line} --out run")).spawn().expect("phalanx runs");
        Self { place: place.join("run"), launcher, joined: Vec::new() }
    }

    /// Has one more process join.
    fn join(&mut self) {
        let place = self.place.parent().expect("a folder");
        self.joined.push(phalanx(place, "join run").spawn().expect("phalanx runs"));
    }

    /// The processes that the launcher has started as ranks and that live, in order.
    fn ranks(&self) -> Vec<u32> {
        ranks_of(&self.launcher)
    }

    /// The last step that the run has told of.
    fn step(&self) -> u64 {
        lines_of(&self.place).last().map_or(0, Line::step)
    }

    /// Ranks that train, as the run says itself.
    fn size(&self) -> usize {
        RunState::read(&self.place.join("state.json")).map_or(0, |state| state.world_size)
    }

    fn wait_for(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            if let Some(ended) = self.launcher.try_wait().expect("it is there") {
                let logs = logs_of(&self.place);
                panic!("the run ended before {what}: {ended:?}\n{logs}");
            }
            assert!(
                begun.elapsed() < Duration::from_secs(120),
                "no {what} within two minutes\n{}",
                logs_of(&self.place)
            );
            std::thread::sleep(Duration::from_millis(3));
        }
    }

    /// Returns true if it ended well, and its output.
    fn end(self) -> (bool, String) {
        for mut joined in self.joined {
            let ended = joined.wait().expect("it ends");
            assert!(ended.success(), "{ended:?}\n{}", logs_of(&self.place));
        }
        let output = self.launcher.wait_with_output().expect("phalanx ends");
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    fn end_well(self) -> Summary {
        let place = self.place.clone();
        let (well, said) = self.end();
        assert!(well, "{said}\n{}", logs_of(&place));
        Summary::read(&place.join("summary.json")).expect("a summary")
    }
}

/// Tells a process to end.
fn terminate(id: u32) {
    assert!(Command::new("kill").args(["-TERM", &id.to_string()]).status().expect("kill runs").success());
}

fn lines_of(run: &Path) -> Vec<Line> {
    read_metrics(&run.join("metrics.jsonl")).unwrap_or_default()
}

fn logs_of(run: &Path) -> String {
    let mut all = String::new();
    for rank in 0..8 {
        if let Ok(log) = std::fs::read_to_string(run.join(format!("logs/rank-{rank}.log"))) {
            all.push_str(&format!("--- rank {rank}\n{log}\n"));
        }
    }
    all
}

fn hashes(run: &Path) -> Hashes {
    let (newest, damaged) = Checkpoint::newest(&run.join("checkpoints"));
    assert!(damaged.is_empty(), "{damaged:?}");
    newest.expect("a checkpoint").hashes().expect("in the index")
}

/// Returns the outcome of a run whose world never changes: with logical ranks the same on any number of ranks.
fn undisturbed(line: &str) -> (Hashes, Vec<(u64, f64)>) {
    let place = tempfile::tempdir().expect("a folder");
    let output = phalanx(place.path(), &format!("train tiny {SMALL} {line} --ranks 1 --out run")).output();
    let output = output.expect("phalanx runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (hashes(&place.path().join("run")), losses(&place.path().join("run")))
}

fn losses(run: &Path) -> Vec<(u64, f64)> {
    lines_of(run).iter().map(|line| (line.step(), line.number("loss").unwrap_or(f64::NAN))).collect()
}

/// Every step is told once, and nearly all losses are those of the undisturbed run to the bit: of a step in which a rank was lost
/// its part may be missing.
fn compare_losses(run: &Path, expected: &[(u64, f64)], changes: usize) {
    let found = losses(run);
    let steps = |losses: &[(u64, f64)]| losses.iter().map(|(step, _)| *step).collect::<Vec<_>>();
    assert_eq!(steps(&found), steps(expected), "every step is told once");
    let other = found.iter().zip(expected).filter(|(found, expected)| found.1 != expected.1).count();
    assert!(other <= changes, "{other} losses differ:\n{found:?}\n{expected:?}");
}

#[test]
fn any_rank_is_killed_and_the_others_end_in_the_same_weights() {
    let line = format!(
        "{MLP} --set train.logical_ranks=4 --set train.steps=60 --set eval.every=20 --set checkpoint.every=15"
    );
    let (expected, curve) = undisturbed(&line);
    // Who is killed, one after the other, and after how many milliseconds in the step that was told last.
    for (victims, pause) in [(&[2][..], 7), (&[0, 0], 13), (&[1, 1, 1], 2)] {
        let place = tempfile::tempdir().expect("a folder");
        let line = format!("{line} --elastic 1:4 {}", held_up(4, 12));
        let mut running = Running::start(place.path(), &line);
        for (at, victim) in victims.iter().enumerate() {
            let after = 6 + 14 * at as u64;
            running.wait_for("more steps", |run| run.step() >= after);
            std::thread::sleep(Duration::from_millis(pause));
            kill(running.ranks()[*victim]);
        }
        let run = running.place.clone();
        let told = running.end_well();
        assert_eq!(hashes(&run), expected, "{victims:?}");
        compare_losses(&run, &curve, victims.len());
        assert_eq!((told.step, told.world_size), (60, 4 - victims.len()), "{victims:?}");
        assert_eq!((told.dead.len(), told.changes.len()), (victims.len(), victims.len()), "{victims:?}");
        for change in &told.changes {
            assert!(change.left.len() == 1 && change.came.is_empty(), "{change:?}");
            // Nothing is waited for but the others.
            assert!(change.seconds.is_some_and(|seconds| seconds < 8.0), "{change:?}");
        }
        let lines = lines_of(&run);
        let recovered = lines.iter().filter_map(|line| line.number("recovery_seconds")).fold(0.0, f64::max);
        let longest = told.changes.iter().filter_map(|change| change.seconds).fold(0.0, f64::max);
        // If rank 0 is lost before it has written the line, no other rank has it.
        assert!(recovered == longest || victims.contains(&0), "{recovered} {longest}");
        for dead in &told.dead {
            assert!(dead.cause.as_ref().is_some_and(|cause| cause.contains("signal 9")), "{dead:?}");
        }
        let tested: Vec<u64> = lines_of(&run)
            .iter()
            .filter(|line| line.number("test_accuracy").or(line.number("test_loss")).is_some())
            .map(Line::step)
            .collect();
        assert_eq!(tested, [20, 40, 60], "{victims:?}");
    }
}

/// With statistics of whole batches ranks wait for each other within ops too, forward and backward.
#[test]
fn statistics_of_batch_norm_outlive_ranks() {
    let model = "--set model.kind=resnet18 --set model.width=4 --set model.image_size=32 --set optim.kind=sgd --set \
        optim.lr=0.05 --set train.logical_ranks=3 --set train.steps=8 --set eval.enabled=false";
    for (sync, victim, ms, strategy) in [
        (false, 0, 60, "ddp"),
        (true, 1, 0, "ddp"),
        (true, 0, 0, "ddp"),
        (true, 2, 0, "fsdp --set elastic.redundancy=1"),
    ] {
        let case = format!("{sync} {victim} {strategy}");
        let line = format!("{model} --set model.sync_batch_norm={sync}");
        let (expected, _) = undisturbed(&line);
        let place = tempfile::tempdir().expect("a folder");
        let line = format!("{line} --strategy {strategy} --elastic 2:3 {}", held_up(3, ms));
        let mut running = Running::start(place.path(), &line);
        running.wait_for("step 3", |run| run.step() >= 3);
        std::thread::sleep(Duration::from_millis(30));
        kill(running.ranks()[victim]);
        let run = running.place.clone();
        let told = running.end_well();
        assert_eq!((told.world_size, told.dead[0].rank), (2, victim), "{case}");
        assert_eq!(hashes(&run), expected, "{case}");
    }
}

#[test]
fn without_logical_ranks_no_sample_is_lost_or_seen_twice() {
    let line = format!("{MLP} --set train.steps=50 --set eval.enabled=false");
    let (_, curve) = undisturbed(&line);
    let place = tempfile::tempdir().expect("a folder");
    let mut running = Running::start(place.path(), &format!("{line} --elastic 2:3 {}", held_up(3, 10)));
    running.wait_for("step 9", |run| run.step() >= 9);
    kill(running.ranks()[1]);
    let run = running.place.clone();
    let told = running.end_well();
    assert_eq!((told.step, told.world_size, told.dead.len()), (50, 2, 1));
    let found = losses(&run);
    // Sums over other ranks are rounded otherwise; other samples would show in the first digits.
    let other =
        found.iter().zip(&curve).filter(|(found, expected)| (found.1 - expected.1).abs() > 1e-3 * expected.1);
    assert_eq!(found.len(), curve.len());
    assert!(other.count() <= 1, "{found:?}\n{curve:?}");
    assert!(found[49].1 < 0.9 * found[0].1, "{found:?}");
}

#[test]
fn ranks_leave_and_others_come() {
    let line = format!("{MLP} --set train.logical_ranks=4 --set train.steps=150");
    let (expected, curve) = undisturbed(&line);
    // Four, three as one is told to go, four as one comes in its place.
    let place = tempfile::tempdir().expect("a folder");
    let mut running = Running::start(place.path(), &format!("{line} --elastic 2:4 {}", held_up(4, 12)));
    running.wait_for("step 8", |run| run.step() >= 8);
    terminate(running.ranks()[0]);
    running.wait_for("three ranks", |run| run.size() == 3);
    let before = running.step();
    running.wait_for("steps of three", |run| run.step() >= before + 3);
    running.join();
    running.wait_for("four ranks", |run| run.size() == 4);
    let run = running.place.clone();
    let told = running.end_well();
    assert_eq!(hashes(&run), expected);
    // Who leaves does so between two steps, so that all losses are known.
    compare_losses(&run, &curve, 0);
    assert_eq!(told.world_size, 4);
    let changes: Vec<_> =
        told.changes.iter().map(|change| (change.left.clone(), change.came.clone())).collect();
    assert_eq!(changes, [(vec![0], vec![]), (vec![], vec![4])]);
    assert!(told.changes[1].bytes > 0, "what has come has got its state from the others");
}

/// A run that listens beyond its own host says to those who come where that is.
#[cfg(target_os = "linux")]
#[test]
fn who_joins_is_told_an_address_that_it_can_reach() {
    for (interface, same) in [("127.0.0.5", true), ("127.0.0.0/8", true), ("0.0.0.0", false)] {
        let place = tempfile::tempdir().expect("a folder");
        let line = format!(
            "train tiny {SMALL} {MLP} --set train.steps=60 --ranks 2 --elastic 1:3 {} --out run",
            held_up(2, 30)
        );
        let launcher = phalanx(place.path(), &line).env("PHALANX_INTERFACE", interface).spawn();
        let launcher = launcher.expect("phalanx runs");
        let mut running = Running { place: place.path().join("run"), launcher, joined: Vec::new() };
        running.wait_for("step 3", |run| run.step() >= 3);
        running.join();
        running.wait_for("an invitation", |run| run.place.join("joins/2/invitation.json").exists());
        let invitation = std::fs::read(running.place.join("joins/2/invitation.json")).expect("it is there");
        let invitation: serde_json::Value = serde_json::from_slice(&invitation).expect("sound");
        let address: std::net::IpAddr =
            invitation["address"].as_str().unwrap_or_default().parse().expect("one");
        assert!(!address.is_unspecified(), "{interface}: {invitation}");
        assert!(
            !same || address.is_loopback() && (address.to_string() == interface || interface.contains('/'))
        );
        let told = running.end_well();
        assert!(told.changes.iter().any(|change| !change.came.is_empty()), "{interface}: {told:?}");
    }
}

#[test]
fn two_become_four_and_a_fifth_waits() {
    let line = format!("{MLP} --set train.logical_ranks=4 --set train.steps=260");
    let (expected, curve) = undisturbed(&line);
    let place = tempfile::tempdir().expect("a folder");
    let line = format!("{line} --ranks 2 --elastic 1:4 {}", held_up(2, 12));
    let mut running = Running::start(place.path(), &line);
    running.wait_for("step 2", |run| run.step() >= 2);
    (0..3).for_each(|_| running.join());
    running.wait_for("four ranks", |run| run.size() == 4);
    // One dies, and the waiting spare takes its place.
    let before = running.step();
    running.wait_for("steps of four", |run| run.step() >= before + 5);
    kill(running.ranks()[1]);
    running.wait_for("the spare", |run| {
        run.step() < 260
            && (2..5).all(|number| {
                std::fs::read_to_string(run.place.join(format!("logs/rank-{number}.log")))
                    .is_ok_and(|log| log.contains("takes part from step"))
            })
    });
    let run = running.place.clone();
    let told = running.end_well();
    assert_eq!(hashes(&run), expected);
    compare_losses(&run, &curve, 1);
    assert_eq!(told.world_size, 4, "{:?}", told.changes);
}

#[test]
fn the_launcher_starts_others_in_place_of_those_that_die() {
    let line = format!("{MLP} --set train.logical_ranks=4 --set train.steps=200");
    let (expected, curve) = undisturbed(&line);
    let place = tempfile::tempdir().expect("a folder");
    let line = format!("{line} --elastic 2:4 --set elastic.respawn=1 {}", held_up(4, 12));
    let mut running = Running::start(place.path(), &line);
    running.wait_for("step 5", |run| run.step() >= 5);
    let ranks = running.ranks();
    kill(ranks[3]);
    running.wait_for("three ranks", |run| run.size() == 3);
    running.wait_for("four ranks", |run| run.size() == 4);
    // There is one replacement, and no second one.
    kill(ranks[1]);
    let run = running.place.clone();
    let told = running.end_well();
    assert_eq!(hashes(&run), expected);
    compare_losses(&run, &curve, 2);
    let changes: Vec<_> =
        told.changes.iter().map(|change| (change.left.clone(), change.came.clone())).collect();
    assert_eq!(changes, [(vec![3], vec![]), (vec![], vec![4]), (vec![1], vec![])]);
}

#[test]
fn shards_of_the_lost_come_from_neighbours_or_replicas() {
    let line = format!("{MLP} --set train.logical_ranks=4 --set train.steps=60 --set eval.every=20");
    let (expected, curve) = undisturbed(&line);
    for (strategy, set, victims) in [
        ("fsdp", "--set elastic.redundancy=1", &[1, 0][..]),
        ("zero1", "--set elastic.redundancy=1", &[0]),
        ("zero2", "--set elastic.redundancy=1", &[2]),
        ("hsdp", "", &[3]),
    ] {
        let place = tempfile::tempdir().expect("a folder");
        let line = format!("{line} --strategy {strategy} {set} --elastic 2:4 {}", held_up(4, 12));
        let mut running = Running::start(place.path(), &line);
        for (at, victim) in victims.iter().enumerate() {
            let after = 7 + 16 * at as u64;
            running.wait_for("more steps", |run| run.step() >= after);
            std::thread::sleep(Duration::from_millis(9));
            kill(running.ranks()[*victim]);
        }
        let run = running.place.clone();
        let told = running.end_well();
        assert_eq!(hashes(&run), expected, "{strategy}");
        compare_losses(&run, &curve, victims.len());
        assert_eq!((told.world_size, told.changes.len()), (4 - victims.len(), victims.len()), "{strategy}");
        assert!(told.changes.iter().all(|change| change.bytes > 0), "{strategy}: {:?}", told.changes);
        assert!(!logs_of(&run).contains("go back to the checkpoint"), "{strategy}");
    }
}

#[test]
fn ranks_with_shards_leave_and_come() {
    let line = format!("{MLP} --set train.logical_ranks=4 --set train.steps=150");
    let (expected, curve) = undisturbed(&line);
    let place = tempfile::tempdir().expect("a folder");
    let line = format!("{line} --strategy fsdp --elastic 2:4 {}", held_up(4, 12));
    let mut running = Running::start(place.path(), &line);
    running.wait_for("step 8", |run| run.step() >= 8);
    // Without copies it gives its shard to the next rank before it leaves.
    terminate(running.ranks()[2]);
    running.wait_for("three ranks", |run| run.size() == 3);
    running.join();
    running.wait_for("four ranks", |run| run.size() == 4);
    let run = running.place.clone();
    let told = running.end_well();
    assert_eq!(hashes(&run), expected);
    compare_losses(&run, &curve, 0);
    assert_eq!(told.world_size, 4);
}

#[test]
fn without_a_copy_of_a_shard_all_go_back_to_the_newest_checkpoint() {
    let line = format!("{MLP} --set train.logical_ranks=3 --set train.steps=50 --set checkpoint.every=10");
    let (expected, curve) = undisturbed(&line);
    let place = tempfile::tempdir().expect("a folder");
    let mut running =
        Running::start(place.path(), &format!("{line} --strategy fsdp --elastic 1:3 {}", held_up(3, 12)));
    running.wait_for("a checkpoint", |run| {
        run.step() >= 14 && !Checkpoint::list(&run.place.join("checkpoints")).is_empty()
    });
    kill(running.ranks()[1]);
    let run = running.place.clone();
    let told = running.end_well();
    assert_eq!(hashes(&run), expected);
    compare_losses(&run, &curve, 1);
    assert_eq!(told.world_size, 2);
    assert!(logs_of(&run).contains("all go back to the checkpoint of step 10"), "{}", logs_of(&run));
}

#[test]
fn too_few_save_and_say_so() {
    let line = format!("{MLP} --set train.logical_ranks=3 --set train.steps=40 --set eval.enabled=false");
    let (expected, _) = undisturbed(&line);
    let place = tempfile::tempdir().expect("a folder");
    let mut running = Running::start(place.path(), &format!("{line} --elastic 2:2 {}", held_up(2, 15)));
    running.wait_for("step 6", |run| run.step() >= 6);
    kill(running.ranks()[0]);
    let run = running.place.clone();
    let (well, said) = running.end();
    assert!(
        !well && said.contains("elastic.min") && said.contains("rank 0 on "),
        "{said}\n{}",
        logs_of(&run)
    );
    let saved = Checkpoint::list(&run.join("checkpoints")).last().map_or(0, |found| found.0);
    assert!((6..40).contains(&saved), "{saved}");
    let output =
        phalanx(place.path(), "train --resume --out run --set chaos.delay=").output().expect("phalanx runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(hashes(&run), expected);
}

#[test]
fn what_cannot_change_is_refused_by_name() {
    let place = tempfile::tempdir().expect("a folder");
    for (line, problem) in [
        ("--elastic 2:4 --strategy d-psgd", "fsdp and hsdp do"),
        ("--elastic 2:4 --set elastic.redundancy=1", "zero1, zero2 and fsdp"),
        ("--elastic 2:4 --set train.graphs=true", "train.graphs"),
        ("--elastic 2:4 --set train.logical_ranks=3", "train.logical_ranks = 3"),
        ("--elastic 2:4 --set codec.kind=int8", "codec.kind"),
        ("--elastic 4:2", "MIN:MAX"),
        ("--ranks 5 --elastic 2:4", "train.ranks = 5"),
        ("--ranks 2 --set elastic.max=3", "set elastic.min above 0"),
    ] {
        let output = phalanx(place.path(), &format!("train tiny {line}")).output().expect("phalanx runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains(problem), "{line}: {said}");
    }
}

/// The autoencoder and a ResNet-18 with batch norm by four ranks, two, three and one come to the hashes of one rank alone.
#[test]
#[ignore = "whole networks: cargo xtask test --full"]
fn four_become_two_three_and_one() {
    let resnet = "--set model.kind=resnet18 --set model.width=4 --set model.image_size=32 --set model.sync_batch_norm=true \
        --set optim.kind=sgd --set optim.lr=0.05";
    for model in ["", resnet] {
        let line =
            format!("{model} --set train.logical_ranks=4 --set train.steps=40 --set eval.enabled=false");
        let (expected, _) = undisturbed(&line);
        for strategy in ["ddp", "fsdp --set elastic.redundancy=1"] {
            let place = tempfile::tempdir().expect("a folder");
            let line = format!("{line} --strategy {strategy} --elastic 1:4 {}", held_up(4, 60));
            let mut running = Running::start(place.path(), &line);
            for (left, came, size) in [("0,2", false, 2), ("", true, 3), ("1,3", false, 1)] {
                let before = running.step();
                running.wait_for("three steps", |run| run.step() >= before + 3);
                if came {
                    running.join();
                } else {
                    let output = phalanx(place.path(), &format!("leave run --rank {left}")).output();
                    assert!(output.expect("phalanx runs").status.success(), "{strategy}");
                }
                // Once all ranks that it has started have left, the launcher ends, even if others continue.
                if size > 1 {
                    running.wait_for("the next world", |run| run.size() == size);
                }
            }
            let run = running.place.clone();
            running.end();
            assert_eq!(hashes(&run), expected, "{model} {strategy}");
            let sizes: Vec<usize> = Summary::read(&run.join("summary.json"))
                .expect("a summary")
                .changes
                .iter()
                .map(|change| change.ranks)
                .collect();
            assert_eq!(sizes, [3, 2, 3, 2, 1], "{model} {strategy}");
        }
    }
}

//! Worlds that change while a training goes on: ranks that are killed, that leave and that come, and runs that end in the weights of
//! one whose world never changed.

use std::sync::Arc;
use std::time::Duration;

use phalanx_checkpoint::Hashes;
use phalanx_run::{Line, Request, Summary};

use crate::harness::engine::Once;
use crate::harness::processes::{kill, signal, wait_until};
use crate::harness::results::{column, hashes, json, lines, logs, losses, saved, summary};
use crate::harness::{Place, Running, SMALL, delayed, side_by_side};

/// A model whose steps take milliseconds, with averages and clipping.
const MLP: &str = "--set model.kind=mlp --set model.mlp_width=24 --set model.mlp_depth=1 --set model.image_size=8 --set \
    optim.kind=adamw --set optim.lr=0.01 --set train.ema=0.8 --set train.clip_norm=1";

/// Starts a training whose world may change.
fn start(place: &Place, line: &str) -> Running {
    Running::start(place, &format!("train tiny {SMALL} --set log.usage_seconds=0 {line} --out run"))
}

/// The outcome of a run whose world never changes: with logical ranks the same on any number of ranks.
struct Undisturbed {
    hashes: Hashes,
    losses: Vec<(u64, f64)>,
}

/// Trains by one rank, once for all tests with the same line.
fn undisturbed(line: &str) -> Arc<Undisturbed> {
    static KNOWN: Once<String, Undisturbed> = Once::new();
    KNOWN.get(line.to_owned(), || {
        let place = Place::new();
        place.succeed(&format!("train tiny {SMALL} --set log.usage_seconds=0 {line} --ranks 1 --out run"));
        let run = place.path("run");
        Undisturbed { hashes: hashes(&run), losses: losses(&run) }
    })
}

/// The ranks that left and the ranks that came, change by change.
fn changes(summary: &Summary) -> Vec<(Vec<usize>, Vec<usize>)> {
    summary.changes.iter().map(|change| (change.left.clone(), change.came.clone())).collect()
}

/// Every step is told once, and nearly all losses are those of the undisturbed run to the bit: of a step in which a rank was lost
/// its part may be missing.
fn compare_losses(run: &std::path::Path, expected: &[(u64, f64)], changes: usize) {
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
    let expected = undisturbed(&line);
    // Who is killed, one after the other, and after how many milliseconds in the step that was told last.
    side_by_side([(&[2][..], 7), (&[0, 0], 13), (&[1, 1, 1], 2)], |(victims, pause)| {
        let place = Place::new();
        let line = format!("{line} --elastic 1:4 {}", delayed(4, 12));
        let mut running = start(&place, &line);
        for (at, victim) in victims.iter().enumerate() {
            let after = 6 + 14 * at as u64;
            // The ranks that are left have recovered from the loss before.
            running.wait_for("recovery", |run| run.step() >= after && run.size() == 4 - at);
            std::thread::sleep(Duration::from_millis(pause));
            kill(running.ranks()[*victim]);
        }
        let run = running.run.clone();
        let told = running.succeed();
        assert_eq!(hashes(&run), expected.hashes, "{victims:?}");
        compare_losses(&run, &expected.losses, victims.len());
        assert_eq!((told.step, told.world_size), (60, 4 - victims.len()), "{victims:?}");
        assert_eq!((told.dead.len(), told.changes.len()), (victims.len(), victims.len()), "{victims:?}");
        for change in &told.changes {
            assert!(change.left.len() == 1 && change.came.is_empty(), "{change:?}");
            // Nothing is waited for but the others.
            assert!(change.seconds.is_some_and(|seconds| seconds < 8.0), "{change:?}");
        }
        let recovered = column(&run, "recovery_seconds").into_iter().fold(0.0, f64::max);
        let longest = told.changes.iter().filter_map(|change| change.seconds).fold(0.0, f64::max);
        // If rank 0 is lost before it has written the line, no other rank has it.
        assert!(recovered == longest || victims.contains(&0), "{recovered} {longest}");
        for dead in &told.dead {
            assert!(dead.cause.as_ref().is_some_and(|cause| cause.contains("signal 9")), "{dead:?}");
        }
        let tested: Vec<u64> = lines(&run)
            .iter()
            .filter(|line| line.number("test_accuracy").or(line.number("test_loss")).is_some())
            .map(Line::step)
            .collect();
        assert_eq!(tested, [20, 40, 60], "{victims:?}");
    });
}

/// With statistics of whole batches ranks wait for each other within ops too, forward and backward.
#[test]
fn statistics_of_batch_norm_outlive_ranks() {
    let model = "--set model.kind=resnet18 --set model.width=4 --set model.image_size=32 --set optim.kind=sgd --set \
        optim.lr=0.05 --set train.logical_ranks=3 --set train.steps=8 --set eval.enabled=false";
    side_by_side(
        [
            (false, 0, 60, "ddp"),
            (true, 1, 0, "ddp"),
            (true, 0, 0, "ddp"),
            (true, 2, 0, "fsdp --set elastic.redundancy=1"),
        ],
        |(sync, victim, ms, strategy)| {
            let case = format!("{sync} {victim} {strategy}");
            let line = format!("{model} --set model.sync_batch_norm={sync}");
            let expected = undisturbed(&line);
            let place = Place::new();
            let line = format!("{line} --strategy {strategy} --elastic 2:3 {}", delayed(3, ms));
            let mut running = start(&place, &line);
            running.wait_for_step(3);
            std::thread::sleep(Duration::from_millis(30));
            kill(running.ranks()[victim]);
            let run = running.run.clone();
            let told = running.succeed();
            assert_eq!((told.world_size, told.dead[0].rank), (2, victim), "{case}");
            assert_eq!(hashes(&run), expected.hashes, "{case}");
        },
    );
}

#[test]
fn without_logical_ranks_no_sample_is_lost_or_seen_twice() {
    let line = format!("{MLP} --set train.steps=50 --set eval.enabled=false");
    let curve = &undisturbed(&line).losses;
    let place = Place::new();
    let mut running = start(&place, &format!("{line} --elastic 2:3 {}", delayed(3, 10)));
    running.wait_for_step(9);
    kill(running.ranks()[1]);
    let run = running.run.clone();
    let told = running.succeed();
    assert_eq!((told.step, told.world_size, told.dead.len()), (50, 2, 1));
    let found = losses(&run);
    // Sums over other ranks are rounded otherwise; other samples would show in the first digits.
    let other =
        found.iter().zip(curve).filter(|(found, expected)| (found.1 - expected.1).abs() > 1e-3 * expected.1);
    assert_eq!(found.len(), curve.len());
    assert!(other.count() <= 1, "{found:?}\n{curve:?}");
    assert!(found[49].1 < 0.9 * found[0].1, "{found:?}");
}

#[test]
fn ranks_leave_and_others_come() {
    let line = format!("{MLP} --set train.logical_ranks=4 --set train.steps=150");
    let expected = undisturbed(&line);
    // Four, three as one is told to go, four as one comes in its place.
    let place = Place::new();
    let mut running = start(&place, &format!("{line} --elastic 2:4 {}", delayed(4, 12)));
    running.wait_for_step(8);
    signal("-TERM", running.ranks()[0]);
    running.wait_for("three ranks", |run| run.size() == 3);
    let before = running.step();
    running.wait_for_step(before + 3);
    running.join(&place);
    running.wait_for("four ranks", |run| run.size() == 4);
    let run = running.run.clone();
    let ends = running.end_all();
    assert!(ends.iter().all(|end| end.code == Some(0)), "{ends:?}\n{}", logs(&run));
    let told = summary(&run);
    // A rank that leaves is no dead rank, wherever it is named.
    let left: Vec<usize> = told.left.iter().map(|left| left.rank).collect();
    assert_eq!((left, told.dead.len()), (vec![0], 0));
    assert!(
        ends[0].stdout.contains("rank 0 on") && ends[0].stdout.contains("left; 3 ranks continue from step")
    );
    assert!(!ends[0].both().contains("died"), "{}", ends[0].both());
    let joined = &ends[1].stdout;
    assert!(joined.contains("rank 4 takes part from step") && joined.contains("one of 4"), "{joined}");
    let metrics = std::fs::read_to_string(run.join("metrics.jsonl")).expect("reads");
    let last = metrics.lines().last().expect("a line");
    assert!(last.contains(r#""workers":4,"left":[0]"#) && !last.contains("dead"), "{last}");
    assert_eq!(hashes(&run), expected.hashes);
    // Who leaves does so between two steps, so that all losses are known.
    compare_losses(&run, &expected.losses, 0);
    assert_eq!(told.world_size, 4);
    assert_eq!(changes(&told), [(vec![0], vec![]), (vec![], vec![4])]);
    assert!(told.changes[1].bytes > 0, "what has come has got its state from the others");
}

/// A run that listens beyond its own host says to those who come where that is.
#[cfg(target_os = "linux")]
#[test]
fn who_joins_is_told_an_address_that_it_can_reach() {
    side_by_side([("127.0.0.5", true), ("127.0.0.0/8", true), ("0.0.0.0", false)], |(interface, same)| {
        let place = Place::new().with("PHALANX_INTERFACE", interface);
        let line = format!("{MLP} --set train.steps=100000 --ranks 2 --elastic 1:3 {}", delayed(2, 10));
        let mut running = start(&place, &line);
        running.wait_for_step(3);
        running.join(&place);
        running.wait_for("accepted invitation", |run| run.run.join("joins/2/accepted.json").exists());
        let invitation = json(&running.run.join("joins/2/accepted.json"));
        let address: std::net::IpAddr =
            invitation["address"].as_str().unwrap_or_default().parse().expect("one");
        assert!(!address.is_unspecified(), "{interface}: {invitation}");
        assert!(
            !same || address.is_loopback() && (address.to_string() == interface || interface.contains('/'))
        );
        running.wait_for("three ranks", |run| run.size() == 3);
        Request::Stop.post(&running.run.join("requests")).expect("writes");
        let told = running.succeed();
        assert!(told.changes.iter().any(|change| !change.came.is_empty()), "{interface}: {told:?}");
    });
}

#[test]
fn two_become_four_and_a_fifth_waits() {
    let line = format!("{MLP} --set train.logical_ranks=4 --set train.steps=260");
    let expected = undisturbed(&line);
    let place = Place::new();
    let line = format!("{line} --ranks 2 --elastic 1:4 {}", delayed(2, 12));
    let mut running = start(&place, &line);
    running.wait_for_step(2);
    (0..3).for_each(|_| running.join(&place));
    running.wait_for("four ranks", |run| run.size() == 4);
    // One dies, and the waiting spare takes its place.
    let before = running.step();
    running.wait_for_step(before + 5);
    kill(running.ranks()[1]);
    running.wait_for("the spare", |run| {
        run.step() < 260
            && (2..5).all(|number| {
                std::fs::read_to_string(run.run.join(format!("logs/rank-{number}.log")))
                    .is_ok_and(|log| log.contains("takes part from step"))
            })
    });
    let run = running.run.clone();
    let told = running.succeed();
    assert_eq!(hashes(&run), expected.hashes);
    compare_losses(&run, &expected.losses, 1);
    assert_eq!(told.world_size, 4, "{:?}", told.changes);
}

#[test]
fn a_waiting_spare_takes_part_where_no_rank_can_be_spared() {
    let line = format!("{MLP} --set train.logical_ranks=4 --set train.steps=120");
    let expected = undisturbed(&line);
    side_by_side([0, 1], |victim| {
        let place = Place::new();
        let mut running = start(&place, &format!("{line} --elastic 2:2 {}", delayed(2, 12)));
        running.wait_for_step(2);
        running.join(&place);
        running.wait_for("a spare", |run| run.run.join("joins/2/waits").exists());
        kill(running.ranks()[victim]);
        let run = running.run.clone();
        let told = running.succeed();
        assert_eq!((told.status.as_str(), told.step, told.world_size), ("finished", 120, 2), "{victim}");
        assert_eq!(changes(&told), [(vec![victim], vec![]), (vec![], vec![2])], "{victim}");
        assert_eq!(hashes(&run), expected.hashes, "{victim}");
        compare_losses(&run, &expected.losses, 1);
    });
    // Without a spare the run is saved and ends, as before.
    let place = Place::new();
    let mut running = start(&place, &format!("{line} --elastic 2:2 {}", delayed(2, 12)));
    running.wait_for_step(2);
    kill(running.ranks()[1]);
    let run = running.run.clone();
    let said = running.fail();
    assert!(
        said.contains("rank 1 on") && said.contains("1 of at least 2 ranks are left (elastic.min)"),
        "{said}"
    );
    assert!(!saved(&run).is_empty());
}

/// Strangers that connect to every port and stay silent do not keep survivors from each other when rank 0 is lost.
#[cfg(target_os = "linux")]
#[test]
fn idle_strangers_at_every_port_cost_no_survivor() {
    let line = format!("{MLP} --set train.logical_ranks=4 --set train.steps=80");
    let expected = undisturbed(&line);
    let place = Place::new();
    let mut running = start(&place, &format!("{line} --elastic 2:4 {}", delayed(4, 12)));
    running.wait_for_step(3);
    let ranks = running.ranks();
    let ports: Vec<u16> = ranks.iter().flat_map(|rank| listening_ports(*rank)).collect();
    assert!(ports.len() >= ranks.len(), "each rank listens: {ports:?}");
    let connect = |port: &u16| std::net::TcpStream::connect(("127.0.0.1", *port)).ok();
    let strangers: Vec<_> = (0..300).flat_map(|_| ports.iter().filter_map(connect)).collect();
    assert!(strangers.len() > 200 * ports.len(), "{}", strangers.len());
    kill(ranks[0]);
    let run = running.run.clone();
    let told = running.succeed();
    assert_eq!((told.step, told.world_size), (80, 3), "{:?}", told.changes);
    assert_eq!(changes(&told), [(vec![0], vec![])]);
    assert_eq!(hashes(&run), expected.hashes);
    drop(strangers);
}

/// The ports that a process listens at (proc_net_tcp(5)).
#[cfg(target_os = "linux")]
fn listening_ports(process: u32) -> Vec<u16> {
    let sockets: Vec<String> = std::fs::read_dir(format!("/proc/{process}/fd"))
        .expect("it runs")
        .filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok())
        .filter_map(|link| Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let table = std::fs::read_to_string("/proc/net/tcp").expect("reads");
    let port = |row: &str| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let is_own = fields.get(3) == Some(&"0A")
            && sockets.iter().any(|socket| fields.get(9) == Some(&socket.as_str()));
        let port = fields.get(1)?.rsplit(':').next()?;
        u16::from_str_radix(port, 16).ok().filter(|_| is_own)
    };
    table.lines().filter_map(port).collect()
}

/// The ranks of a killed launcher remove the secret that it drew, and the next start removes one that is left even so.
#[test]
fn a_killed_launcher_leaves_no_secret() {
    let place = Place::new();
    let mut running =
        start(&place, &format!("{MLP} --set train.steps=100000 --elastic 1:2 {}", delayed(2, 5)));
    running.wait_for_step(2);
    let secret = running.run.join("secret");
    assert!(secret.exists(), "ranks that join need it");
    running.launcher().kill().expect("it runs");
    wait_until("end of the secret", String::new, || !secret.exists());
    drop(running);
    place.succeed(&format!("train tiny {SMALL} {MLP} --set train.steps=1 --out plain"));
    let secret = place.write("plain/secret", "0123456789abcdef");
    place.succeed("train --resume --steps 2 --out plain");
    assert!(!secret.exists());
}

#[test]
fn the_launcher_starts_others_in_place_of_those_that_die() {
    let line = format!("{MLP} --set train.logical_ranks=4 --set train.steps=200");
    let expected = undisturbed(&line);
    let place = Place::new();
    let line = format!("{line} --elastic 2:4 --set elastic.respawn=1 {}", delayed(4, 12));
    let mut running = start(&place, &line);
    running.wait_for_step(5);
    let ranks = running.ranks();
    kill(ranks[3]);
    running.wait_for("three ranks", |run| run.size() == 3);
    running.wait_for("four ranks", |run| run.size() == 4);
    // There is one replacement, and no second one.
    kill(ranks[1]);
    let run = running.run.clone();
    let told = running.succeed();
    assert_eq!(hashes(&run), expected.hashes);
    compare_losses(&run, &expected.losses, 2);
    assert_eq!(changes(&told), [(vec![3], vec![]), (vec![], vec![4]), (vec![1], vec![])]);
}

#[test]
fn shards_of_the_lost_come_from_neighbours_or_replicas() {
    let line = format!("{MLP} --set train.logical_ranks=4 --set train.steps=60 --set eval.every=20");
    let expected = undisturbed(&line);
    side_by_side(
        [
            ("fsdp", "--set elastic.redundancy=1", &[1, 0][..]),
            ("zero1", "--set elastic.redundancy=1", &[0]),
            ("zero2", "--set elastic.redundancy=1", &[2]),
            ("hsdp", "", &[3]),
        ],
        |(strategy, set, victims)| {
            let place = Place::new();
            let line = format!("{line} --strategy {strategy} {set} --elastic 2:4 {}", delayed(4, 12));
            let mut running = start(&place, &line);
            for (at, victim) in victims.iter().enumerate() {
                let after = 7 + 16 * at as u64;
                // The ranks that are left have recovered from the loss before.
                running.wait_for("recovery", |run| run.step() >= after && run.size() == 4 - at);
                std::thread::sleep(Duration::from_millis(9));
                kill(running.ranks()[*victim]);
            }
            let run = running.run.clone();
            let told = running.succeed();
            assert_eq!(hashes(&run), expected.hashes, "{strategy}");
            compare_losses(&run, &expected.losses, victims.len());
            assert_eq!(
                (told.world_size, told.changes.len()),
                (4 - victims.len(), victims.len()),
                "{strategy}"
            );
            assert!(told.changes.iter().all(|change| change.bytes > 0), "{strategy}: {:?}", told.changes);
            assert!(!logs(&run).contains("go back to the checkpoint"), "{strategy}");
        },
    );
}

#[test]
fn ranks_with_shards_leave_and_come() {
    let line = format!("{MLP} --set train.logical_ranks=4 --set train.steps=150");
    let expected = undisturbed(&line);
    let place = Place::new();
    let line = format!("{line} --strategy fsdp --elastic 2:4 {}", delayed(4, 12));
    let mut running = start(&place, &line);
    running.wait_for_step(8);
    // Without copies it gives its shard to the next rank before it leaves.
    signal("-TERM", running.ranks()[2]);
    running.wait_for("three ranks", |run| run.size() == 3);
    running.join(&place);
    running.wait_for("four ranks", |run| run.size() == 4);
    let run = running.run.clone();
    let told = running.succeed();
    assert_eq!(hashes(&run), expected.hashes);
    compare_losses(&run, &expected.losses, 0);
    assert_eq!(told.world_size, 4);
}

#[test]
fn without_a_copy_of_a_shard_all_go_back_to_the_newest_checkpoint() {
    let line = format!("{MLP} --set train.logical_ranks=3 --set train.steps=50 --set checkpoint.every=10");
    let expected = undisturbed(&line);
    let place = Place::new();
    let mut running = start(&place, &format!("{line} --strategy fsdp --elastic 1:3 {}", delayed(3, 12)));
    running.wait_for("checkpoint", |run| run.step() >= 14 && !run.saved().is_empty());
    kill(running.ranks()[1]);
    let run = running.run.clone();
    let told = running.succeed();
    assert_eq!(hashes(&run), expected.hashes);
    compare_losses(&run, &expected.losses, 1);
    assert_eq!(told.world_size, 2);
    assert!(logs(&run).contains("all go back to the checkpoint of step 10"), "{}", logs(&run));
}

#[test]
fn too_few_save_and_say_so() {
    let line = format!("{MLP} --set train.logical_ranks=3 --set train.steps=40 --set eval.enabled=false");
    let expected = undisturbed(&line);
    let place = Place::new();
    let mut running = start(&place, &format!("{line} --elastic 2:2 {}", delayed(2, 15)));
    running.wait_for_step(6);
    kill(running.ranks()[0]);
    let run = running.run.clone();
    let said = running.fail();
    assert!(said.contains("elastic.min") && said.contains("rank 0 on "), "{said}\n{}", logs(&run));
    let saved = saved(&run).pop().unwrap_or(0);
    assert!((6..40).contains(&saved), "{saved}");
    place.succeed("train --resume --out run --set chaos.delay=");
    assert_eq!(hashes(&run), expected.hashes);
}

#[test]
fn what_cannot_change_is_refused_by_name() {
    let place = Place::new();
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
        let said = place.fail(&format!("train tiny {line}"));
        assert!(said.contains(problem), "{line}: {said}");
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
        let expected = undisturbed(&line);
        for strategy in ["ddp", "fsdp --set elastic.redundancy=1"] {
            let place = Place::new();
            let line = format!("{line} --strategy {strategy} --elastic 1:4 {}", delayed(4, 60));
            let mut running = start(&place, &line);
            for (left, came, size) in [("0,2", false, 2), ("", true, 3), ("1,3", false, 1)] {
                let before = running.step();
                running.wait_for_step(before + 3);
                if came {
                    running.join(&place);
                } else {
                    place.succeed(&format!("leave run --rank {left}"));
                }
                // Once all ranks that it has started have left, the launcher ends, even if others continue.
                if size > 1 {
                    running.wait_for("the next world", |run| run.size() == size);
                }
            }
            let run = running.run.clone();
            running.end();
            assert_eq!(hashes(&run), expected.hashes, "{model} {strategy}");
            let sizes: Vec<usize> = summary(&run).changes.iter().map(|change| change.ranks).collect();
            assert_eq!(sizes, [3, 2, 3, 2, 1], "{model} {strategy}");
        }
    }
}

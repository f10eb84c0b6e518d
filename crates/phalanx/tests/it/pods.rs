//! Hosts on each of which one process starts the ranks: pods, as far as one machine can play them.

use std::process::Command;

use phalanx_run::Summary;

use crate::harness::place::free_port;
use crate::harness::processes::{kill, ranks_of, signal};
use crate::harness::running::End;
use crate::harness::{Place, Running, stderr};

const SMALL: &str = "train tiny --set train.threads=1 --set train.global_batch=8 --set log.every=1 --set sample.every=0 --set \
    eval.enabled=false --set log.usage_seconds=0";

/// The process of a pod of two ranks, one of two pods, as the manifest's script starts it.
fn pod(place: &Place, node: usize, port: u16, line: &str) -> Command {
    let mut program = place.command(line);
    program
        .args(["--nnodes", "2", "--node-rank", &node.to_string(), "--nproc-per-node=2"])
        .args(["--master-addr", "127.0.0.1", "--master-port", &port.to_string()])
        .args(["--interrupted-code", "75", "--out", "run"])
        .env("PHALANX_SECRET_FILE", place.path("secret"))
        .env("NODE_RANK", node.to_string());
    program
}

fn pods(place: &Place, line: &str) -> Running {
    let port = free_port();
    let mut running = Running::spawn(place.path("run"), pod(place, 0, port, line));
    running.add(pod(place, 1, port, line));
    running
}

fn codes(ended: &[End]) -> Vec<Option<i32>> {
    ended.iter().map(|end| end.code).collect()
}

fn summary(place: &Place) -> Summary {
    crate::harness::results::summary(&place.path("run"))
}

#[test]
fn two_pods_train_by_four_ranks_and_all_are_told_what_one_is_told() {
    let place = Place::new();
    place.secret(0o600);
    let mut running = pods(&place, &format!("{SMALL} --set train.steps=100000"));
    running.wait_for_step(3);
    assert_eq!([0, 1].map(|pod| ranks_of(running.process(pod)).len()), [2, 2]);
    // A node is drained: its pod is told to end.
    signal("-TERM", running.process(1).id());
    let told = running.end_all();
    assert_eq!(codes(&told), [Some(75), Some(75)], "{told:?}");
    let summary = summary(&place);
    assert_eq!((summary.status.as_str(), summary.world_size), ("interrupted", 4));
    // They are made again, and come to the end.
    let line = format!("train --resume --steps {}", summary.step + 3);
    let told = pods(&place, &line).end_all();
    assert_eq!(codes(&told), [Some(0), Some(0)], "{told:?}");
    let resumed = self::summary(&place);
    assert_eq!((resumed.status.as_str(), resumed.step), ("finished", summary.step + 3));
}

#[test]
fn a_rank_that_dies_ends_all_pods_with_its_name() {
    let place = Place::new();
    place.secret(0o600);
    let mut running = pods(&place, &format!("{SMALL} --set train.steps=100000"));
    running.wait_for_step(3);
    kill(ranks_of(running.process(1))[0]);
    let told = running.end_all();
    assert_eq!(codes(&told), [Some(1), Some(1)], "{told:?}");
    assert!(told[1].stderr.contains("rank 2 failed: was killed by signal 9"), "{told:?}");
    assert!(told[0].stderr.contains("rank 2"), "{told:?}");
}

#[test]
fn what_ranks_of_a_pod_say_has_their_number_before_it() {
    let place = Place::new();
    // Ranks notice by themselves that others can read their secret.
    place.secret(0o644);
    let output = pod(&place, 1, 1, SMALL).output().expect("phalanx starts");
    let said = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    // The other one may be ended before it has come to that.
    let is_told = |line: &str| {
        ["[rank 2 on ", "[rank 3 on "].iter().any(|before| line.starts_with(before))
            && line.contains("chmod 600")
    };
    assert!(said.lines().any(is_told), "{said}");
}

#[test]
fn places_that_cannot_be_are_refused() {
    for (line, problem) in [
        ("--nnodes 2 --node-rank 2 --master-addr a --out run", "hosts count from 0"),
        ("--nnodes 2 --master-addr a --out run", "--node-rank"),
        ("--nnodes 2 --node-rank 0 --master-addr a", "--out"),
        ("--nnodes 2 --node-rank 0 --master-addr a --out run --ranks 2", "cannot be used with"),
        ("--nnodes 2 --node-rank 0 --master-addr a --out run --strategy dp", "--strategy ddp"),
        ("--nproc-per-node 2", "--nnodes"),
        ("--nnodes 2 --node-rank 0 --master-addr 192.0.2.1 --out run", "PHALANX_SECRET_FILE"),
    ] {
        let place = Place::new();
        let said = place.fail_with(2, &format!("train tiny {line}"));
        assert!(said.contains(problem), "{line}: {said}");
    }
}

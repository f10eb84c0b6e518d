//! Hosts on each of which one process starts the ranks: pods, as far as one machine can play them.

use crate::victims;

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use phalanx_run::{Line, Summary, read_metrics};
use victims::{kill, ranks_of};

const SMALL: &str = "train tiny --set train.threads=1 --set train.global_batch=8 --set log.every=1 --set sample.every=0 --set \
    eval.enabled=false --set log.usage_seconds=0";

/// The process of a pod of two ranks, one of two pods, as the manifest's script starts it.
fn pod(place: &Path, node: usize, port: u16, line: &str) -> Child {
    let mut program = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    program
        .args(line.split_whitespace())
        .args(["--nnodes", "2", "--node-rank", &node.to_string(), "--nproc-per-node=2"])
        .args(["--master-addr", "127.0.0.1", "--master-port", &port.to_string()])
        .args(["--interrupted-code", "75", "--out", "run"])
        .current_dir(place)
        .env("PHALANX_SECRET_FILE", place.join("secret"))
        .env("NODE_RANK", node.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    program.spawn().expect("phalanx runs")
}

fn pods(place: &Path, line: &str) -> [Child; 2] {
    let port = std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
    let port = port.expect("a port").port();
    [0, 1].map(|node| pod(place, node, port, line))
}

fn secret(place: &Path, mode: u32) {
    let path = place.join("secret");
    std::fs::write(&path, "a secret of some length").expect("writes");
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).expect("ours");
}

fn wait_for_step(place: &Path, step: u64) {
    let begun = Instant::now();
    let reached =
        || read_metrics(&place.join("run/metrics.jsonl")).unwrap_or_default().last().map_or(0, Line::step);
    while reached() < step {
        assert!(begun.elapsed() < Duration::from_secs(100), "no step {step}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the exit codes and outputs of the pods.
fn ended(pods: [Child; 2]) -> Vec<(Option<i32>, String)> {
    let told = |Output { status, stderr, .. }| (status.code(), String::from_utf8_lossy(&stderr).into_owned());
    pods.into_iter().map(|pod| told(pod.wait_with_output().expect("it ends"))).collect()
}

fn codes(ended: &[(Option<i32>, String)]) -> Vec<Option<i32>> {
    ended.iter().map(|(code, _)| *code).collect()
}

#[test]
fn two_pods_train_by_four_ranks_and_all_are_told_what_one_is_told() {
    let place = tempfile::tempdir().expect("a folder");
    secret(place.path(), 0o600);
    let running = pods(place.path(), &format!("{SMALL} --set train.steps=100000"));
    wait_for_step(place.path(), 3);
    assert_eq!(running.each_ref().map(|pod| ranks_of(pod).len()), [2, 2]);
    // A node is drained: its pod is told to end.
    let id = running[1].id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill runs").success());
    let told = ended(running);
    assert_eq!(codes(&told), [Some(75), Some(75)], "{told:?}");
    let summary = Summary::read(&place.path().join("run/summary.json")).expect("a summary");
    assert_eq!((summary.status.as_str(), summary.world_size), ("interrupted", 4));
    // They are made again, and come to the end.
    let line = format!("train --resume --steps {}", summary.step + 3);
    let told = ended(pods(place.path(), &line));
    assert_eq!(codes(&told), [Some(0), Some(0)], "{told:?}");
    let resumed = Summary::read(&place.path().join("run/summary.json")).expect("a summary");
    assert_eq!((resumed.status.as_str(), resumed.step), ("finished", summary.step + 3));
}

#[test]
fn a_rank_that_dies_ends_all_pods_with_its_name() {
    let place = tempfile::tempdir().expect("a folder");
    secret(place.path(), 0o600);
    let running = pods(place.path(), &format!("{SMALL} --set train.steps=100000"));
    wait_for_step(place.path(), 3);
    kill(ranks_of(&running[1])[0]);
    let told = ended(running);
    assert_eq!(codes(&told), [Some(1), Some(1)], "{told:?}");
    assert!(told[1].1.contains("rank 2 failed: was killed by signal 9"), "{told:?}");
    assert!(told[0].1.contains("rank 2"), "{told:?}");
}

#[test]
fn what_ranks_of_a_pod_say_has_their_number_before_it() {
    let place = tempfile::tempdir().expect("a folder");
    // Ranks notice by themselves that others can read their secret.
    secret(place.path(), 0o644);
    let output = pod(place.path(), 1, 1, SMALL).wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
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
    ] {
        let place = tempfile::tempdir().expect("a folder");
        let mut program = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        let output = program.args(["train", "tiny"]).args(line.split(' ')).current_dir(place.path()).output();
        let output = output.expect("phalanx runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{line}: {said}");
        assert!(said.contains(problem), "{line}: {said}");
    }
}

//! The output of `phalanx diagnose` for runs that hang, are stopped, or disagree.

use crate::victims;

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use phalanx_collectives::{ReduceOp, WorldConfig, connect_with_listener};
use phalanx_report::diagnose::Diagnosis;
use phalanx_run::read_metrics;
use victims::ranks_of;

/// A model whose steps take milliseconds.
const SMALL: &str = "--set model.kind=mlp --set model.mlp_width=16 --set model.mlp_depth=1 --set model.image_size=8 \
    --set train.global_batch=12 --set train.threads=1 --set train.steps=100000 --set log.every=1 --set data.images=60 \
    --set data.test_images=12 --set sample.rows=1 --set sample.columns=1 --set eval.enabled=false";

fn phalanx(place: &Path, line: &str) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    program.args(line.split_whitespace()).current_dir(place).stdout(Stdio::null()).stderr(Stdio::piped());
    program
}

/// Returns the output of `phalanx diagnose` for the run.
fn diagnosed(place: &Path, option: &str) -> String {
    let mut program = phalanx(place, &format!("diagnose run {option}"));
    let output = program.stdout(Stdio::piped()).output().expect("phalanx runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_rank_that_hangs_in_reading_data_is_named_with_where_it_is() {
    let place = tempfile::tempdir().expect("a folder");
    let line = format!(
        "train tiny {SMALL} --ranks 3 --set comm.timeout=1.5 --set chaos.stall=rank=1,step=5,in=data,ms=60000 --out run"
    );
    let begun = Instant::now();
    let output = phalanx(place.path(), &line).output().expect("phalanx runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && begun.elapsed() < Duration::from_secs(30), "{said}");
    assert!(said.contains("timed out") && said.contains("phalanx diagnose"), "{said}");
    let found = Diagnosis::of(&place.path().join("run/logs")).expect("records");
    assert_eq!(found.suspects.len(), 1, "{found:#?}");
    let suspect = &found.suspects[0];
    assert_eq!(suspect.rank, 1);
    for words in ["has not come to all-reduce", "bucket", "ranks 0, 2 waited ", "stall", "faults.rs:"] {
        assert!(suspect.because.contains(words), "{words:?} is not in {suspect:?}");
    }
    assert_eq!(found.first_difference, None);
    assert!(found.ranks.iter().all(|rank| rank.has_record && rank.threads.len() > 2), "{found:#?}");
    let wait = found.waits.first().expect("a rank waited");
    assert_eq!((wait.waiting.as_slice(), wait.missing.as_slice()), (&[0, 2][..], &[1][..]));
    let told = diagnosed(place.path(), "");
    for words in ["suspects by the records:\n  rank 1: ", "who waited for whom", "stacks of rank 1"] {
        assert!(told.contains(words), "{words:?} is not in {told}");
    }
    let json: serde_json::Value = serde_json::from_str(&diagnosed(place.path(), "--json")).expect("JSON");
    assert_eq!(json["suspects"][0]["rank"], 1);
}

#[test]
fn a_rank_that_is_stopped_is_named_by_the_others() {
    let place = tempfile::tempdir().expect("a folder");
    let line = format!("train tiny {SMALL} --ranks 3 --set chaos.delay=rank=0,ms=5 --out run");
    let mut launcher = phalanx(place.path(), &line).spawn().expect("phalanx runs");
    let begun = Instant::now();
    let metrics = place.path().join("run/metrics.jsonl");
    while read_metrics(&metrics).unwrap_or_default().len() < 3 {
        assert!(
            launcher.try_wait().expect("it is there").is_none() && begun.elapsed() < Duration::from_secs(60)
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    let stopped = ranks_of(&launcher)[2];
    let stop = Command::new("kill").args(["-STOP", &stopped.to_string()]).status();
    assert!(stop.expect("kill runs").success());
    let output = launcher.wait_with_output().expect("it ends");
    assert!(!output.status.success());
    let found = Diagnosis::of(&place.path().join("run/logs")).expect("records");
    assert_eq!(found.suspects[0].rank, 2, "{found:#?}");
    assert!(found.suspects[0].because.contains(&format!("(process {stopped}) is stopped")), "{found:#?}");
    assert!(!found.ranks[2].has_record && found.ranks[0].has_record && found.ranks[1].has_record);
    let told = diagnosed(place.path(), "");
    assert!(
        told.contains("rank 2: its process") && told.contains("threads of rank 2, as others saw them: "),
        "{told}"
    );
    assert!(told.contains("phalanx-control stopped"), "{told}");
}

#[test]
fn ranks_that_issue_different_operations_are_told_apart() {
    let place = tempfile::tempdir().expect("a folder");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let mut listener = Some(listener);
    let ranks: Vec<_> = (0..3)
        .map(|rank| {
            let listener = if rank == 0 { listener.take() } else { None };
            let flight_recorder = Some(place.path().to_owned());
            let config = WorldConfig { flight_recorder, ..WorldConfig::local(rank, 3, port) };
            std::thread::spawn(move || {
                let comm = connect_with_listener(&config, listener).expect("all come");
                for _ in 0..5 {
                    comm.barrier("together").expect("all are there");
                }
                let comm = comm.about(&"the last layer".into());
                let mut values = [1.0_f32; 8];
                let failed = match rank {
                    1 => {
                        // The others must have begun: a rank that hears of the end before has no record.
                        std::thread::sleep(Duration::from_millis(500));
                        comm.broadcast(&mut values, 0)
                    }
                    _ => comm.all_reduce(&mut values, ReduceOp::Sum),
                };
                failed.expect_err("they disagree");
            })
        })
        .collect();
    ranks.into_iter().for_each(|rank| rank.join().expect("no panic"));
    let found = Diagnosis::of(place.path()).expect("records");
    let first = found.first_difference.as_ref().expect("there is one");
    assert_eq!((first.issued[0].ranks.as_slice(), first.issued[1].ranks.as_slice()), (&[0, 2][..], &[1][..]));
    assert!(
        first.issued[0].operation.contains("all-reduce (sum) #5 of 32 bytes of f32 (the last layer)"),
        "{first:?}"
    );
    assert!(first.issued[1].operation.contains("broadcast"), "{first:?}");
    assert_eq!(found.suspects[0].rank, 1, "{found:#?}");
    assert!(found.suspects[0].because.contains("where ranks 0, 2 issued all-reduce"), "{found:#?}");
}

#[test]
fn a_run_without_records_is_no_riddle() {
    let place = tempfile::tempdir().expect("a folder");
    let error = Diagnosis::of(place.path()).expect_err("there is nothing").to_string();
    assert!(error.contains("no rank has left a record"), "{error}");
}

//! The output of `phalanx diagnose` for runs that hang, are stopped, or disagree.

use std::net::TcpListener;
use std::time::{Duration, Instant};

use phalanx_collectives::{ReduceOp, WorldConfig, connect_with_listener};
use phalanx_report::diagnose::Diagnosis;

use crate::harness::processes::signal;
use crate::harness::{MLP, Place, Running, delayed};

/// A training of milliseconds a step, which would take hours.
fn train(line: &str) -> String {
    format!("train tiny {MLP} --set train.steps=100000 --set eval.enabled=false {line} --out run")
}

#[test]
fn a_rank_that_hangs_in_reading_data_is_named_with_where_it_is() {
    let place = Place::new();
    let line = "--ranks 3 --set comm.timeout=1.5 --set chaos.stall=rank=1,step=5,in=data,ms=60000";
    let begun = Instant::now();
    let said = place.fail(&train(line));
    assert!(begun.elapsed() < Duration::from_secs(30), "{said}");
    // The first line names the rank that hung, not the one that noticed.
    let first = "error: rank 1 hung: ranks 0 and 2 waited 1.5 s for it in all-reduce";
    assert!(said.contains(first) && said.contains("phalanx diagnose"), "{said}");
    assert!(!said.contains("rank 0 failed") && !said.contains("rank 2 failed"), "{said}");
    let found = Diagnosis::of(&place.path("run/logs")).expect("records");
    assert_eq!(found.suspects.len(), 1, "{found:#?}");
    let suspect = &found.suspects[0];
    assert_eq!(suspect.rank, 1);
    for words in ["did not reach all-reduce", "bucket", "ranks 0, 2 waited ", "stall", "faults.rs:"] {
        assert!(suspect.because.contains(words), "{words:?} is not in {suspect:?}");
    }
    assert_eq!(found.first_difference, None);
    assert!(found.ranks.iter().all(|rank| rank.has_record && rank.threads.len() > 2), "{found:#?}");
    let wait = found.waits.first().expect("a rank waited");
    assert_eq!((wait.waiting.as_slice(), wait.missing.as_slice()), (&[0, 2][..], &[1][..]));
    let told = place.succeed("diagnose run");
    for words in ["suspects by the records:\n  rank 1: ", "waiting ranks:"] {
        assert!(told.contains(words), "{words:?} is not in {told}");
    }
    assert!(told.lines().count() <= 15 && !told.contains("stacks of rank"), "{told}");
    let told = place.succeed("diagnose run --stacks");
    assert!((0..3).all(|rank| told.contains(&format!("stacks of rank {rank}:"))), "{told}");
    let json: serde_json::Value = serde_json::from_str(&place.succeed("diagnose run --json")).expect("JSON");
    assert_eq!(json["suspects"][0]["rank"], 1);
}

#[test]
fn every_rank_of_a_failed_run_leaves_a_record() {
    let place = Place::new();
    let mut running = Running::start(&place, &train(&format!("--ranks 3 {}", delayed(1, 5))));
    running.wait_for_step(3);
    // Rank 0 cannot write the state of the run any more and ends by itself.
    let state = running.run.join("state.json");
    loop {
        let _ = std::fs::remove_file(&state);
        // Rank 0 may have written it in between.
        if std::fs::create_dir(&state).is_ok() {
            break;
        }
    }
    place.write("run/state.json/full", "");
    let said = running.fail();
    assert!(said.contains("rank 0 failed: cannot write"), "{said}");
    let found = Diagnosis::of(&place.path("run/logs")).expect("records");
    assert!(found.ranks.len() == 3 && found.ranks.iter().all(|rank| rank.has_record), "{found:#?}");
}

#[test]
fn a_rank_that_is_stopped_is_named_by_the_others() {
    let place = Place::new();
    let mut running = Running::start(&place, &train(&format!("--ranks 3 {}", delayed(1, 5))));
    running.wait_for_step(3);
    let stopped = running.ranks()[2];
    signal("-STOP", stopped);
    let said = running.fail();
    assert!(
        said.contains("error: rank 2 is stopped by a signal (SIGSTOP): rank 2 was lost during "),
        "{said}"
    );
    let found = Diagnosis::of(&place.path("run/logs")).expect("records");
    assert_eq!(found.suspects[0].rank, 2, "{found:#?}");
    assert!(found.suspects[0].because.contains(&format!("(process {stopped}) is stopped")), "{found:#?}");
    assert!(!found.ranks[2].has_record && found.ranks[0].has_record && found.ranks[1].has_record);
    let told = place.succeed("diagnose run");
    assert!(
        told.contains("rank 2: its process") && told.contains("threads of rank 2, as seen by other ranks: "),
        "{told}"
    );
    assert!(told.contains("phalanx-control stopped"), "{told}");
}

#[test]
fn ranks_that_issue_different_operations_are_told_apart() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let mut listener = Some(listener);
    let ranks: Vec<_> = (0..3)
        .map(|rank| {
            let listener = if rank == 0 { listener.take() } else { None };
            let flight_recorder = Some(place.folder().to_owned());
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
    let found = Diagnosis::of(place.folder()).expect("records");
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
    let place = Place::new();
    let error = Diagnosis::of(place.folder()).expect_err("there is nothing").to_string();
    assert!(error.contains("no rank has left a record"), "{error}");
}

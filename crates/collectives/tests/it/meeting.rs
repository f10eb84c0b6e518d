//! Rendezvous: jobs that share ports, ports that are taken, and ranks that are cancelled while they search.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use phalanx_collectives::{CommError, Communicator, ReduceOp, Result, WorldConfig, connect, connect_unless};

/// The number of ports of every rendezvous here.
const PORTS: u16 = 4;

/// Returns the first of some free ports.
fn free_ports() -> u16 {
    for _ in 0..1000 {
        let first = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = first.local_addr().expect("bound").port();
        if port < 65_000
            && (port + 1..port + PORTS).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok())
        {
            return port;
        }
    }
    panic!("no free ports in a row");
}

fn config(job: &str, rank: usize, world_size: usize, port: u16) -> WorldConfig {
    let mut config = WorldConfig { job: job.to_owned(), ..WorldConfig::local(rank, world_size, port) };
    config.meeting.ports = PORTS;
    config.timeouts.connect = Duration::from_secs(20);
    config
}

fn start(config: WorldConfig) -> JoinHandle<Result<Communicator>> {
    std::thread::spawn(move || connect(&config))
}

#[test]
fn jobs_that_share_ports_find_their_own_ranks_past_strangers() {
    let port = free_ports();
    // It reads everything and never answers.
    let stranger = TcpListener::bind(("127.0.0.1", port)).expect("it was free");
    let worlds: Vec<_> = ["left", "right"]
        .map(|job| (0..3).rev().map(|rank| start(config(job, rank, 3, port))).collect::<Vec<_>>())
        .into_iter()
        .collect();
    let since = Instant::now();
    let sums = worlds.into_iter().enumerate().map(|(number, ranks)| {
        let ranks = ranks.into_iter().map(|rank| rank.join().expect("no panic").expect("all come"));
        let summing = ranks.map(|comm| {
            let own = 10_i64.pow(number as u32 * 3) * (comm.rank() as i64 + 1);
            std::thread::spawn(move || comm.all_reduce_async(vec![own], ReduceOp::Sum).wait())
        });
        // All ranks start before the test waits for one.
        let summing: Vec<_> = summing.collect();
        summing.into_iter().map(|sum| sum.join().expect("no panic").expect("a sound world")[0]).collect()
    });
    let sums: Vec<Vec<i64>> = sums.collect();
    assert_eq!(sums, [[6; 3], [6000; 3]]);
    assert!(since.elapsed() < Duration::from_secs(10), "the stranger is not waited for");
    drop(stranger);
}

#[test]
fn ports_that_are_all_taken_are_told() {
    let port = free_ports();
    let taken: Vec<_> =
        (port..port + PORTS).map(|port| TcpListener::bind(("127.0.0.1", port)).expect("free")).collect();
    let error = connect(&config("job", 0, 2, port)).expect_err("all taken").to_string();
    let range = format!("any of the ports {port} to {}", port + PORTS - 1);
    assert!(error.contains(&range) && error.contains("PHALANX_PORT"), "{error}");
    let mut short = config("job", 1, 2, port);
    short.timeouts.connect = Duration::from_secs(1);
    let error = connect(&short).expect_err("no answer").to_string();
    assert!(error.contains(&range) && error.contains("no answer"), "{error}");
    drop(taken);
}

#[test]
fn another_job_at_the_only_port_is_named() {
    let port = free_ports();
    let only = |job: &str, rank| {
        let mut config = config(job, rank, 2, port);
        config.meeting.ports = 1;
        config
    };
    let zero = start(only("theirs", 0));
    let error = loop {
        // Rank 0 may not listen yet, so this is repeated; then it is the wrong one.
        match connect(&only("ours", 1)).expect_err("another job").to_string() {
            text if text.contains("another job") => break text,
            text => assert!(text.contains("cannot be reached"), "{text}"),
        }
    };
    assert!(error.contains("`theirs`"), "{error}");
    connect(&only("theirs", 1)).expect("the right one is let in");
    zero.join().expect("no panic").expect("all came");
}

#[test]
fn a_rank_that_is_told_to_end_stops_looking() {
    let port = free_ports();
    // Rank 0 waits for both, rank 1 is accepted and waits for rank 2; alone, rank 1 searches for rank 0.
    for (ranks, words) in [
        (vec![0, 1], ["ranks [2] of 3 were missing", "other ranks than rank 0"]),
        (vec![1], ["looked for rank 0"; 2]),
    ] {
        let told = Arc::new(AtomicBool::new(false));
        let waiting: Vec<_> = ranks
            .iter()
            .map(|rank| {
                let (config, told) = (config("job", *rank, 3, port), told.clone());
                std::thread::spawn(move || connect_unless(&config, || told.load(Ordering::Relaxed)))
            })
            .collect();
        std::thread::sleep(Duration::from_millis(500));
        let since = Instant::now();
        told.store(true, Ordering::Relaxed);
        for (rank, words) in waiting.into_iter().zip(words) {
            let error = rank.join().expect("no panic").expect_err("told to end");
            // The other rank may have gone first. It is then missing too, or has closed the connection, which this rank sees before
            // or after it is cancelled itself.
            let text = error.to_string();
            let gone = text.contains("rank 0 closed the connection");
            assert!(gone || matches!(error, CommError::Cancelled { .. }), "{text}");
            assert!(gone || text.contains(words) || text.contains("during the rendezvous"), "{text}");
        }
        assert!(since.elapsed() < Duration::from_secs(1), "at once, not after {:?}", since.elapsed());
    }
}

#[test]
fn a_world_that_has_met_does_not_hear_it_any_more() {
    let port = free_ports();
    let ranks: Vec<_> = (0..2)
        .map(|rank| {
            std::thread::spawn(move || {
                let connected = Arc::new(AtomicBool::new(false));
                let told = connected.clone();
                let config = config("job", rank, 2, port);
                let comm = connect_unless(&config, move || told.load(Ordering::Relaxed)).expect("both come");
                connected.store(true, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(100));
                comm.all_reduce_async(vec![1_i32], ReduceOp::Sum).wait()
            })
        })
        .collect();
    for rank in ranks {
        assert_eq!(rank.join().expect("no panic"), Ok(vec![2]));
    }
}

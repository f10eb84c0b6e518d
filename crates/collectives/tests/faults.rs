//! Real faults: a killed process, a rank that never comes, strangers at the door.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use phalanx_collectives::{CommError, Communicator, ReduceOp, WorldConfig, connect, connect_with_listener};

/// Set in the environment of this test program when it runs again as a rank of its own.
const ROLE: &str = "PHALANX_TEST_RANK";

fn config(rank: usize, world_size: usize, port: u16) -> WorldConfig {
    WorldConfig { connect_timeout: Duration::from_secs(20), ..WorldConfig::local(rank, world_size, port) }
}

fn reduce_for_ever(comm: &Communicator) -> CommError {
    let mut values = vec![1.0_f32; 300_000];
    loop {
        values.fill(1.0);
        if let Err(error) = comm.all_reduce(&mut values, ReduceOp::Sum) {
            return error;
        }
    }
}

/// Not a test of its own: the rank that the next test starts as a process and kills.
#[test]
fn as_a_rank_of_another_process() {
    let Ok(place) = std::env::var(ROLE) else { return };
    let numbers: Vec<usize> = place.split(',').map(|n| n.parse().expect("a number")).collect();
    let comm = connect(&config(numbers[0], numbers[1], numbers[2] as u16)).expect("the others are there");
    reduce_for_ever(&comm);
}

#[test]
fn a_killed_process_is_named_by_all_others_within_five_seconds() {
    for victim in [1, 2] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "as_a_rank_of_another_process", "--nocapture"])
            .env(ROLE, format!("{victim},3,{port}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("this program runs again");
        let mut listener = Some(listener);
        let others: Vec<_> = (0..3)
            .filter(|rank| *rank != victim)
            .map(|rank| {
                let listener = if rank == 0 { listener.take() } else { None };
                std::thread::spawn(move || {
                    let comm = connect_with_listener(&config(rank, 3, port), listener).expect("all come");
                    let error = reduce_for_ever(&comm);
                    let at = Instant::now();
                    let later = comm.barrier("after").expect_err("a broken world stays broken");
                    (error, later, at)
                })
            })
            .collect();
        std::thread::sleep(Duration::from_millis(800));
        let killed = Instant::now();
        child.kill().expect("it runs");
        child.wait().expect("it is a child");
        for other in others {
            let (error, later, at) = other.join().expect("no panic");
            assert!(at - killed < Duration::from_secs(5), "noticed after {:?}", at - killed);
            for error in [error, later] {
                assert!(matches!(error, CommError::PeerLost { rank, .. } if rank == victim), "{error}");
            }
        }
    }
}

#[test]
fn a_missing_rank_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let short = move |rank| WorldConfig { connect_timeout: Duration::from_secs(1), ..config(rank, 4, port) };
    let two = std::thread::spawn(move || connect(&short(2)).expect_err("not all come"));
    let error = connect_with_listener(&short(0), Some(listener)).expect_err("not all come");
    match error {
        CommError::Missing { missing, world_size: 4, .. } => assert_eq!(missing, [1, 3]),
        other => panic!("{other}"),
    }
    assert!(matches!(two.join().expect("no panic"), CommError::Rendezvous { .. }));
}

#[test]
fn wrong_registrations_are_refused_and_harm_nothing() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let zero = std::thread::spawn(move || connect_with_listener(&config(0, 2, port), Some(listener)));
    let refused = |config: WorldConfig| connect(&config).expect_err("refused").to_string();
    let text = refused(config(1, 3, port));
    assert!(text.contains("a world of 3 ranks; this one has 2"), "{text}");
    let text = refused(config(0, 2, port));
    assert!(!text.is_empty());
    // Noise, an endless message, and silence.
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 64], &[]] {
        let mut stranger = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
        stranger.write_all(bytes).expect("it reads");
        if !bytes.is_empty() {
            stranger.set_read_timeout(Some(Duration::from_secs(8))).expect("a timeout");
            // The door is closed on the stranger: the end of the stream, or a reset.
            let mut answer = [0; 1];
            assert!(!matches!(stranger.read(&mut answer), Ok(1)), "answered a stranger");
        }
    }
    let one = connect(&config(1, 2, port)).expect("the right one is let in");
    let zero = zero.join().expect("no panic").expect("all came");
    let sum = std::thread::spawn(move || one.all_reduce_async(vec![1_i32], ReduceOp::Sum).wait());
    assert_eq!(zero.all_reduce_async(vec![2_i32], ReduceOp::Sum).wait(), Ok(vec![3]));
    assert_eq!(sum.join().expect("no panic"), Ok(vec![3]));
}

#[test]
fn leaving_in_good_order_is_no_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let mut listener = Some(listener);
    let ranks: Vec<_> = (0..3)
        .map(|rank| {
            let listener = if rank == 0 { listener.take() } else { None };
            std::thread::spawn(move || {
                let comm = connect_with_listener(&config(rank, 3, port), listener).expect("all come");
                comm.barrier("start").expect("sound");
                // Ranks leave one after the other; those that stay hear no alarm.
                std::thread::sleep(Duration::from_millis(300 * rank as u64));
                comm.stats()
            })
        })
        .collect();
    for rank in ranks {
        assert_eq!(rank.join().expect("no panic").operations, 1);
    }
}

//! Real faults: a killed process, a rank that never comes, strangers at the door.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use phalanx_collectives::{
    BoxError, CommError, Communicator, DType, FlatBuffer, ReduceOp, SliceMut, WorldConfig, connect,
    connect_with_listener, threads,
};

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
    comm.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum).expect("all work");
    reduce_for_ever(&comm);
}

/// Starts `victim` as a process in a world of three whose other ranks are threads here, does `harm` to it in the
/// middle of its work, and checks that the others name it within five seconds.
fn harm_one(victim: usize, harm: impl Fn(&mut Child)) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    // Rank 0 opens the meeting place itself when it is the one in a process of its own.
    let mut listener = (victim != 0).then_some(listener);
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "as_a_rank_of_another_process", "--nocapture"])
        .env(ROLE, format!("{victim},3,{port}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("this program runs again");
    let (working, begun) = std::sync::mpsc::channel();
    let others: Vec<_> = (0..3)
        .filter(|rank| *rank != victim)
        .map(|rank| {
            let listener = if rank == 0 { listener.take() } else { None };
            let working = working.clone();
            std::thread::spawn(move || {
                let config =
                    WorldConfig { heartbeat_timeout: Duration::from_secs(2), ..config(rank, 3, port) };
                let comm = connect_with_listener(&config, listener).expect("all come");
                let mut values = [1.0_f32; 8];
                comm.all_reduce(&mut values, ReduceOp::Sum).expect("all work");
                working.send(()).expect("the test waits");
                let error = reduce_for_ever(&comm);
                let at = Instant::now();
                let later = comm.barrier("after").expect_err("a broken world stays broken");
                (error, later, at)
            })
        })
        .collect();
    for _ in 0..2 {
        begun.recv_timeout(Duration::from_secs(30)).expect("the world begins to work");
    }
    std::thread::sleep(Duration::from_millis(200));
    let harmed = Instant::now();
    harm(&mut child);
    for other in others {
        let (error, later, at) = other.join().expect("no panic");
        assert!(at - harmed < Duration::from_secs(5), "noticed after {:?}", at - harmed);
        for error in [error, later] {
            assert!(matches!(error, CommError::PeerLost { rank, .. } if rank == victim), "{error}");
        }
    }
    let _ = child.kill();
    child.wait().expect("it is a child");
}

#[test]
fn a_killed_process_is_named_by_all_others_within_five_seconds() {
    for victim in 0..3 {
        harm_one(victim, |child| child.kill().expect("it runs"));
    }
}

/// A stopped process keeps its connections open; only its silence gives it away.
#[cfg(unix)]
#[test]
fn a_stopped_process_is_named_by_all_others_within_five_seconds() {
    for victim in [0, 2] {
        harm_one(victim, |child| {
            let done = Command::new("kill").args(["-STOP", &child.id().to_string()]).status();
            assert!(done.expect("kill runs").success());
        });
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

/// A world of three over TCP, all of whose ranks run `f` on threads of this process.
fn three<R: Send + 'static>(
    op_timeout: Duration,
    f: impl Fn(Communicator) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let mut listener = Some(listener);
    let ranks: Vec<_> = (0..3)
        .map(|rank| {
            let (listener, f) = (if rank == 0 { listener.take() } else { None }, f.clone());
            std::thread::spawn(move || {
                let config = WorldConfig { op_timeout, ..config(rank, 3, port) };
                f(connect_with_listener(&config, listener).expect("all come"))
            })
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
}

/// The same for a world of threads.
fn three_threads<R: Send + 'static>(f: impl Fn(Communicator) -> R + Clone + Send + 'static) -> Vec<R> {
    let run = |comm: Communicator| {
        let f = f.clone();
        std::thread::spawn(move || f(comm))
    };
    let ranks: Vec<_> = threads(3).expect("threads").into_iter().map(run).collect();
    ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_disagreement_of_two_ranks_ends_the_wait_of_all() {
    let disagree = |comm: Communicator| {
        let length = if comm.rank() == 1 { 9 } else { 8 };
        let error = comm.all_reduce(&mut vec![1.0_f32; length], ReduceOp::Sum).expect_err("lengths differ");
        (error, comm.barrier("later").expect_err("a broken world stays broken"))
    };
    for results in [three_threads(disagree), three(LONG, disagree)] {
        for (error, later) in &results {
            let text = error.to_string();
            assert!(text.contains("of 8 elements") && text.contains("of 9 elements"), "{text}");
            assert!(matches!(later, CommError::Aborted { .. }), "{later}");
        }
    }
}

/// A buffer that cannot be opened, in one way or another.
enum Unopened {
    Refuses,
    Panics,
    Lies(Vec<f32>),
}

impl FlatBuffer for Unopened {
    fn dtype(&self) -> DType {
        DType::F32
    }

    fn len(&self) -> usize {
        8
    }

    fn with_slice_mut(&mut self, f: &mut dyn FnMut(SliceMut<'_>)) -> Result<(), BoxError> {
        match self {
            Self::Refuses => Err("the lock is poisoned".into()),
            Self::Panics => panic!("a panic of the caller's"),
            Self::Lies(values) => {
                f(SliceMut::F32(values));
                Ok(())
            }
        }
    }
}

#[test]
fn a_buffer_that_cannot_be_opened_is_an_error_of_all_ranks() {
    type Make = fn() -> Unopened;
    let cases: [(Make, &str); 3] = [
        (|| Unopened::Refuses, "the lock is poisoned"),
        (|| Unopened::Panics, "panicked"),
        (|| Unopened::Lies(vec![0.0; 7]), "opens as 7"),
    ];
    for (make, expected) in cases {
        let results = three_threads(move |comm| {
            if comm.rank() == 2 {
                comm.all_reduce_async(make(), ReduceOp::Sum).wait().map(|_| ())
            } else {
                comm.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum)
            }
        });
        for (rank, result) in results.into_iter().enumerate() {
            let error = result.expect_err("one buffer is missing");
            assert!(error.to_string().contains(expected), "{error}");
            match error {
                CommError::Buffer(_) => assert_eq!(rank, 2),
                CommError::Aborted { rank: who, .. } => assert_eq!(who, 2),
                other => panic!("{other}"),
            }
        }
    }
}

#[test]
fn a_wait_that_is_too_long_ends_for_all() {
    let results = three(Duration::from_millis(300), |comm| {
        if comm.rank() == 1 {
            // It is alive, but busy with something else.
            std::thread::sleep(Duration::from_secs(2));
        }
        comm.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum).expect_err("too late")
    });
    // Rank 2 waits for rank 1 and rank 0 for rank 2; whichever gives up first tells the others.
    let waited = |error: &CommError| matches!(error, CommError::Timeout { waiting_for: 1 | 2, .. });
    assert!(results.iter().any(waited), "{results:?}");
    assert!(results[1].to_string().contains("timed out"), "{}", results[1]);
}

#[test]
fn a_thread_that_panics_is_named_by_the_others() {
    let ranks: Vec<_> = threads(3)
        .expect("threads")
        .into_iter()
        .map(|comm| {
            std::thread::spawn(move || {
                comm.barrier("start").expect("sound");
                assert!(comm.rank() != 1, "this rank fails");
                comm.all_reduce(&mut vec![1.0_f32; 5000], ReduceOp::Sum).expect_err("one is gone")
            })
        })
        .collect();
    for (rank, result) in ranks.into_iter().enumerate() {
        match (rank, result.join()) {
            (1, Err(_)) => {}
            (_, Ok(CommError::PeerLost { rank: 1, .. })) => {}
            (_, other) => panic!("{other:?}"),
        }
    }
}

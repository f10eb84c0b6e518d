//! Faults: a rank that never comes or comes late, strangers at ports, buffers that cannot be opened.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use crate::common::{Random, side_by_side};
use phalanx_collectives::{
    BoxError, CommError, Communicator, DType, FlatBuffer, FlightRecord, MeetingPoint, OperationState,
    ReduceOp, Secret, SliceMut, Timeouts, TransportOptions, WorldConfig, connect, connect_with_listener,
    threads,
};

fn config(rank: usize, world_size: usize, port: u16) -> WorldConfig {
    let timeouts = Timeouts { connect: Duration::from_secs(20), ..Timeouts::default() };
    WorldConfig { timeouts, ..WorldConfig::local(rank, world_size, port) }
}

#[test]
fn a_missing_rank_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let timeouts = Timeouts { connect: Duration::from_secs(1), ..Timeouts::default() };
    let short = move |rank| WorldConfig { timeouts, ..config(rank, 4, port) };
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
            // Rank 0 closes the connection of a stranger: the end of the stream, or a reset.
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
                // Ranks leave one after the other; the remaining ones see no failure.
                std::thread::sleep(Duration::from_millis(300 * rank as u64));
                comm.stats()
            })
        })
        .collect();
    for rank in ranks {
        assert_eq!(rank.join().expect("no panic").operations, 1);
    }
}

/// Runs `f` on all ranks of a world of three on threads of this process.
fn three<R: Send + 'static>(f: impl Fn(Communicator) -> R + Clone + Send + 'static) -> Vec<R> {
    three_with(|config| config, f)
}

/// Returns the results of three ranks over TCP, each with a changed configuration.
fn three_with<R: Send + 'static>(
    change: impl Fn(WorldConfig) -> WorldConfig,
    f: impl Fn(Communicator) -> R + Clone + Send + 'static,
) -> Vec<R> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let mut listener = Some(listener);
    let ranks: Vec<_> = (0..3)
        .map(|rank| {
            let (listener, f) = (if rank == 0 { listener.take() } else { None }, f.clone());
            let config = change(config(rank, 3, port));
            std::thread::spawn(move || f(connect_with_listener(&config, listener).expect("all come")))
        })
        .collect();
    ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
}

/// Returns the results of three ranks that are threads of one world.
fn three_threads<R: Send + 'static>(f: impl Fn(Communicator) -> R + Clone + Send + 'static) -> Vec<R> {
    let run = |comm: Communicator| {
        let f = f.clone();
        std::thread::spawn(move || f(comm))
    };
    let ranks: Vec<_> = threads(3).expect("threads").into_iter().map(run).collect();
    ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect()
}

#[test]
fn a_disagreement_of_two_ranks_ends_the_wait_of_all() {
    let disagree = |comm: Communicator| {
        let length = if comm.rank() == 1 { 9 } else { 8 };
        let error = comm.all_reduce(&mut vec![1.0_f32; length], ReduceOp::Sum).expect_err("lengths differ");
        let later = comm.barrier("later").expect_err("a broken world stays broken");
        assert!(matches!(comm.check(), Err(CommError::Aborted { .. })), "{:?}", comm.check());
        (error, later)
    };
    for results in [three_threads(disagree), three(disagree)] {
        for (error, later) in &results {
            let text = error.to_string();
            assert!(text.contains("of 8 elements") && text.contains("of 9 elements"), "{text}");
            assert!(matches!(later, CommError::Aborted { .. }), "{later}");
        }
    }
}

/// A buffer that cannot be opened, in one of several ways.
enum FaultyBuffer {
    Refuses,
    Panics,
    Lies(Vec<f32>),
}

impl FlatBuffer for FaultyBuffer {
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
    type Constructor = fn() -> FaultyBuffer;
    let cases: [(Constructor, &str); 3] = [
        (|| FaultyBuffer::Refuses, "the lock is poisoned"),
        (|| FaultyBuffer::Panics, "panicked"),
        (|| FaultyBuffer::Lies(vec![0.0; 7]), "opens as 7"),
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
fn a_wait_that_is_too_long_ends_for_all_and_tells_who_came() {
    side_by_side(&[false, true], 2, |&shared_memory| {
        let results = three_with(
            |mut config| {
                config.timeouts.operation = Duration::from_millis(300);
                config.transport.shared_memory = shared_memory;
                config
            },
            |comm| {
                comm.broadcast(&mut [1_i32; 3], 2).expect("all are there");
                if comm.rank() == 1 {
                    // It is alive, but busy until the others have given up.
                    let until = Instant::now() + Duration::from_secs(20);
                    while comm.check().is_ok() && Instant::now() < until {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
                comm.all_reduce(&mut [1.0_f32; 8], ReduceOp::Sum).expect_err("too late")
            },
        );
        // The first rank that gives up tells the others, in the same words.
        let text = results.iter().map(ToString::to_string).find(|text| text.contains("hung"));
        let text = text.unwrap_or_else(|| panic!("{results:?}"));
        for part in [
            "all-reduce (sum) of 8 elements f32",
            "rank 1 hung: ranks 0 and 2 waited 0.3 s for it in ",
            "rank 1: broadcast of 3 elements i32",
            "done",
        ] {
            assert!(text.contains(part), "{part:?} in {text:?}");
        }
        assert!(results[1].to_string().contains("rank 1 hung"), "{}", results[1]);
        let noticed = results.iter().find(|error| matches!(error, CommError::Timeout { .. })).expect("one");
        assert_eq!(noticed.blamed(), [1]);
        // In a run whose world has changed, ranks have other numbers.
        let renumbered = noticed.clone().renumbered(|rank| rank + 4).to_string();
        assert!(renumbered.starts_with("rank 5 hung: ranks 4 and 6 waited"), "{renumbered}");
    });
}

#[test]
fn the_flight_recorder_tells_what_went_before() {
    let folder = std::env::temp_dir().join(format!("phalanx-recorder-{}", std::process::id()));
    let results = three_with(
        |config| WorldConfig { flight_recorder: Some(folder.clone()), ..config },
        |comm| {
            for _ in 0..100 {
                comm.all_gather(&[comm.rank() as u8]).expect("all are there");
            }
            let length = 8 + comm.rank() / 2;
            drop(comm.all_reduce(&mut vec![1.0_f32; length], ReduceOp::Sum).expect_err("lengths differ"));
            comm.recent()
        },
    );
    for (rank, recent) in results.iter().enumerate() {
        assert_eq!(recent.len(), 64, "the last operations, not all of them");
        let last = recent.last().expect("some");
        assert_eq!((last.operation.as_str(), last.sequence), ("all-reduce (sum)", 100));
        assert_eq!((last.dtype.as_str(), last.state), ("f32", OperationState::Failed));
        assert!(recent[..63].iter().all(|op| op.state == OperationState::Done && op.bytes == 3));
        let written = FlightRecord::read(&FlightRecord::path(&folder, rank)).expect("it was written down");
        assert_eq!(written.operations.last().map(|op| op.sequence), Some(100));
        assert_eq!((written.rank, written.world_size), (rank, 3));
        assert_eq!(written.communicators, [(0, vec![0, 1, 2])]);
        assert!(written.cause.contains("gave up"), "{}", written.cause);
    }
    std::fs::remove_dir_all(&folder).expect("it is there");
}

#[test]
fn a_world_meets_over_ipv6() {
    let Ok(listener) = TcpListener::bind("[::1]:0") else {
        println!("skipped: this machine has no IPv6");
        return;
    };
    let port = listener.local_addr().expect("bound").port();
    let place = move |rank| WorldConfig {
        meeting: MeetingPoint {
            address: "::1".into(),
            port,
            ports: 1,
            bind_addr: std::net::Ipv6Addr::LOCALHOST.into(),
        },
        transport: TransportOptions { shared_memory: false, streams: 2, ..TransportOptions::default() },
        ..config(rank, 2, port)
    };
    let one = std::thread::spawn(move || connect(&place(1)).expect("rank 0 is there"));
    let zero = connect_with_listener(&place(0), Some(listener)).expect("all come");
    let one = one.join().expect("no panic");
    let sum = one.all_reduce_async(vec![1_i32; 100_000], ReduceOp::Sum);
    assert_eq!(zero.all_reduce_async(vec![2_i32; 100_000], ReduceOp::Sum).wait(), Ok(vec![3; 100_000]));
    assert_eq!(sum.wait(), Ok(vec![3; 100_000]));
}

#[test]
fn a_secret_keeps_strangers_out() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let secret = |text: &str| Some(Secret::new(text.as_bytes()).expect("long enough"));
    let place = move |rank, secret| {
        let mut config = config(rank, 2, port);
        config.credentials.secret = secret;
        config
    };
    let (right, wrong) = (secret("the secret of this world"), secret("the secret of another one"));
    let zero = place(0, right.clone());
    let zero = std::thread::spawn(move || connect_with_listener(&zero, Some(listener)));
    for stranger in [wrong, None] {
        let text = connect(&place(1, stranger)).expect_err("refused").to_string();
        assert!(text.contains("secret"), "{text}");
    }
    let one = connect(&place(1, right)).expect("it knows the secret");
    let zero = zero.join().expect("no panic").expect("all came");
    let sum = one.all_reduce_async(vec![1_i32], ReduceOp::Sum);
    assert_eq!(zero.all_reduce_async(vec![2_i32], ReduceOp::Sum).wait(), Ok(vec![3]));
    assert_eq!(sum.wait(), Ok(vec![3]));
}

/// Noise at every port of a world that forms: random bytes, and random changes of valid messages.
#[test]
fn noise_at_the_doors_harms_nothing() {
    let seed = 20_261_121;
    let mut random = Random(seed);
    for round in 0..20 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let zero = std::thread::spawn(move || connect_with_listener(&config(0, 2, port), Some(listener)));
        let mut strangers = Vec::new();
        for _ in 0..10 {
            let mut bytes: Vec<u8> = (0..random.below(200)).map(|_| random.below(256) as u8).collect();
            if random.below(2) == 0 {
                // A valid beginning is read further.
                bytes.splice(0..0, *b"PHALANX3\0\0\0\0\0\0\0\0");
            }
            let mut stranger = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
            // It may be closed already.
            let _ = stranger.write_all(&bytes);
            strangers.push(stranger);
        }
        let one = connect(&config(1, 2, port)).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let zero = zero.join().expect("no panic").expect("all came");
        let sum = one.all_reduce_async(vec![1_i32], ReduceOp::Sum);
        assert_eq!(zero.all_reduce_async(vec![2_i32], ReduceOp::Sum).wait(), Ok(vec![3]));
        assert_eq!(sum.wait(), Ok(vec![3]));
    }
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

//! Rejoin of surviving ranks: after a rank was killed during an operation, after another one, and after rank 0 and its successor.
//! Only one of two groups that cannot reach each other goes on, and none after a rank gave up.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Child;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::{listener_of_rank_0, own_port, rank_process};
use phalanx_collectives::{
    CommError, Communicator, Newcomers, RebuiltWorld, ReduceOp, WorldConfig, connect, connect_with_listener,
    rejoin, rejoin_with, threads,
};

/// An environment variable that makes this program play a rank: rank, world and port.
const ROLE: &str = "PHALANX_TEST_REGROUP_RANK";

fn config(rank: usize, ranks: usize, port: u16) -> WorldConfig {
    let mut config = WorldConfig::local(rank, ranks, port);
    config.timeouts.connect = Duration::from_secs(30);
    config.timeouts.heartbeat_timeout = Duration::from_secs(3);
    config.transport.shared_memory = port.is_multiple_of(2);
    config
}

/// Sums ones until a rank is lost, and calls `says` with every sum; returns the error.
fn work(comm: &Communicator, mut says: impl FnMut(i32)) -> CommError {
    loop {
        let mut ones = [1_i32; 3];
        match comm.all_reduce(&mut ones, ReduceOp::Sum) {
            Ok(()) => says(ones[0]),
            Err(error) => return error,
        }
    }
}

/// Works in a world and in its successors, until a rank gives up or this one cannot go on. Returns the members of each world, and
/// the last error.
fn outlive(
    mut comm: Communicator,
    mut config: WorldConfig,
    says: &Sender<i32>,
) -> (Vec<Vec<usize>>, CommError) {
    let mut met = Vec::new();
    loop {
        let error = work(&comm, |sum| {
            if says.send(sum).is_err() {
                comm.abort("enough");
            }
        });
        assert!(error.to_string().contains("rank"), "{error}");
        let control = comm.control().expect("there is one");
        match rejoin(&comm, &config) {
            Ok(RebuiltWorld { communicator, config: place, members }) => {
                assert_eq!((communicator.rank(), communicator.world_size()), (place.rank, members.len()));
                assert_eq!(members[place.rank], config.rank);
                let posted = std::iter::from_fn(|| control.left_behind("posted")).count();
                assert_eq!(posted, if config.rank == 0 && met.is_empty() { 2 } else { 0 });
                (comm, config) = (communicator, place);
                met.push(members);
            }
            Err(error) => return (met, error),
        }
    }
}

/// A rank that the tests below start as a process; not a test by itself.
#[test]
fn as_a_rank_of_another_process() {
    let Ok(place) = std::env::var(ROLE) else { return };
    let place: Vec<usize> = place.split(',').map(|word| word.parse().expect("a number")).collect();
    let host = (place[3] > 0).then(|| "elsewhere".to_owned());
    let config = WorldConfig { host, ..config(place[0], place[1], place[2] as u16) };
    if place[3] == DEPARTS {
        let comm = connect(&config).expect("the others are there");
        comm.all_reduce(&mut [1_i32; 3], ReduceOp::Sum).expect("a sound world");
        comm.control().expect("there is one").depart();
        // Without a goodbye, as the other ranks rejoin without it.
        std::process::exit(0);
    }
    // The sums of this rank are not used.
    let (says, _unheard) = channel();
    outlive(connect(&config).expect("the others are there"), config, &says);
}

/// The place of a rank in another process: on this host or on another; and whether it departs after an operation.
const HERE: usize = 0;
const ELSEWHERE: usize = 1;
const DEPARTS: usize = 2;

fn child(rank: usize, ranks: usize, port: u16) -> Child {
    child_at(rank, ranks, port, HERE)
}

fn child_at(rank: usize, ranks: usize, port: u16, place: usize) -> Child {
    let place = format!("{rank},{ranks},{port},{place}");
    let mut program = rank_process("rejoin::as_a_rank_of_another_process", ROLE, &place);
    program.spawn().expect("this program runs again")
}

fn hear(sums: &Receiver<i32>, expected: i32) {
    loop {
        if sums.recv_timeout(Duration::from_secs(60)).expect("sums are told") == expected {
            return;
        }
    }
}

#[test]
fn surviving_ranks_go_on_after_a_death_in_any_operation() {
    for victims in [[2, 3], [3, 1], [1, 2], [0, 2], [3, 0], [0, 1]] {
        let port = own_port();
        // As a process of its own, rank 0 binds the port itself.
        let mut listener = listener_of_rank_0(port, victims.contains(&0));
        let mut children: Vec<_> = victims.iter().map(|rank| child(*rank, 4, port)).collect();
        let (says, sums) = channel();
        let others: Vec<_> = (0..4)
            .filter(|rank| !victims.contains(rank))
            .map(|rank| {
                let (listener, says) = (listener.take().filter(|_| rank == 0), says.clone());
                std::thread::spawn(move || {
                    let config = config(rank, 4, port);
                    let comm = connect_with_listener(&config, listener).expect("all come");
                    let control = comm.control().expect("there is one");
                    control.post("posted", &[rank as u8]).expect("a sound world");
                    let (met, error) = outlive(comm.clone(), config, &says);
                    drop(comm);
                    (met, error)
                })
            })
            .collect();
        for (at, left) in [(0, 4), (1, 3)] {
            hear(&sums, left);
            children[at].kill().expect("it lives");
            children[at].wait().expect("it is dead");
        }
        hear(&sums, 2);
        // The last two part when one gives up, which is not a loss.
        drop(sums);
        for other in others {
            let (met, error) = other.join().expect("no panic");
            let of_four: Vec<usize> = (0..4).filter(|rank| *rank != victims[0]).collect();
            assert_eq!(met[0], of_four);
            assert_eq!(met[1].len(), 2, "numbers of the world of three: {met:?}");
            assert!(matches!(error, CommError::Aborted { .. }), "{error}");
        }
    }
}

/// Returns the members after a rejoin with a newcomer that is awaited and does not come, and the number of announcements.
fn meet_with_a_newcomer(
    ranks: Vec<(Communicator, WorldConfig)>,
    timeout: Duration,
) -> Vec<(Result<Vec<usize>, CommError>, usize)> {
    let met = ranks.into_iter().map(|(comm, config)| {
        std::thread::spawn(move || {
            let announced = AtomicUsize::new(0);
            let announce = |place: &WorldConfig| {
                assert_eq!((place.rank, place.world_size), (config.world_size, config.world_size + 1));
                announced.fetch_add(1, Ordering::SeqCst);
            };
            let newcomers = Newcomers { count: 1, timeout, announce: &announce };
            let met = rejoin_with(&comm, &config, Some(&newcomers));
            (met.map(|met| met.members), announced.into_inner())
        })
    });
    let met: Vec<_> = met.collect();
    met.into_iter().map(|other| other.join().expect("no panic")).collect()
}

#[test]
fn a_newcomer_that_does_not_come_is_given_up_and_at_once_where_a_member_is_lost() {
    // Ranks 0 and 2 of three, of which rank 1 is killed; and the two ranks of a world without a loss.
    for (ranks, victim) in [(3, Some(1)), (2, None)] {
        let port = free_port();
        let others = (0..ranks).filter(|rank| Some(*rank) != victim).map(|rank| {
            std::thread::spawn(move || {
                let config = config(rank, ranks, port);
                let comm = connect(&config).expect("all come");
                comm.all_reduce(&mut [1_i32; 3], ReduceOp::Sum).expect("a sound world");
                (comm, config)
            })
        });
        let others: Vec<_> = others.collect();
        let victim = victim.map(|rank| child(rank, ranks, port));
        let others: Vec<_> = others.into_iter().map(|other| other.join().expect("no panic")).collect();
        let members: Vec<_> = others.iter().map(|(comm, _)| comm.rank()).collect();
        let Some(mut victim) = victim else {
            let met = meet_with_a_newcomer(others, Duration::from_secs(1));
            assert_eq!(met, [(Ok(members.clone()), 1), (Ok(members), 0)]);
            continue;
        };
        victim.kill().expect("it lives");
        victim.wait().expect("it is dead");
        // The wait for the newcomer would be longer than a test may take.
        let met = meet_with_a_newcomer(others, Duration::from_secs(100_000));
        assert_eq!(met, [(Ok(members.clone()), 0), (Ok(members), 0)]);
    }
}

/// Returns a free port.
fn free_port() -> u16 {
    own_port()
}

#[test]
fn the_last_goes_on_alone_and_none_after_a_rank_gave_up() {
    let port = free_port();
    let mut first = child(0, 2, port);
    let config = config(1, 2, port);
    let comm = connect(&config).expect("rank 0 comes");
    first.kill().expect("it lives");
    first.wait().expect("it is dead");
    drop(work(&comm, |_| {}));
    let alone = rejoin(&comm, &config).expect("rank 0 has ended, and no other rank exists");
    assert_eq!((alone.members, alone.config.rank, alone.config.world_size), (vec![1], 0, 1));
    alone.communicator.barrier("alone").expect("a sound world");

    let world = threads(2).expect("threads");
    let lost = rejoin(&world[0], &config).expect_err("they are threads");
    assert!(matches!(lost, CommError::NotOffered { .. }), "{lost}");
    world[1].abort("no disk");
    let error = rejoin(&world[0], &config).expect_err("a rank gave up");
    assert!(matches!(error, CommError::Aborted { rank: 1, .. }), "{error}");
}

/// Returns the results of the other ranks, which are threads, after rank 0 of another host was killed or `departs`.
fn without_a_rank_0_of_another_host(ranks: usize, departs: bool) -> Vec<Result<Vec<usize>, CommError>> {
    let port = free_port();
    let mut first = child_at(0, ranks, port, if departs { DEPARTS } else { ELSEWHERE });
    let others: Vec<_> = (1..ranks)
        .map(|rank| {
            std::thread::spawn(move || {
                let config = config(rank, ranks, port);
                let comm = connect(&config).expect("rank 0 comes");
                // As rank 0 does.
                comm.all_reduce(&mut [1_i32; 3], ReduceOp::Sum).expect("a sound world");
                (comm, config)
            })
        })
        .collect();
    let others: Vec<_> = others.into_iter().map(|other| other.join().expect("no panic")).collect();
    if !departs {
        first.kill().expect("it lives");
    }
    first.wait().expect("it has ended");
    meet_again(others, Duration::ZERO)
}

/// Returns the results of a rejoin after the world broke, the first rank of which starts `late`.
fn meet_again(ranks: Vec<(Communicator, WorldConfig)>, late: Duration) -> Vec<Result<Vec<usize>, CommError>> {
    let met = ranks.into_iter().enumerate().map(|(at, (comm, config))| {
        std::thread::spawn(move || {
            drop(work(&comm, |_| {}));
            if at == 0 {
                std::thread::sleep(late);
            }
            let met = rejoin(&comm, &config)?;
            met.communicator.barrier("all have met")?;
            Ok(met.members)
        })
    });
    let met: Vec<JoinHandle<Result<Vec<usize>, CommError>>> = met.collect();
    met.into_iter().map(|other| other.join().expect("no panic")).collect()
}

#[test]
fn of_a_rank_0_that_may_live_elsewhere_only_more_than_half_are_independent() {
    for met in without_a_rank_0_of_another_host(3, false) {
        assert_eq!(met, Ok(vec![1, 2]));
    }
    // Rank 0 of two might go on alone, as far as the other rank can tell.
    let apart = CommError::Minority { left: vec![1], lost: vec![0], world_size: 2 };
    assert_eq!(without_a_rank_0_of_another_host(2, false), [Err(apart)]);
    // Unless it has departed.
    assert_eq!(without_a_rank_0_of_another_host(2, true), [Ok(vec![1])]);
}

/// Forwards connections from the returned port to `port`, until the sender is used.
fn relay(port: u16) -> (u16, Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let own = listener.local_addr().expect("bound").port();
    let (cut, cuts) = channel::<()>();
    std::thread::spawn(move || {
        let caller = listener.accept().expect("a caller").0;
        // Rank 0 may start later.
        let called = std::iter::repeat_with(|| TcpStream::connect(("127.0.0.1", port)));
        let called = called.flatten().next().expect("it comes");
        let ends = [(&caller, &called), (&called, &caller)];
        for (from, to) in ends {
            let (mut from, mut to) = (from.try_clone().expect("open"), to.try_clone().expect("open"));
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(count @ 1..) = from.read(&mut bytes) {
                    if to.write_all(&bytes[..count]).is_err() {
                        return;
                    }
                }
            });
        }
        let _ = cuts.recv();
        for end in [caller, called] {
            let _ = end.shutdown(Shutdown::Both);
        }
    });
    (own, cut)
}

/// Returns the results of four ranks after the connection of rank 2 to rank 0 was cut. Rank 0 starts the rejoin `late`.
fn without_a_connection(late: Duration) -> Vec<Result<Vec<usize>, CommError>> {
    let port = free_port();
    let (by_relay, cut) = relay(port);
    let ranks: Vec<_> = (0..4)
        .map(|rank| {
            std::thread::spawn(move || {
                let master_port = if rank == 2 { by_relay } else { port };
                let mut config = config(rank, 4, port);
                config.meeting.port = master_port;
                let comm = connect(&config).expect("all come");
                comm.barrier("all are here").expect("a sound world");
                (comm, config)
            })
        })
        .collect();
    let ranks: Vec<_> = ranks.into_iter().map(|rank| rank.join().expect("no panic")).collect();
    cut.send(()).expect("it waits");
    meet_again(ranks, late)
}

#[test]
fn a_rank_that_has_only_lost_its_coordinator_comes_back_or_makes_no_second_world() {
    // Until the others have gone on, it is accepted again, and no rank is missing.
    for met in without_a_connection(Duration::from_millis(1500)) {
        assert_eq!(met, Ok(vec![0, 1, 2, 3]));
    }
    let met = without_a_connection(Duration::ZERO);
    let returned = met[2].is_ok();
    for (rank, met) in met.into_iter().enumerate() {
        match (rank, met) {
            // A rank that comes after the others have gone on finds none of its old world.
            (2, Err(CommError::LeftOut { rank: 2, .. } | CommError::Minority { .. })) => {}
            (_, Ok(members)) if returned => assert_eq!(members, [0, 1, 2, 3]),
            (0 | 1 | 3, Ok(members)) => assert_eq!(members, [0, 1, 3]),
            (rank, other) => panic!("rank {rank}: {other:?}"),
        }
    }
}

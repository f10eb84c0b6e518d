//! Those who are left of a world meet again: after a rank was killed in the middle of an operation, after another one, after
//! rank 0 and whoever has followed it; only one of two groups that cannot reach each other; and nobody where a rank gave up.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use phalanx_collectives::{
    CommError, Communicator, Newcomers, ReduceOp, Regrouped, WorldConfig, connect, connect_with_listener,
    regroup, regroup_with, threads,
};

/// Set in the environment of this test program when it runs again as a rank of its own: rank, world and port.
const ROLE: &str = "PHALANX_TEST_REGROUP_RANK";

fn config(rank: usize, ranks: usize, port: u16) -> WorldConfig {
    WorldConfig {
        connect_timeout: Duration::from_secs(30),
        heartbeat_timeout: Duration::from_secs(3),
        shared_memory: port.is_multiple_of(2),
        ..WorldConfig::local(rank, ranks, port)
    }
}

/// Adds up ones until a rank is lost, and says of every sum that there was; the error.
fn work(comm: &Communicator, mut says: impl FnMut(i32)) -> CommError {
    loop {
        let mut ones = [1_i32; 3];
        match comm.all_reduce(&mut ones, ReduceOp::Sum) {
            Ok(()) => says(ones[0]),
            Err(error) => return error,
        }
    }
}

/// Works in a world, and in those of whoever is left of it, until a rank gives up or this one cannot go on: who it was with in
/// each, and the last error.
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
        match regroup(&comm, &config) {
            Ok(Regrouped { communicator, config: place, members }) => {
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

/// Not a test of its own: a rank that the tests below start as a process.
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
        // Without a goodbye, as who goes on without this one meets again.
        std::process::exit(0);
    }
    // Of what this rank says nobody takes notice.
    let (says, _unheard) = channel();
    outlive(connect(&config).expect("the others are there"), config, &says);
}

/// Where a rank of another process is: on the host of this one, or on another; and whether it goes after an operation.
const HERE: usize = 0;
const ELSEWHERE: usize = 1;
const DEPARTS: usize = 2;

fn child(rank: usize, ranks: usize, port: u16) -> Child {
    child_at(rank, ranks, port, HERE)
}

fn child_at(rank: usize, ranks: usize, port: u16, place: usize) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "as_a_rank_of_another_process", "--nocapture"])
        .env(ROLE, format!("{rank},{ranks},{port},{place}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("this program runs again")
}

fn hear(sums: &Receiver<i32>, expected: i32) {
    loop {
        if sums.recv_timeout(Duration::from_secs(60)).expect("sums are told") == expected {
            return;
        }
    }
}

#[test]
fn those_who_are_left_go_on_whoever_is_killed_in_whatever_operation() {
    for victims in [[2, 3], [3, 1], [1, 2], [0, 2], [3, 0], [0, 1]] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        // Rank 0 takes the port itself where it is a process of its own.
        let mut listener = Some(listener).filter(|_| !victims.contains(&0));
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
        // The last two part by one of them giving up, which is no loss.
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

/// Who of `ranks` meets when a newcomer is to come, is waited for so long, and does not come; and how many were told to announce it.
fn meet_with_a_newcomer(
    ranks: Vec<(Communicator, WorldConfig)>,
    patience: Duration,
) -> Vec<(Result<Vec<usize>, CommError>, usize)> {
    let met = ranks.into_iter().map(|(comm, config)| {
        std::thread::spawn(move || {
            let announced = AtomicUsize::new(0);
            let announce = |place: &WorldConfig| {
                assert_eq!((place.rank, place.world_size), (config.world_size, config.world_size + 1));
                announced.fetch_add(1, Ordering::SeqCst);
            };
            let newcomers = Newcomers { count: 1, patience, announce: &announce };
            let met = regroup_with(&comm, &config, Some(&newcomers));
            (met.map(|met| met.members), announced.into_inner())
        })
    });
    let met: Vec<_> = met.collect();
    met.into_iter().map(|other| other.join().expect("no panic")).collect()
}

#[test]
fn a_newcomer_that_does_not_come_is_given_up_and_at_once_where_a_member_is_lost() {
    // Ranks 0 and 2 of three, of which rank 1 is killed, and the two ranks of a world that stays whole.
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
        // Whoever waits for the newcomer does so for longer than a test may take.
        let met = meet_with_a_newcomer(others, Duration::from_secs(100_000));
        assert_eq!(met, [(Ok(members.clone()), 0), (Ok(members), 0)]);
    }
}

/// A port that nobody holds.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}

#[test]
fn the_last_goes_on_alone_and_nobody_where_a_rank_gave_up() {
    let port = free_port();
    let mut first = child(0, 2, port);
    let config = config(1, 2, port);
    let comm = connect(&config).expect("rank 0 comes");
    first.kill().expect("it lives");
    first.wait().expect("it is dead");
    drop(work(&comm, |_| {}));
    let alone = regroup(&comm, &config).expect("rank 0 has ended, and nobody else is there");
    assert_eq!((alone.members, alone.config.rank, alone.config.world_size), (vec![1], 0, 1));
    alone.communicator.barrier("alone").expect("a sound world");

    let world = threads(2).expect("threads");
    let lost = regroup(&world[0], &config).expect_err("they are threads");
    assert!(matches!(lost, CommError::NotOffered { .. }), "{lost}");
    world[1].abort("no disk");
    let error = regroup(&world[0], &config).expect_err("a rank gave up");
    assert!(matches!(error, CommError::Aborted { rank: 1, .. }), "{error}");
}

/// What comes of the other ranks, which are threads here, when rank 0 of another host is killed, or `departs`.
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

/// What comes of ranks that meet again once their world has broken, the first of them so much later.
fn meet_again(ranks: Vec<(Communicator, WorldConfig)>, late: Duration) -> Vec<Result<Vec<usize>, CommError>> {
    let met = ranks.into_iter().enumerate().map(|(at, (comm, config))| {
        std::thread::spawn(move || {
            drop(work(&comm, |_| {}));
            if at == 0 {
                std::thread::sleep(late);
            }
            let met = regroup(&comm, &config)?;
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
    // Rank 0 of two might go on by itself, as far as the other can tell.
    let apart = CommError::Minority { left: vec![1], lost: vec![0], world_size: 2 };
    assert_eq!(without_a_rank_0_of_another_host(2, false), [Err(apart)]);
    // Unless it has said that it does not.
    assert_eq!(without_a_rank_0_of_another_host(2, true), [Ok(vec![1])]);
}

/// Passes on what comes to the port that is returned to `port`, until the sender says so.
fn relay(port: u16) -> (u16, Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let own = listener.local_addr().expect("bound").port();
    let (cut, cuts) = channel::<()>();
    std::thread::spawn(move || {
        let caller = listener.accept().expect("somebody calls").0;
        // Rank 0 may begin later.
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

/// What comes of four ranks when the connection of rank 2 to rank 0 is cut, and rank 0 comes to meet the others so much later.
fn without_a_connection(late: Duration) -> Vec<Result<Vec<usize>, CommError>> {
    let port = free_port();
    let (by_relay, cut) = relay(port);
    let ranks: Vec<_> = (0..4)
        .map(|rank| {
            std::thread::spawn(move || {
                let master_port = if rank == 2 { by_relay } else { port };
                let config = WorldConfig { master_port, ..config(rank, 4, port) };
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
fn a_rank_that_has_only_lost_its_hub_comes_back_or_makes_no_second_world() {
    // While nobody has gone on without it, it is let in again: nobody is missing.
    for met in without_a_connection(Duration::from_millis(1500)) {
        assert_eq!(met, Ok(vec![0, 1, 2, 3]));
    }
    let met = without_a_connection(Duration::ZERO);
    let returned = met[2].is_ok();
    for (rank, met) in met.into_iter().enumerate() {
        match (rank, met) {
            // Who comes when the others have gone on finds nobody of their old world any more.
            (2, Err(CommError::LeftOut { rank: 2, .. } | CommError::Minority { .. })) => {}
            (_, Ok(members)) if returned => assert_eq!(members, [0, 1, 2, 3]),
            (0 | 1 | 3, Ok(members)) => assert_eq!(members, [0, 1, 3]),
            (rank, other) => panic!("rank {rank}: {other:?}"),
        }
    }
}

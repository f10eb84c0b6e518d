//! Those who are left of a world meet again: after a rank was killed in the middle of an operation, after another one, without
//! rank 0, and not at all where a rank gave up.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use phalanx_collectives::{
    CommError, Communicator, ReduceOp, Regrouped, WorldConfig, connect, connect_with_listener, regroup,
    threads,
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

/// Works in a world, and in those of whoever is left of it, until rank 0 is lost or a rank gives up: what it was in each, and
/// the last error.
fn outlive(
    mut comm: Communicator,
    mut config: WorldConfig,
    says: &Sender<i32>,
) -> (Vec<Vec<usize>>, CommError) {
    let mut met = Vec::new();
    loop {
        let error = work(&comm, |sum| {
            if config.rank == 0 && says.send(sum).is_err() {
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
    let config = config(place[0], place[1], place[2] as u16);
    // Of what this rank says nobody takes notice.
    let (says, _unheard) = channel();
    outlive(connect(&config).expect("the others are there"), config, &says);
}

fn child(rank: usize, ranks: usize, port: u16) -> Child {
    Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "as_a_rank_of_another_process", "--nocapture"])
        .env(ROLE, format!("{rank},{ranks},{port}"))
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
    for victims in [[2, 3], [3, 1], [1, 2]] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        let mut children: Vec<_> = victims.iter().map(|rank| child(*rank, 4, port)).collect();
        let mut listener = Some(listener);
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

#[test]
fn without_rank_0_and_where_a_rank_gave_up_nobody_meets() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    drop(listener);
    let mut first = child(0, 2, port);
    let config = config(1, 2, port);
    let comm = connect(&config).expect("rank 0 comes");
    first.kill().expect("it lives");
    first.wait().expect("it is dead");
    drop(work(&comm, |_| {}));
    let error = regroup(&comm, &config).expect_err("rank 0 is gone");
    assert!(matches!(error, CommError::PeerLost { rank: 0, .. }), "{error}");

    let world = threads(2).expect("threads");
    let lost = regroup(&world[0], &config).expect_err("they are threads");
    assert!(matches!(lost, CommError::NotOffered { .. }), "{lost}");
    world[1].abort("no disk");
    let error = regroup(&world[0], &config).expect_err("a rank gave up");
    assert!(matches!(error, CommError::Aborted { rank: 1, .. }), "{error}");
}

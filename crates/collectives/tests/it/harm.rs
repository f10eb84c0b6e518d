//! A process is killed or stopped during each operation: all other ranks name it within five seconds. And several processes run
//! many operations, and leave nothing behind.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::common::{listener_of_rank_0, own_port, rank_process, side_by_side};
use phalanx_collectives::{
    CommError, Communicator, ReduceOp, Result, SharedBuffer, Timeouts, WorldConfig, connect,
    connect_with_listener,
};

/// An environment variable that makes this program play a rank: rank, world, port, whether memory is shared, and the name of the
/// work.
const ROLE: &str = "PHALANX_TEST_RANK";

/// Every operation, repeated, with buffers of more than one piece.
const WORKS: [&str; 11] = [
    "all-reduce",
    "in place",
    "reduce-scatter",
    "all-gather",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all-to-all",
    "send and receive",
    "barrier",
];

fn work(comm: &Communicator, name: &str, buffer: &mut SharedBuffer<f32>) -> Result<()> {
    let (rank, world) = (comm.rank(), comm.world_size());
    let mut values = vec![1.0_f32; 300_000];
    match name {
        "all-reduce" => comm.all_reduce(&mut values, ReduceOp::Sum),
        "in place" => comm.all_reduce(buffer, ReduceOp::Max),
        "reduce-scatter" => comm.reduce_scatter_in_place(&mut values, ReduceOp::Sum),
        "all-gather" => comm.all_gather_in_place(&mut values),
        "broadcast" => comm.broadcast(&mut values, 1),
        "reduce" => comm.reduce(&mut values, ReduceOp::Sum, 1),
        "gather" => comm.gatherv(&values, 1).map(drop),
        "scatter" => {
            let parts = if rank == 1 { vec![values; world] } else { Vec::new() };
            comm.scatterv(&parts, 1).map(drop)
        }
        "all-to-all" => comm.all_to_all(&values).map(drop),
        "send and receive" => {
            comm.send(&values, (rank + 1) % world)?;
            comm.recv(&mut values, (rank + world - 1) % world)
        }
        "barrier" => comm.barrier("again"),
        other => panic!("{other}"),
    }
}

fn work_for_ever(comm: &Communicator, name: &str) -> CommError {
    let mut buffer = match comm.alloc(300_000) {
        Ok(buffer) => buffer,
        Err(error) => return error,
    };
    loop {
        if let Err(error) = work(comm, name, &mut buffer) {
            return error;
        }
    }
}

fn config(rank: usize, world_size: usize, port: u16) -> WorldConfig {
    let timeouts = Timeouts { connect: Duration::from_secs(30), ..Timeouts::default() };
    WorldConfig { timeouts, ..WorldConfig::local(rank, world_size, port) }
}

/// A rank that the tests below start as a process; not a test by itself.
#[test]
fn as_a_rank_of_another_process() {
    let Ok(place) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = place.split(',').collect();
    let number = |at: usize| words[at].parse::<usize>().expect("a number");
    let mut config = config(number(0), number(1), number(2) as u16);
    config.transport.shared_memory = words[3] == "shared";
    let comm = connect(&config).expect("the others are there");
    if words[4] == "soak" {
        soak(&comm, words[5].parse().expect("a number"));
        #[cfg(target_os = "linux")]
        assert_eq!(shared_memory(), (config.transport.shared_memory, Vec::new()));
        return;
    }
    comm.barrier("begin").expect("all work");
    work_for_ever(&comm, words[4]);
}

/// Returns the command that starts this program as a rank.
fn as_rank(place: &str) -> Command {
    rank_process("harm::as_a_rank_of_another_process", ROLE, place)
}

/// Starts `victim` as a process in a world of three whose other ranks are threads. Applies `harm` to it during its work, and checks
/// that the others name it within five seconds.
fn harm_one(victim: usize, shared: bool, name: &'static str, harm: impl Fn(&mut Child)) {
    let port = own_port();
    // As a process of its own, rank 0 opens its listener itself.
    let mut listener = listener_of_rank_0(port, victim == 0);
    let memory = if shared { "shared" } else { "apart" };
    let mut child = as_rank(&format!("{victim},3,{port},{memory},{name}")).spawn().expect("a rank");
    let (working, begun) = std::sync::mpsc::channel();
    let others: Vec<_> = (0..3)
        .filter(|rank| *rank != victim)
        .map(|rank| {
            let listener = if rank == 0 { listener.take() } else { None };
            let working = working.clone();
            std::thread::spawn(move || {
                let mut config = config(rank, 3, port);
                config.timeouts.heartbeat_timeout = Duration::from_secs(2);
                config.transport.shared_memory = shared;
                let comm = connect_with_listener(&config, listener).expect("all come");
                comm.barrier("begin").expect("all work");
                working.send(()).expect("the test waits");
                let error = work_for_ever(&comm, name);
                let at = Instant::now();
                let later = comm.barrier("after").expect_err("a broken world stays broken");
                (error, later, at)
            })
        })
        .collect();
    for _ in 0..2 {
        begun.recv_timeout(Duration::from_secs(30)).expect("the world begins to work");
    }
    std::thread::sleep(Duration::from_millis(150));
    let harmed = Instant::now();
    harm(&mut child);
    for other in others {
        let (error, later, at) = other.join().expect("no panic");
        assert!(at - harmed < Duration::from_secs(5), "{name}: noticed after {:?}", at - harmed);
        for error in [error, later] {
            assert!(matches!(error, CommError::PeerLost { rank, .. } if rank == victim), "{name}: {error}");
        }
    }
    let _ = child.kill();
    child.wait().expect("it is a child");
}

fn kill(child: &mut Child) {
    child.kill().expect("it runs");
}

/// A stopped process keeps its connections open; only its silence shows.
#[cfg(unix)]
fn stop(child: &mut Child) {
    let done = Command::new("kill").args(["-STOP", &child.id().to_string()]).status();
    assert!(done.expect("kill runs").success());
}

#[test]
fn a_process_killed_in_any_operation_is_named() {
    let cases: Vec<_> = WORKS
        .into_iter()
        .enumerate()
        .flat_map(|(index, name)| {
            [(index % 3, index % 2 == 0, name), ((index + 1) % 3, index % 2 == 1, name)]
        })
        .collect();
    side_by_side(&cases, 2, |&(victim, shared, name)| harm_one(victim, shared, name, kill));
}

#[cfg(unix)]
#[test]
fn a_process_stopped_in_any_operation_is_named() {
    // Most of the time is the wait for its silence, so several worlds wait together.
    let cases: Vec<_> = WORKS
        .into_iter()
        .enumerate()
        .flat_map(|(index, name)| [(index % 3, true, name), ((index + 1) % 3, false, name)])
        .collect();
    side_by_side(&cases, 4, |&(victim, shared, name)| harm_one(victim, shared, name, stop));
}

/// Random operations of random sizes, equal on every rank, each checked.
fn soak(comm: &Communicator, operations: usize) {
    let (rank, world) = (comm.rank(), comm.world_size());
    let mut state = 7_u64;
    let mut below = move |limit: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % limit
    };
    let part = comm.split(Some((rank % 2) as u32), 0).expect("sound").expect("a colour");
    let mut shared = comm.alloc::<i64>(100).expect("sound");
    let mut pending = Vec::new();
    let total = |len: usize| vec![(0..world as i64).sum::<i64>(); len];
    for round in 0..operations {
        // Mostly small, sometimes large.
        let len = if below(200) == 0 { below(100_000) } else { below(300) };
        let root = below(world);
        let mut values = vec![rank as i64; len];
        match below(12) {
            0 => {
                comm.all_reduce(&mut values, ReduceOp::Sum).expect("sound");
                assert_eq!(values, total(len), "{round}");
            }
            1 => pending.push((len, comm.all_reduce_async(values, ReduceOp::Sum))),
            2 => {
                shared.fill(rank as i64);
                comm.all_reduce(&mut shared, ReduceOp::Sum).expect("sound");
                assert_eq!(*shared, total(100), "{round}");
            }
            3 => {
                comm.broadcast(&mut values, root).expect("sound");
                assert!(values.iter().all(|v| *v == root as i64), "{round}");
            }
            4 => {
                comm.reduce(&mut values, ReduceOp::Max, root).expect("sound");
                let expected = if rank == root { world - 1 } else { rank } as i64;
                assert!(values.iter().all(|v| *v == expected), "{round}");
            }
            5 => {
                let part = comm.reduce_scatter(&values, ReduceOp::Sum).expect("sound");
                assert_eq!(part, total(part.len()), "{round}");
            }
            6 => {
                let all = comm.all_gather(&values[..len.min(500)]).expect("sound");
                assert!(
                    all.chunks(len.clamp(1, 500)).zip(0_i64..).all(|(own, r)| own.iter().all(|v| *v == r))
                );
            }
            7 => {
                let all = comm.gatherv(&values[..len * (rank + 1) / world], root).expect("sound");
                assert_eq!(all.len(), if rank == root { world } else { 0 }, "{round}");
            }
            8 => {
                let parts =
                    if rank == root { (0..world).map(|r| vec![r as i64; len]).collect() } else { Vec::new() };
                assert_eq!(comm.scatterv(&parts, root).expect("sound"), values, "{round}");
            }
            9 => {
                let got = comm.all_to_allv(&vec![values[..len.min(500)].to_vec(); world]).expect("sound");
                assert!(got.iter().zip(0_i64..).all(|(own, r)| own.iter().all(|v| *v == r)), "{round}");
            }
            10 => {
                part.all_reduce(&mut values, ReduceOp::Min).expect("sound");
                assert!(values.iter().all(|v| *v == (rank % 2) as i64), "{round}");
            }
            _ => {
                comm.send(&values, (rank + 1) % world).expect("sound");
                let previous = (rank + world - 1) % world;
                comm.recv(&mut values, previous).expect("sound");
                assert!(values.iter().all(|v| *v == previous as i64), "{round}");
            }
        }
        if pending.len() > 5 {
            for (len, handle) in pending.drain(..) {
                assert_eq!(handle.wait().expect("sound"), total(len), "{round}");
            }
        }
    }
    comm.barrier("end").expect("sound");
}

/// Returns whether this process has shared memory of Phalanx, and the named memory that it maps, which would outlive a killed
/// process.
#[cfg(target_os = "linux")]
fn shared_memory() -> (bool, Vec<String>) {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("of this process");
    let anonymous = maps.lines().any(|line| line.ends_with("/memfd:phalanx-slots (deleted)"));
    (anonymous, maps.lines().filter(|line| line.contains("/dev/shm/")).map(str::to_owned).collect())
}

#[test]
fn four_processes_do_many_mixed_operations() {
    const OPERATIONS: usize = 100_000;
    for memory in ["shared", "apart"] {
        let port = own_port();
        let temporary = tempfile::tempdir().expect("a folder");
        let mut ranks: Vec<_> = (0..4)
            .map(|rank| {
                let role = format!("{rank},4,{port},{memory},soak,{OPERATIONS}");
                as_rank(&role).env("TMPDIR", temporary.path()).spawn().expect("a rank")
            })
            .collect();
        for (rank, child) in ranks.iter_mut().enumerate() {
            assert!(child.wait().expect("a child").success(), "{memory}: rank {rank}");
        }
        let left = std::fs::read_dir(temporary.path()).expect("a folder");
        assert_eq!(left.count(), 0, "{memory}: files are left behind");
    }
}

//! Ranks that are processes of one machine, each with a GPU of its own.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use half::bf16;
use phalanx_collectives::nccl::{self};
use phalanx_collectives::{Communicator, ReduceOp, WorldConfig, connect};

use super::conformance::check_device;
use super::gpus::{OnGpu, open, real};
use super::software;

/// Set in processes that are ranks: "rank port".
const RANK: &str = "PHALANX_TEST_RANK";

/// Starts the running test again as a rank.
fn start(rank: usize, port: u16) -> Child {
    let test = std::thread::current().name().expect("tests run on threads of their names").to_owned();
    let mut command = Command::new(std::env::current_exe().expect("this program has a file"));
    command.args([&test, "--exact", "--nocapture", "--test-threads=1"]).env(RANK, format!("{rank} {port}"));
    command.stdout(Stdio::piped()).spawn().expect("the test starts again")
}

/// Returns this process as a rank, if it is one.
fn rank() -> Option<Communicator> {
    let place = std::env::var(RANK).ok()?;
    let (rank, port) = place.split_once(' ').expect("a rank and a port");
    let mut config = WorldConfig::local(rank.parse().expect("a rank"), 2, port.parse().expect("a port"));
    config.timeouts.heartbeat_interval = Duration::from_millis(100);
    config.timeouts.heartbeat_timeout = Duration::from_secs(2);
    Some(connect(&config).expect("both ranks come"))
}

fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // The system gives no outgoing connection a port of these, so it is still free when rank 0 listens.
    let first = 10_000 + (std::process::id() % 90) as u16 * 100;
    let mut ports = (0..1000).map(|_| first + NEXT.fetch_add(1, Ordering::Relaxed) % 100);
    ports.find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok()).expect("a free port")
}

/// Runs `ranks` in two processes, and `watch` with them here.
fn in_processes(ranks: impl FnOnce(Communicator), watch: impl FnOnce([Child; 2])) {
    let body = || match rank() {
        Some(world) => ranks(world),
        None => {
            let port = free_port();
            watch([start(0, port), start(1, port)]);
        }
    };
    if real() {
        return if nccl::device_count() > 1 { body() } else { println!("skipped: no two GPUs") };
    }
    software::run_with(&[("SOFTWARE_GPU_COUNT", "2")], body);
}

fn text_of(child: &mut Child) -> String {
    let mut text = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut text).expect("text");
    text
}

#[test]
fn processes_conform() {
    in_processes(
        |world| {
            let context = open(world.rank());
            let comm = nccl::communicator(&world, context.clone()).expect("both come");
            check_device::<f32>(&comm, &context, f32::from, true);
            check_device::<bf16>(&comm, &context, |v| bf16::from_f32(v.into()), true);
            assert_eq!(comm.all_gather(&[comm.rank() as i64]), Ok(vec![0, 1]));
            let alone = comm.split(Some(comm.rank() as u32), 0).expect("sound").expect("a colour");
            check_device::<f32>(&alone, &context, f32::from, true);
        },
        |mut ranks| {
            for (rank, child) in ranks.iter_mut().enumerate() {
                let text = text_of(child);
                assert!(child.wait().expect("it ends").success(), "rank {rank}:\n{text}");
            }
        },
    );
}

#[test]
fn a_rank_that_is_killed_is_named_and_nothing_hangs() {
    in_processes(
        |world| {
            let context = open(world.rank());
            let comm = nccl::communicator(&world, context.clone()).expect("both come");
            let compute = context.new_stream().expect("a sound GPU");
            comm.all_reduce(&mut OnGpu::new(&compute, &[1.0_f32; 100]), ReduceOp::Sum).expect("sound");
            compute.synchronize().expect("sound");
            println!("reduced once");
            if world.rank() == 1 {
                // Until it is killed.
                std::thread::sleep(Duration::from_secs(60));
                return;
            }
            // On the GPU, waiting for the other rank, when that dies; the computing stream waits for it.
            let under_way = comm.all_reduce_async(OnGpu::new(&compute, &[1.0_f32; 100]), ReduceOp::Sum);
            let buffer = under_way.wait();
            println!("issued");
            compute.synchronize().expect("the stream does not wait for ever");
            let told = std::iter::repeat_with(|| {
                std::thread::sleep(Duration::from_millis(5));
                comm.check()
            });
            let error = told.take(2000).find_map(Result::err).expect("the world is broken");
            println!("told: {error}");
            drop(buffer);
        },
        |mut ranks| {
            let mut lines = BufReader::new(ranks[0].stdout.take().expect("piped")).lines();
            let mut seen = Vec::new();
            while !seen.iter().any(|line: &String| line.contains("issued")) {
                let line = lines.next().unwrap_or_else(|| panic!("rank 0 ended early: {seen:?}"));
                seen.push(line.expect("text"));
            }
            let start = Instant::now();
            ranks[1].kill().expect("it runs");
            let rest: Vec<String> = lines.map(|line| line.expect("text")).collect();
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
            assert!(rest.iter().any(|line| line.contains("told: rank 1 was lost")), "{rest:?}");
            assert!(ranks[0].wait().expect("it ends").success(), "{rest:?}");
            let _ = ranks[1].wait();
        },
    );
}

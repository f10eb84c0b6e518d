//! Collective operations between threads and between processes of this machine.
//!
//! Time, algorithm bandwidth and bus bandwidth are those of nccl-tests: bytes are those of the larger of input and
//! output, the algorithm bandwidth is bytes by time, and the bus bandwidth is that times the part of the bytes that must
//! cross a link, so that it can be held against the hardware whatever the operation and the number of ranks.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use phalanx_collectives::{Communicator, ReduceOp, WorldConfig, connect, threads};
use serde_json::{Value as Json, json};

use crate::peer::gloo;
use crate::rounds::median;

/// In the environment of a process that is a rank of the benchmark: its rank, the port, and the work as JSON.
const RANK_VARIABLE: &str = "PHALANX_BENCH_RANK";

/// What to measure.
#[derive(Debug, Args)]
pub(crate) struct CollectivesArgs {
    /// The operation
    #[arg(long, value_enum, default_value_t = Op::AllReduce)]
    op: Op,
    /// How many ranks
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    ranks: u64,
    /// How ranks reach each other
    #[arg(long, value_enum, default_value_t = Transport::Shm)]
    transport: Transport,
    /// Sizes, as in 1KiB,64KiB,1MiB,16MiB
    #[arg(long, value_delimiter = ',', value_parser = size, default_value = "1KiB,64KiB,1MiB,16MiB")]
    sizes: Vec<u64>,
    /// Rounds that the medians are taken over
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Does the same with this in the same call
    #[arg(long, value_enum)]
    peer: Option<CollectivesPeer>,
    /// Writes the rows here too
    #[arg(long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
}

/// The operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Op {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
}

/// The ways between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    /// Threads of one process
    Threads,
    /// Processes that share memory
    Shm,
    /// Processes that send messages over TCP's loopback
    Tcp,
}

/// Whom to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CollectivesPeer {
    /// PyTorch's Gloo
    TorchGloo,
}

/// Reads a size in bytes, KiB, MiB or GiB.
fn size(text: &str) -> Result<u64, String> {
    let units = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1), ("", 1)];
    let read = units.iter().find_map(|(unit, factor)| {
        text.strip_suffix(unit).and_then(|number| number.trim().parse::<u64>().ok()).map(|n| n * factor)
    });
    let problem = || format!("`{text}` is no size of whole f32 numbers such as 512B, 64KiB or 16MiB");
    read.filter(|bytes| *bytes > 0 && bytes % 4 == 0).ok_or_else(problem)
}

/// How a size is written.
fn written(bytes: u64) -> String {
    for (unit, factor) in [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{} {unit}", bytes / factor);
        }
    }
    format!("{bytes} B")
}

impl Op {
    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Bus bandwidth by algorithm bandwidth.
    fn bus_factor(self, ranks: f64) -> f64 {
        match self {
            Self::AllReduce => 2.0 * (ranks - 1.0) / ranks,
            Self::ReduceScatter | Self::AllGather => (ranks - 1.0) / ranks,
            Self::Broadcast => 1.0,
        }
    }

    /// Runs once over `values`, which are as many bytes as the row says.
    fn run(self, comm: &Communicator, values: &mut [f32]) -> Result<()> {
        match self {
            Self::AllReduce => comm.all_reduce(values, ReduceOp::Sum)?,
            Self::ReduceScatter => drop(comm.reduce_scatter(values, ReduceOp::Sum)?),
            Self::AllGather => drop(comm.all_gather(&values[..values.len() / comm.world_size()])?),
            Self::Broadcast => comm.broadcast(values, 0)?,
        }
        Ok(())
    }
}

/// One rank's part: every size in turn, some rounds of it; rank 0's seconds are what counts.
fn rank(comm: &Communicator, op: Op, sizes: &[u64], rounds: u64) -> Result<Vec<Vec<f64>>> {
    let mut all = Vec::new();
    for &bytes in sizes {
        let mut values = vec![0.0_f32; usize::try_from(bytes / 4)?];
        for _ in 0..3 {
            op.run(comm, &mut values)?;
        }
        // Rank 0 decides how often, so that a round lasts about a fiftieth of a second.
        let start = Instant::now();
        op.run(comm, &mut values)?;
        let mut repetitions = [(0.02 / start.elapsed().as_secs_f64().max(1e-7)).clamp(1.0, 20_000.0) as i64];
        comm.broadcast(&mut repetitions, 0)?;
        let mut seconds = Vec::new();
        for _ in 0..rounds {
            comm.barrier("round")?;
            let start = Instant::now();
            for _ in 0..repetitions[0] {
                op.run(comm, &mut values)?;
            }
            seconds.push(start.elapsed().as_secs_f64() / repetitions[0] as f64);
        }
        all.push(seconds);
    }
    Ok(all)
}

/// If this process was started as a rank of the benchmark: its part, and then true.
pub(crate) fn as_rank() -> Result<bool> {
    let Ok(work) = std::env::var(RANK_VARIABLE) else { return Ok(false) };
    let work: Json = serde_json::from_str(&work).context("the work of a rank")?;
    let number = |key: &str| work[key].as_u64().with_context(|| format!("`{key}` in {work}"));
    let (own, ranks) = (usize::try_from(number("rank")?)?, usize::try_from(number("ranks")?)?);
    let config = WorldConfig {
        shared_memory: work["shared"] == true,
        ..WorldConfig::local(own, ranks, u16::try_from(number("port")?)?)
    };
    let op = Op::from_str(work["op"].as_str().unwrap_or_default(), false).map_err(|error| anyhow!(error))?;
    let sizes: Vec<u64> = work["sizes"].as_array().into_iter().flatten().filter_map(Json::as_u64).collect();
    let seconds = rank(&connect(&config)?, op, &sizes, number("rounds")?)?;
    if own == 0 {
        println!("{}", json!(seconds));
    }
    Ok(true)
}

/// Starts the ranks as processes and gives rank 0's seconds.
fn processes(args: &CollectivesArgs, ranks: usize) -> Result<Vec<Vec<f64>>> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let start = |rank: usize| -> Result<Child> {
        let work = json!({
            "rank": rank, "ranks": ranks, "port": port, "shared": args.transport == Transport::Shm,
            "op": args.op.name(), "sizes": args.sizes, "rounds": args.rounds,
        });
        let output = if rank == 0 { Stdio::piped() } else { Stdio::null() };
        let program = std::env::current_exe()?;
        Ok(Command::new(program).env(RANK_VARIABLE, work.to_string()).stdout(output).spawn()?)
    };
    let mut children = (0..ranks).map(start).collect::<Result<Vec<_>>>()?;
    let output = children[0].stdout.take().context("rank 0 has an output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    for (rank, child) in children.iter_mut().enumerate() {
        let status = child.wait()?;
        ensure!(status.success(), "rank {rank} ended with {status}; what it said is above");
    }
    serde_json::from_str(&line).with_context(|| format!("rank 0 answered {line:?}"))
}

fn in_threads(args: &CollectivesArgs, ranks: usize) -> Result<Vec<Vec<f64>>> {
    std::thread::scope(|scope| {
        let run = |comm| scope.spawn(move || rank(&comm, args.op, &args.sizes, args.rounds));
        let running: Vec<_> = threads(ranks)?.into_iter().map(run).collect();
        let mut all = Vec::new();
        for rank in running {
            match rank.join() {
                Ok(seconds) => all.push(seconds?),
                Err(_) => bail!("a rank panicked"),
            }
        }
        all.into_iter().next().context("there is a rank")
    })
}

pub(crate) fn run(args: &CollectivesArgs) -> Result<()> {
    let ranks = usize::try_from(args.ranks)?;
    let transport =
        args.transport.to_possible_value().context("a transport has a name")?.get_name().to_owned();
    let ours = match args.transport {
        Transport::Threads => in_threads(args, ranks)?,
        Transport::Shm | Transport::Tcp => processes(args, ranks)?,
    };
    let theirs = match args.peer {
        Some(CollectivesPeer::TorchGloo) => Some(gloo(&args.op.name(), ranks, &args.sizes, args.rounds)?),
        None => None,
    };
    let direct = args.op == Op::AllReduce && args.transport != Transport::Tcp && cfg!(target_os = "linux");
    let algorithm = if direct { "direct" } else { "ring" };
    println!("{}, f32, {ranks} ranks, {transport}, {algorithm}", args.op.name());
    println!(
        "{:>10} {:>12} {:>12} {:>12}{}",
        "bytes",
        "time",
        "algbw GB/s",
        "busbw GB/s",
        if theirs.is_some() { format!(" {:>12} {:>8}", "Gloo", "ratio") } else { String::new() }
    );
    let mut rows = Vec::new();
    for (index, &bytes) in args.sizes.iter().enumerate() {
        let seconds = median(ours[index].clone());
        let bandwidth = bytes as f64 / seconds / 1e9;
        let bus = bandwidth * args.op.bus_factor(ranks as f64);
        let peer = theirs.as_ref().map(|theirs| theirs[index]);
        println!(
            "{:>10} {:>9.1} µs {bandwidth:>12.2} {bus:>12.2}{}",
            written(bytes),
            seconds * 1e6,
            peer.map_or_else(String::new, |peer| format!(" {:>9.1} µs {:>7.2}x", peer * 1e6, peer / seconds)),
        );
        rows.push(json!({
            "op": args.op.name(), "bytes": bytes, "ranks": ranks, "transport": transport, "algorithm": algorithm,
            "time_us": seconds * 1e6, "algbw_gb_s": bandwidth, "busbw_gb_s": bus,
            "peer_time_us": peer.map(|peer| peer * 1e6), "ratio": peer.map(|peer| peer / seconds),
        }));
    }
    crate::write(args.json.as_deref(), &json!({ "rows": rows }))
}

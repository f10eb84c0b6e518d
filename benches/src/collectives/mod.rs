//! Collective operations between threads and between processes of this machine.
//!
//! Time, algorithm bandwidth and bus bandwidth are defined as in nccl-tests. The size is the larger of input and
//! output. The algorithm bandwidth is bytes by time. The bus bandwidth is the algorithm bandwidth times the fraction of
//! the bytes that must cross a link. It is comparable with the hardware's, for every operation and number of ranks.

mod model;
mod work;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use clap::{Args, ValueEnum};
use phalanx_collectives::{Algorithm, Encryption, Secret, WorldConfig, connect, threads};
use serde_json::{Value as Json, json};

use self::work::{Measurements, Op, Work};
use crate::peer::{gloo, openmpi};
use crate::rounds::median;

/// The environment variable of a rank's process. It holds the rank, the port, and the work as JSON.
const RANK_VARIABLE: &str = "PHALANX_BENCH_RANK";

/// The options of `bench collectives`.
#[derive(Debug, Args)]
pub(crate) struct CollectivesArgs {
    /// The operation
    #[arg(long, value_enum, default_value_t = Op::AllReduce)]
    op: Op,
    /// The number of ranks
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    ranks: u64,
    /// The transport between ranks
    #[arg(long, value_enum, default_value_t = Transport::Shm)]
    transport: Transport,
    /// The algorithms: auto, direct, ring, tree, halving-doubling, hierarchical, single, push-pull, 2d; several, or all
    #[arg(long, value_delimiter = ',', default_value = "auto")]
    algorithm: Vec<String>,
    /// Sizes, as in 1KiB,64KiB,1MiB,16MiB
    #[arg(long, value_delimiter = ',', value_parser = size, default_value = "1KiB,64KiB,1MiB,16MiB")]
    sizes: Vec<u64>,
    /// Reduce in place, in buffers in shared memory
    #[arg(long)]
    alloc: bool,
    /// Treat the ranks as spread over this number of hosts: memory inside a host, TCP between hosts
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    hosts: u64,
    /// TCP connections between each pair of ranks
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    streams: u64,
    /// Encrypt TCP connections
    #[arg(long)]
    encrypted: bool,
    /// Compare every algorithm with the cost model, and predict larger worlds
    #[arg(long)]
    model: bool,
    /// Rounds, for the medians
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: u64,
    /// Also measure these libraries in the same call
    #[arg(long, value_enum, value_delimiter = ',')]
    peer: Vec<CollectivesPeer>,
    /// Also write the rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
}

/// The transports between ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Transport {
    /// Threads of one process
    Threads,
    /// Processes that share memory
    Shm,
    /// Processes that send messages over TCP's loopback
    Tcp,
}

/// The libraries to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CollectivesPeer {
    /// PyTorch's Gloo
    TorchGloo,
    /// The system's OpenMPI
    Openmpi,
}

impl CollectivesPeer {
    fn name(self) -> &'static str {
        match self {
            Self::TorchGloo => "Gloo",
            Self::Openmpi => "OpenMPI",
        }
    }
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

/// Formats a size with its largest whole unit.
fn written(bytes: u64) -> String {
    for (unit, factor) in [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        if bytes >= factor && bytes.is_multiple_of(factor) {
            return format!("{} {unit}", bytes / factor);
        }
    }
    format!("{bytes} B")
}

/// Runs the rank's part and returns true if this process was started as a rank of the benchmark.
pub(crate) fn as_rank() -> Result<bool> {
    let Ok(text) = std::env::var(RANK_VARIABLE) else { return Ok(false) };
    let order: Json = serde_json::from_str(&text).context("the work of a rank")?;
    let number = |key: &str| order[key].as_u64().with_context(|| format!("`{key}` in {order}"));
    let (own, ranks) = (usize::try_from(number("rank")?)?, usize::try_from(number("ranks")?)?);
    let hosts = usize::try_from(number("hosts")?)?;
    let encrypted = order["encrypted"] == true;
    let mut config = WorldConfig::local(own, ranks, u16::try_from(number("port")?)?);
    config.host = (hosts > 1).then(|| format!("host {}", own * hosts / ranks));
    config.transport.shared_memory = order["shared"] == true;
    config.transport.streams = usize::try_from(number("streams")?)?;
    // The secret is public: only the cost of encryption is measured.
    config.credentials.secret = encrypted.then(|| Secret::new(b"of the benchmark")).transpose()?;
    config.credentials.encryption = if encrypted { Encryption::All } else { Encryption::None };
    let comm = connect(&config)?;
    let seen = work::rank(&comm, &Work::from_json(&order["work"])?)?;
    if own == 0 {
        println!("{}", seen.to_json());
    }
    comm.barrier("end")?;
    Ok(true)
}

/// Starts the ranks as processes. Returns the measurements of rank 0.
fn processes(args: &CollectivesArgs, work: &Work, ranks: usize) -> Result<Measurements> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let start = |rank: usize| -> Result<Child> {
        let order = json!({
            "rank": rank, "ranks": ranks, "port": port, "shared": args.transport == Transport::Shm,
            "hosts": args.hosts, "streams": args.streams, "encrypted": args.encrypted, "work": work.to_json(),
        });
        let output = if rank == 0 { Stdio::piped() } else { Stdio::null() };
        let program = std::env::current_exe()?;
        Ok(Command::new(program).env(RANK_VARIABLE, order.to_string()).stdout(output).spawn()?)
    };
    let mut children = (0..ranks).map(start).collect::<Result<Vec<_>>>()?;
    let output = children[0].stdout.take().context("rank 0 has an output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    for (rank, child) in children.iter_mut().enumerate() {
        let status = child.wait()?;
        ensure!(status.success(), "rank {rank} ended with {status}; its output is above");
    }
    Measurements::from_json(
        &serde_json::from_str(&line).with_context(|| format!("rank 0 answered {line:?}"))?,
    )
}

fn in_threads(work: &Work, ranks: usize) -> Result<Measurements> {
    std::thread::scope(|scope| {
        let run = |comm| scope.spawn(move || work::rank(&comm, work));
        let running: Vec<_> = threads(ranks)?.into_iter().map(run).collect();
        let mut all = Vec::new();
        for rank in running {
            match rank.join() {
                Ok(seen) => all.push(seen?),
                Err(_) => bail!("a rank panicked"),
            }
        }
        all.into_iter().next().context("there is a rank")
    })
}

/// Returns the requested algorithms.
fn algorithms(args: &CollectivesArgs) -> Result<Vec<Algorithm>> {
    let all = || Algorithm::ALL.into_iter().filter(|algorithm| *algorithm != Algorithm::Auto).collect();
    // Two ranks have only one algorithm.
    if matches!(args.op, Op::SendRecv | Op::Gossip) {
        return Ok(vec![Algorithm::Auto]);
    }
    if args.model || args.algorithm == ["all"] {
        return Ok(all());
    }
    args.algorithm.iter().map(|name| Ok(name.parse()?)).collect()
}

/// Rejects options that exclude each other.
fn check(args: &CollectivesArgs) -> Result<()> {
    let (ranks, hosts) = (args.ranks, args.hosts);
    ensure!(hosts <= ranks, "{hosts} hosts cannot each have one of {ranks} ranks");
    ensure!(
        args.transport != Transport::Threads || (hosts, args.streams) == (1, 1),
        "threads of one process are on one host, and have no TCP connections"
    );
    ensure!(
        !args.encrypted || args.transport == Transport::Tcp || hosts > 1,
        "only what goes over TCP is encrypted: --transport tcp, or --hosts"
    );
    Ok(())
}

/// Runs the operation in the peers.
fn run_peers(args: &CollectivesArgs, op: &str, ranks: usize) -> Result<Vec<Vec<f64>>> {
    let run = |peer: &CollectivesPeer| match peer {
        CollectivesPeer::TorchGloo => gloo(op, ranks, &args.sizes, args.rounds),
        CollectivesPeer::Openmpi => openmpi(op, ranks, &args.sizes, args.rounds),
    };
    args.peer.iter().map(run).collect()
}

/// Prints the column headings.
fn print_head(args: &CollectivesArgs) {
    print!(
        "{:>10} {:>17} {:>12} {:>12} {:>12} {:>10}",
        "bytes", "algorithm", "time", "algbw GB/s", "busbw GB/s", "sent MB"
    );
    args.peer.iter().for_each(|peer| print!(" {:>12} {:>8}", peer.name(), "ratio"));
    println!();
}

pub(crate) fn run(args: &CollectivesArgs) -> Result<()> {
    check(args)?;
    let (ranks, hosts) = (usize::try_from(args.ranks)?, usize::try_from(args.hosts)?);
    let mut transport =
        args.transport.to_possible_value().context("a transport has a name")?.get_name().to_owned();
    if args.encrypted {
        transport.push_str(", encrypted");
    }
    let work = Work {
        op: args.op,
        algorithms: algorithms(args)?,
        sizes: args.sizes.clone(),
        rounds: args.rounds,
        alloc: args.alloc,
        model: args.model,
    };
    let seen = match args.transport {
        Transport::Threads => in_threads(&work, ranks)?,
        Transport::Shm | Transport::Tcp => processes(args, &work, ranks)?,
    };
    let op = args.op.name();
    let peers = run_peers(args, &op, ranks)?;
    let on_hosts = if hosts > 1 { format!(" on {hosts} hosts") } else { String::new() };
    println!("{op}, f32, {ranks} ranks{on_hosts}, {transport}");
    print_head(args);
    let mut rows = Vec::new();
    for (index, &bytes) in args.sizes.iter().enumerate() {
        for cell in seen.timed.iter().filter_map(|row| row[index].as_ref()) {
            let (algorithm, seconds) = (&cell.algorithm, median(cell.seconds.clone()));
            let sent = cell.sent / 1e6;
            let bandwidth = bytes as f64 / seconds / 1e9;
            let bus = bandwidth * args.op.bus_factor(ranks as f64);
            let (size, time) = (written(bytes), seconds * 1e6);
            print!("{size:>10} {algorithm:>17} {time:>9.1} µs {bandwidth:>12.2} {bus:>12.2} {sent:>10.3}");
            let mut row = json!({
                "op": op, "bytes": bytes, "ranks": ranks, "hosts": hosts, "transport": transport,
                "algorithm": algorithm, "time_us": time, "algbw_gb_s": bandwidth, "busbw_gb_s": bus, "sent_mb": sent,
            });
            for (peer, theirs) in args.peer.iter().zip(&peers) {
                let theirs = theirs[index];
                print!(" {:>9.1} µs {:>7.2}x", theirs * 1e6, theirs / seconds);
                row[peer.name()] = json!({ "time_us": theirs * 1e6, "ratio": theirs / seconds });
            }
            println!();
            rows.push(row);
        }
    }
    let mut results = json!({ "rows": rows });
    if let Some(costs) = seen.costs {
        let sizes: Vec<usize> =
            (0..hosts).map(|host| (host + 1) * ranks / hosts - host * ranks / hosts).collect();
        results["model"] = model::report(costs, &seen, &work, &sizes);
    }
    crate::write(args.json.as_deref(), &results)
}

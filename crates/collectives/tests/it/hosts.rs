//! Worlds over several hosts: network namespaces with a slow link between them, or, where those cannot be created, addresses of
//! loopback that count as hosts.
#![cfg(target_os = "linux")]

use std::fs::OpenOptions;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use phalanx_collectives::{Algorithm, CommError, Communicator, Encryption, ReduceOp, WorldConfig, connect};
use serde_json::{Value as Json, json};

/// An environment variable that makes this program play a rank.
const ROLE: &str = "PHALANX_TEST_RANK";

/// The latency of the link in one direction, in milliseconds, and its rate.
const DELAY: f64 = 3.0;
const MEGABITS: f64 = 400.0;

/// Two hosts.
struct Hosts {
    /// The command prefix that runs a program on each host; empty if hosts are only addresses.
    namespaces: Option<[String; 2]>,
    addresses: [String; 2],
    links: Vec<Child>,
    /// A file with the secret of all ranks.
    secret: PathBuf,
}

fn run(command: &mut Command) -> Result<Output, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(output) } else { Err(said) }
}

fn ip(words: &str) -> Result<Output, String> {
    run(Command::new("ip").args(words.split(' '))).map_err(|problem| format!("ip {words}: {problem}"))
}

impl Hosts {
    /// Two namespaces and a slow link; otherwise two addresses, with the reason.
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let id = (std::process::id() % 10_000, COUNT.fetch_add(1, Ordering::Relaxed));
        let names = ["a", "b"].map(|end| format!("phx{}-{}{end}", id.0, id.1));
        let secret = std::env::temp_dir().join(format!("phalanx-hosts-{}-{}", std::process::id(), id.1));
        let hosts = match Self::namespaces(&names, &secret) {
            Ok(hosts) => hosts,
            Err(problem) => {
                println!("hosts are addresses of loopback, without a slow link: {problem}");
                let addresses = ["127.0.0.2".into(), "127.0.0.3".into()];
                Self { namespaces: None, addresses, links: Vec::new(), secret }
            }
        };
        let mut options = OpenOptions::new();
        let file = options.write(true).create(true).mode(0o600).open(&hosts.secret);
        file.and_then(|mut file| file.write_all(b"known on both of the hosts")).expect("a file of ours");
        hosts
    }

    fn namespaces(names: &[String; 2], secret: &Path) -> Result<Self, String> {
        let addresses = ["10.231.7.1".into(), "10.231.7.2".into()];
        let (links, secret) = (Vec::new(), secret.to_owned());
        let mut hosts = Self { namespaces: Some(names.clone()), addresses, links, secret };
        let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/it/hosts/delay.py");
        let mut ends = Vec::new();
        for name in names {
            ip(&format!("netns add {name}"))?;
            ip(&format!("-n {name} link set lo up"))?;
            let mut link = Command::new("ip")
                .args(["netns", "exec", name, "python3"])
                .arg(&script)
                .args(["slow0", &DELAY.to_string(), &MEGABITS.to_string()])
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .map_err(|error| error.to_string())?;
            ends.push((link.stdin.take(), link.stdout.take()));
            hosts.links.push(link);
        }
        // Each end's output is the other's input.
        let (second, first) = (ends.pop(), ends.pop());
        if let (Some((Some(mut in_a), Some(mut out_a))), Some((Some(mut in_b), Some(mut out_b)))) =
            (first, second)
        {
            std::thread::spawn(move || std::io::copy(&mut out_a, &mut in_b));
            std::thread::spawn(move || std::io::copy(&mut out_b, &mut in_a));
        }
        let until = Instant::now() + Duration::from_secs(5);
        for (name, (own, other)) in names.iter().zip([(0, 1), (1, 0)]) {
            // The device exists once its program has opened it.
            while let Err(problem) = ip(&format!("-n {name} link set slow0 mtu 9000 up")) {
                if Instant::now() > until {
                    return Err(problem);
                }
                std::thread::sleep(Duration::from_millis(50));
            }
            let (own, other) = (&hosts.addresses[own], &hosts.addresses[other]);
            ip(&format!("-n {name} addr add {own} peer {other} dev slow0"))?;
        }
        Ok(hosts)
    }

    /// Starts a rank on a host.
    fn rank(&self, host: usize, rank: usize, world: usize, port: u16, role: &str) -> Child {
        let program = std::env::current_exe().expect("this program");
        let mut command = match &self.namespaces {
            Some(names) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &names[host]]).arg(program);
                command
            }
            None => Command::new(program),
        };
        command
            .args(["--exact", "hosts::as_a_rank_on_a_host", "--nocapture"])
            .env(ROLE, role)
            .envs([("RANK", rank.to_string()), ("WORLD_SIZE", world.to_string())])
            .envs([("MASTER_ADDR", self.addresses[0].clone()), ("MASTER_PORT", port.to_string())])
            .env(
                "PHALANX_INTERFACE",
                match (&self.namespaces, role) {
                    (None, _) => self.addresses[host].as_str(),
                    // As on hosts where rank 0's own name has a loopback address.
                    (Some(_), "parts") => "0.0.0.0",
                    (Some(_), _) => "auto",
                },
            )
            .envs([("PHALANX_HOST", format!("host {host}")), ("PHALANX_STREAMS", "2".into())])
            .env("PHALANX_SECRET_FILE", &self.secret)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("this program runs again")
    }

    /// Returns a free port of the first host.
    fn port(&self) -> u16 {
        // A new namespace has no other users.
        if self.namespaces.is_some() {
            return 29_511;
        }
        TcpListener::bind((self.addresses[0].as_str(), 0)).expect("free").local_addr().expect("bound").port()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for link in &mut self.links {
            let _ = link.kill();
            let _ = link.wait();
        }
        let _ = std::fs::remove_file(&self.secret);
        for name in self.namespaces.iter().flatten() {
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

/// A rank that the tests below start as a process; not a test by itself.
#[test]
fn as_a_rank_on_a_host() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut config = WorldConfig::from_env().expect("complete").expect("a launcher");
    // The link is measured without encryption.
    let encryption = if role == "measure" { Encryption::Control } else { Encryption::All };
    config.timeouts.connect = Duration::from_secs(30);
    config.credentials.encryption = encryption;
    let comm = connect(&config).expect("the others are there");
    let answer = match role.as_str() {
        "measure" => measure(&comm),
        "parts" => parts(&comm),
        _ => {
            comm.barrier("begin").expect("all work");
            loop {
                let mut values = vec![1.0_f32; 100_000];
                if let Err(error) = comm.all_reduce(&mut values, ReduceOp::Sum) {
                    break json!({ "error": error.to_string(), "lost": lost(&error) });
                }
            }
        }
    };
    println!("\nanswer {answer}");
}

fn lost(error: &CommError) -> Option<usize> {
    if let CommError::PeerLost { rank, .. } = error { Some(*rank) } else { None }
}

/// Sums of rank numbers over parts with ranks of both hosts. Every part has one rank more of one host than of the other.
fn parts(comm: &Communicator) -> Json {
    let rank = comm.rank();
    let part = comm.split(Some(rank as u32 % 2), 0).expect("a sound world").expect("a colour");
    let within =
        comm.split(Some(u32::from(rank > 1)), -(rank as i64)).expect("a sound world").expect("a colour");
    let sum = |comm: &Communicator| {
        let mut number = [rank as i32];
        comm.all_reduce(&mut number, ReduceOp::Sum).expect("a sound world");
        number[0]
    };
    json!([sum(&part), sum(&within), sum(comm)])
}

/// Runs every algorithm over the slow link; returns its cost.
fn measure(comm: &Communicator) -> Json {
    let (rank, world) = (comm.rank(), comm.world_size());
    let mut seconds = serde_json::Map::new();
    for algorithm in Algorithm::ALL {
        let mut values: Vec<f32> = (0..250_000).map(|i| (i % 10 + rank) as f32).collect();
        let start = Instant::now();
        match comm.using(algorithm).all_reduce(&mut values, ReduceOp::Sum) {
            Err(CommError::Argument { .. }) if algorithm == Algorithm::Direct => continue,
            other => other.expect("a sound world"),
        }
        seconds.insert(algorithm.name().into(), json!(start.elapsed().as_secs_f64()));
        let ranks: usize = (0..world).sum();
        assert!(values.iter().enumerate().all(|(i, v)| *v == (i % 10 * world + ranks) as f32), "{algorithm}");
    }
    comm.all_reduce(&mut vec![0.0_f32; 250_000], ReduceOp::Sum).expect("a sound world");
    let chosen = comm.recent().last().map(|last| last.algorithm.clone());
    let costs = comm.costs().expect("a sound world");
    json!({ "hosts": comm.hosts(), "costs": costs, "seconds": seconds, "auto": chosen })
}

fn answer(mut child: Child) -> Json {
    let mut said = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut said).expect("text");
    assert!(child.wait().expect("a child").success(), "{said}");
    let line = said.lines().find_map(|line| line.strip_prefix("answer ")).unwrap_or_else(|| panic!("{said}"));
    serde_json::from_str(line).expect("JSON")
}

#[test]
fn a_world_over_two_hosts_uses_memory_inside_and_tcp_between() {
    let hosts = Hosts::new();
    let port = hosts.port();
    // Three ranks on one host and two on the other.
    let ranks: Vec<_> = [0, 0, 0, 1, 1]
        .iter()
        .enumerate()
        .map(|(r, host)| hosts.rank(*host, r, 5, port, "measure"))
        .collect();
    let answers: Vec<Json> = ranks.into_iter().map(answer).collect();
    for of_rank in &answers {
        assert_eq!(of_rank["hosts"], json!([0, 0, 0, 1, 1]));
        assert_eq!(of_rank["costs"], answers[0]["costs"]);
        assert_eq!(of_rank["auto"], answers[0]["auto"]);
    }
    println!("{}", answers[0]);
    if hosts.namespaces.is_some() {
        let alpha = |link: &str| answers[0]["costs"][link]["busy"]["alpha"].as_f64().expect("measured");
        assert!(alpha("remote") > DELAY / 1e3, "the delay is seen: {}", answers[0]);
        assert!(alpha("local") < DELAY / 1e3, "and not inside a host: {}", answers[0]);
        assert_eq!(answers[0]["auto"], "hierarchical", "a slow link is crossed once a host");
    }
}

#[test]
fn parts_of_a_world_meet_across_hosts_though_rank_0_listens_everywhere() {
    let hosts = Hosts::new();
    let port = hosts.port();
    let ranks: Vec<_> =
        [0, 0, 1, 1].iter().enumerate().map(|(r, host)| hosts.rank(*host, r, 4, port, "parts")).collect();
    let sums: Vec<Json> = ranks.into_iter().map(answer).collect();
    assert_eq!(sums, [json!([2, 1, 6]), json!([4, 1, 6]), json!([2, 5, 6]), json!([4, 5, 6])]);
}

#[test]
fn a_rank_that_dies_on_another_host_is_named() {
    let hosts = Hosts::new();
    let port = hosts.port();
    let mut ranks: Vec<_> =
        [0, 0, 1, 1].iter().enumerate().map(|(r, host)| hosts.rank(*host, r, 4, port, "work")).collect();
    std::thread::sleep(Duration::from_millis(1500));
    let mut victim = ranks.pop().expect("four");
    // `ip` has become the program that it started.
    victim.kill().expect("it runs");
    victim.wait().expect("a child");
    let killed = Instant::now();
    for rank in ranks {
        let answer = answer(rank);
        assert_eq!(answer["lost"], 3, "{answer}");
    }
    assert!(killed.elapsed() < Duration::from_secs(5));
}

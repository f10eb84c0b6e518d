//! A peer: another library that does the same work in a separate process. It takes one request a line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use serde_json::{Value as Json, json};

/// The libraries to compare with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Library {
    /// PyTorch with torchvision, from `benches/peers/venv` or `$PHALANX_PEER_PYTHON`
    Torch,
}

/// A running peer.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// The name and version of the library, for the report.
    pub(crate) version: String,
}

/// A peer with prepared work.
#[derive(Debug)]
pub(crate) struct PreparedPeer<'a>(&'a mut Peer);

const HOW: &str = "PyTorch as a peer needs a Python with torch and torchvision:\n  python3 -m venv \
                   benches/peers/venv\n  benches/peers/venv/bin/pip install torch torchvision\nor name one in \
                   PHALANX_PEER_PYTHON";

/// The best settings of glibc's allocator for PyTorch.
const KEPT_MEMORY: &str = "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296:\
                           glibc.malloc.hugetlb=1";

/// Returns the folder of the peers' scripts.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

/// Returns the Python interpreter that has the libraries.
fn python() -> PathBuf {
    std::env::var_os("PHALANX_PEER_PYTHON")
        .map_or_else(|| folder().join("venv").join("bin").join("python"), PathBuf::from)
}

/// Runs a script without further requests, and reads its answer.
fn script(name: &str, work: &Json) -> Result<Json> {
    let python = python();
    let output = Command::new(&python)
        .arg(folder().join(name))
        .arg(work.to_string())
        .env("GLIBC_TUNABLES", KEPT_MEMORY)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}\n{HOW}", python.display()))?;
    if !output.status.success() {
        bail!("the peer ended with {}; its output is above\n{HOW}", output.status);
    }
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("the peer answered {:?}", String::from_utf8_lossy(&output.stdout)))
}

/// Measures Gloo: the median seconds of an operation between processes, for every size.
pub(crate) fn gloo(op: &str, ranks: usize, sizes: &[u64], rounds: u64) -> Result<Vec<f64>> {
    let work = json!({ "op": op, "ranks": ranks, "sizes": sizes, "rounds": rounds });
    Ok(serde_json::from_value(script("gloo_peer.py", &work)?)?)
}

/// Measures PyTorch's DDP or FSDP2 over Gloo between processes. Returns the version, and the median seconds of a
/// training step.
pub(crate) fn torch_ranks(work: &Json) -> Result<(String, f64)> {
    let answer = script("torch_ranks_peer.py", work)?;
    let seconds = answer["seconds"].as_f64().with_context(|| format!("the peer answered {answer}"))?;
    Ok((answer["version"].as_str().unwrap_or("unknown").to_owned(), seconds))
}

/// Measures OpenMPI: the median seconds of an operation between processes, for every size. Compiles a C program with
/// the system's `mpicc` and starts it with `mpirun`.
pub(crate) fn openmpi(op: &str, ranks: usize, sizes: &[u64], rounds: u64) -> Result<Vec<f64>> {
    const HOW: &str = "--peer openmpi needs mpicc and mpirun, on Debian from openmpi-bin and libopenmpi-dev";
    let program = std::env::temp_dir().join(format!("phalanx-mpi-peer-{}", std::process::id()));
    let compiled = Command::new("mpicc")
        .args(["-O2", "-o"])
        .arg(&program)
        .arg(folder().join("mpi_peer.c"))
        .status()
        .with_context(|| format!("cannot start mpicc\n{HOW}"))?;
    if !compiled.success() {
        bail!("mpicc ended with {compiled}; its output is above\n{HOW}");
    }
    // mpirun needs explicit options to run as root and with more ranks than cores.
    let output = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()])
        .arg(&program)
        .args([op, &rounds.to_string()])
        .args(sizes.iter().map(u64::to_string))
        .stderr(Stdio::inherit())
        .output();
    // A leftover temporary program does no harm.
    let _ = std::fs::remove_file(&program);
    let output = output.with_context(|| format!("cannot start mpirun\n{HOW}"))?;
    if !output.status.success() {
        bail!("the peer ended with {}; its output is above\n{HOW}", output.status);
    }
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("the peer answered {:?}", String::from_utf8_lossy(&output.stdout)))
}

impl Peer {
    /// Starts the peer with a number of threads.
    pub(crate) fn start(library: Library, threads: usize) -> Result<Self> {
        let Library::Torch = library;
        let (python, script, how) = (python(), folder().join("torch_peer.py"), HOW);
        let mut child = Command::new(&python)
            .arg(&script)
            .arg(threads.to_string())
            .env("OMP_NUM_THREADS", threads.to_string())
            // glibc then keeps freed memory, in huge pages. Without it, PyTorch spends a third of a step with large logits on
            // page faults.
            .env("GLIBC_TUNABLES", KEPT_MEMORY)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}\n{how}", python.display()))?;
        let input = child.stdin.take().context("the peer has an input")?;
        let output = BufReader::new(child.stdout.take().context("the peer has an output")?);
        let mut peer = Self { child, input, output, version: String::new() };
        let hello = peer.answer().with_context(|| format!("the peer did not start\n{how}"))?;
        peer.version = hello["version"].as_str().unwrap_or("unknown").to_owned();
        Ok(peer)
    }

    /// Prepares work. `None` if the peer does not support it.
    pub(crate) fn prepare(&mut self, work: &Json) -> Result<Option<PreparedPeer<'_>>> {
        let answer = self.ask(&json!({ "prepare": work }))?;
        Ok((answer["ready"] == true).then_some(PreparedPeer(self)))
    }

    fn ask(&mut self, question: &Json) -> Result<Json> {
        writeln!(self.input, "{question}").and_then(|()| self.input.flush()).context("the peer has ended")?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Json> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("the peer's answer cannot be read")?;
        if line.is_empty() {
            bail!("the peer ended without an answer; its output is above");
        }
        serde_json::from_str(&line).with_context(|| format!("the peer answered {line:?}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The peer exits when its input closes. Killing it earlier loses nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl PreparedPeer<'_> {
    /// Repeats the work. Returns the seconds of one repetition.
    pub(crate) fn run(&mut self, repetitions: u64) -> Result<f64> {
        let answer = self.0.ask(&json!({ "run": repetitions }))?;
        answer["seconds"].as_f64().with_context(|| format!("the peer answered {answer}"))
    }

    /// Returns the peak memory of the peer, in bytes.
    pub(crate) fn peak_memory(&mut self) -> Result<u64> {
        let answer = self.0.ask(&json!({ "memory": true }))?;
        answer["bytes"].as_u64().with_context(|| format!("the peer answered {answer}"))
    }
}

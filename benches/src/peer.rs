//! A peer: another library that does the same work, in a process of its own that obeys line by line.

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
    /// Its name and version, for the report.
    pub(crate) version: String,
}

/// A peer that has one piece of work ready.
#[derive(Debug)]
pub(crate) struct Prepared<'a>(&'a mut Peer);

const HOW: &str = "PyTorch as a peer needs a Python with torch and torchvision:\n  python3 -m venv \
                   benches/peers/venv\n  benches/peers/venv/bin/pip install torch torchvision\nor name one in \
                   PHALANX_PEER_PYTHON";

/// Where the peers' scripts are.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers")
}

/// The Python that has the libraries.
fn python() -> PathBuf {
    std::env::var_os("PHALANX_PEER_PYTHON")
        .map_or_else(|| folder().join("venv").join("bin").join("python"), PathBuf::from)
}

/// Runs one of the scripts that need no further orders, and reads its answer.
fn script(name: &str, work: &Json) -> Result<Json> {
    let python = python();
    let output = Command::new(&python)
        .arg(folder().join(name))
        .arg(work.to_string())
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {}\n{HOW}", python.display()))?;
    if !output.status.success() {
        bail!("the peer ended with {}; what it said is above\n{HOW}", output.status);
    }
    serde_json::from_slice(&output.stdout)
        .with_context(|| format!("the peer answered {:?}", String::from_utf8_lossy(&output.stdout)))
}

/// Gloo's median seconds of an operation between processes, for every size.
pub(crate) fn gloo(op: &str, ranks: usize, sizes: &[u64], rounds: u64) -> Result<Vec<f64>> {
    let work = json!({ "op": op, "ranks": ranks, "sizes": sizes, "rounds": rounds });
    Ok(serde_json::from_value(script("gloo_peer.py", &work)?)?)
}

/// The version, and the median seconds of a training step, of PyTorch's DDP or FSDP2 over Gloo between processes.
pub(crate) fn torch_ranks(work: &Json) -> Result<(String, f64)> {
    let answer = script("torch_ranks_peer.py", work)?;
    let seconds = answer["seconds"].as_f64().with_context(|| format!("the peer answered {answer}"))?;
    Ok((answer["version"].as_str().unwrap_or("unknown").to_owned(), seconds))
}

/// OpenMPI's median seconds of an operation between processes, for every size: a program in C, compiled with the system's
/// `mpicc` and started with its `mpirun`.
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
        bail!("mpicc ended with {compiled}; what it said is above\n{HOW}");
    }
    // As root, and with more ranks than cores, mpirun wants to be told that this is meant.
    let output = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "-n", &ranks.to_string()])
        .arg(&program)
        .args([op, &rounds.to_string()])
        .args(sizes.iter().map(u64::to_string))
        .stderr(Stdio::inherit())
        .output();
    // Nothing is lost if the temporary program stays.
    let _ = std::fs::remove_file(&program);
    let output = output.with_context(|| format!("cannot start mpirun\n{HOW}"))?;
    if !output.status.success() {
        bail!("the peer ended with {}; what it said is above\n{HOW}", output.status);
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

    /// Makes a piece of work ready. `None` if the peer has no such work.
    pub(crate) fn prepare(&mut self, work: &Json) -> Result<Option<Prepared<'_>>> {
        let answer = self.ask(&json!({ "prepare": work }))?;
        Ok((answer["ready"] == true).then_some(Prepared(self)))
    }

    fn ask(&mut self, question: &Json) -> Result<Json> {
        writeln!(self.input, "{question}").and_then(|()| self.input.flush()).context("the peer has ended")?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Json> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("the peer's answer cannot be read")?;
        if line.is_empty() {
            bail!("the peer ended without an answer; what it said is above");
        }
        serde_json::from_str(&line).with_context(|| format!("the peer answered {line:?}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It ends when its input does; nothing is lost if it is ended before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prepared<'_> {
    /// Repeats the work and gives the seconds of one repetition.
    pub(crate) fn run(&mut self, repetitions: u64) -> Result<f64> {
        let answer = self.0.ask(&json!({ "run": repetitions }))?;
        answer["seconds"].as_f64().with_context(|| format!("the peer answered {answer}"))
    }

    /// The most memory that the peer has held, in bytes.
    pub(crate) fn peak_memory(&mut self) -> Result<u64> {
        let answer = self.0.ask(&json!({ "memory": true }))?;
        answer["bytes"].as_u64().with_context(|| format!("the peer answered {answer}"))
    }
}

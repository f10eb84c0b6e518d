//! A folder of runs with the libraries that programs find there, and comparisons of runs on GPUs with runs on the CPU.

use std::fs;
use std::ops::Deref;
use std::path::Path;
use std::process::Output;

use super::software;
use crate::harness::place::stderr;
pub(crate) use crate::harness::results::{column, json};
use crate::harness::{self, both, results};

/// The variable with the number of GPUs of the software driver.
pub(crate) const DEVICES: &str = "SOFTWARE_GPU_COUNT";

/// A folder of runs, and the libraries that programs find there.
pub(crate) struct Place {
    place: harness::Place,
    /// True if programs find the libraries of the software GPU, and not the machine's own.
    is_software: bool,
}

impl Deref for Place {
    type Target = harness::Place;

    fn deref(&self) -> &harness::Place {
        &self.place
    }
}

impl Place {
    /// None, and a message, where the software GPU cannot be built.
    pub(crate) fn new() -> Option<Self> {
        let libraries = software::libraries()?;
        let place =
            harness::Place::new().with("LD_LIBRARY_PATH", libraries).with("XDG_CACHE_HOME", libraries);
        Some(Self { place, is_software: true })
    }

    /// With the machine's own GPUs if they are asked for.
    pub(crate) fn anywhere() -> Option<Self> {
        if software::is_real() {
            return Some(Self { place: harness::Place::new(), is_software: false });
        }
        Self::new()
    }

    /// Returns true if there are that many GPUs; prints a message if not.
    pub(crate) fn has(&self, gpus: usize) -> bool {
        let there = if self.is_software { gpus } else { phalanx_cuda::Device::count().unwrap_or(0) };
        if there < gpus {
            println!("skipped: {gpus} ranks on {there} GPU(s)");
        }
        there >= gpus
    }

    /// Runs a command with as many GPUs as a line that names ranks has ranks.
    pub(crate) fn output(&self, line: &str) -> Output {
        let ranks = line.split("train.ranks=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or("1");
        self.command(line).env(DEVICES, ranks).output().expect("phalanx runs")
    }

    /// Runs a command that must succeed. Returns its standard output and standard error.
    pub(crate) fn succeed(&self, line: &str) -> String {
        let output = self.output(line);
        assert!(output.status.success(), "{line}: {}", both(&output));
        both(&output)
    }

    /// Runs a command that must fail. Returns its standard error.
    pub(crate) fn fail(&self, line: &str) -> String {
        let output = self.output(line);
        assert!(!output.status.success(), "{line} succeeded");
        stderr(&output)
    }
}

/// Every number of every logged line that is a loss.
pub(crate) fn losses(run: &Path) -> Vec<f64> {
    let lines = results::lines(run);
    let losses = lines.iter().flat_map(|line| line.numbers().filter(|(name, _)| name.ends_with("loss")));
    losses.map(|(_, loss)| loss).collect()
}

/// One rank on a GPU and one on the CPU have the same losses.
pub(crate) fn agree(place: &Place, line: &str, tolerance: f64) {
    agree_on(place, 1, line, tolerance);
}

/// Ranks with a GPU each, and as many on the CPU, have the same losses. Returns the bytes that a rank with a GPU sends
/// in a step.
pub(crate) fn agree_on(place: &Place, ranks: usize, line: &str, tolerance: f64) -> f64 {
    compare(place, ranks, line, tolerance, false)
}

/// As [`agree_on`], and steps by graphs have the bits of those without.
pub(crate) fn agree_on_also_by_graphs(place: &Place, ranks: usize, line: &str, tolerance: f64) -> f64 {
    compare(place, ranks, line, tolerance, true)
}

fn compare(place: &Place, ranks: usize, line: &str, tolerance: f64, graphs: bool) -> f64 {
    if !place.has(ranks) {
        return 0.0;
    }
    let common = format!("--set train.ranks={ranks} --set train.threads=1 --set log.every=1");
    let train = |on: &str, out: &str| place.succeed(&format!("train {line} {common} --set {on} --out {out}"));
    for device in ["cpu", "cuda"] {
        let text = train(&format!("train.device={device}"), device);
        assert_eq!(device == "cuda", text.contains("GPU 0, "), "{text}");
    }
    let [on_cpu, on_gpu] = ["cpu", "cuda"].map(|name| losses(&place.path(name)));
    assert!(on_cpu.len() == on_gpu.len() && on_cpu.len() >= 5, "{} and {}", on_cpu.len(), on_gpu.len());
    let apart = |(a, b): (&f64, &f64)| (a - b).abs() / a.abs().max(1e-3);
    let apart: Vec<f64> = on_cpu.iter().zip(&on_gpu).map(apart).collect();
    let greatest = apart.iter().copied().fold(0.0, f64::max);
    println!("{line}, {ranks} rank(s): losses at most {greatest:.1e} apart, {tolerance:.0e} allowed");
    assert!(apart.iter().all(|apart| *apart <= tolerance), "{line}: {on_cpu:?} and {on_gpu:?}");
    let summary = json(&place.path("cuda/summary.json"));
    if graphs {
        train("train.device=cuda --set train.graphs=true", "graphs");
        assert_eq!(losses(&place.path("graphs")), on_gpu, "{line}, by graphs");
        let log = results::log(&place.path("graphs"), 0);
        assert!(log.contains(" pieces of work are recorded as"), "{line}: nothing was recorded: {log}");
        fs::remove_dir_all(place.path("graphs")).expect("removes");
    }
    for name in ["cpu", "cuda"] {
        fs::remove_dir_all(place.path(name)).expect("removes");
    }
    summary["ranks"][0]["step_bytes_sent"].as_f64().unwrap_or(0.0)
}

/// A run that is interrupted and resumed ends with the losses and weights of one that is not, `whole`.
pub(crate) fn goes_on_bit_for_bit(place: &Place, common: &str) {
    place.succeed(&format!("{common} --steps 5 --out whole"));
    place.succeed(&format!("{common} --steps 3 --out parts"));
    place.succeed(&format!("{common} --steps 5 --out parts --resume"));
    assert_eq!(column(&place.path("whole"), "loss"), column(&place.path("parts"), "loss"));
    for run in ["whole", "parts"] {
        place.succeed(&format!("export {run} --out {run}.safetensors"));
    }
    let [whole, parts] = ["whole", "parts"].map(|run| fs::read(place.path(&format!("{run}.safetensors"))));
    assert!(whole.expect("reads") == parts.expect("reads"), "the weights differ");
}

//! A folder of runs with the libraries that programs find there, and what runs have told.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use super::software;

/// The variable with the number of GPUs of the software driver.
pub(crate) const DEVICES: &str = "SOFTWARE_GPU_COUNT";

/// A folder of runs, and the libraries that programs find there.
pub(crate) struct Place {
    pub(crate) runs: tempfile::TempDir,
    /// The libraries of the software GPU; `None` where the machine's own are used.
    pub(crate) libraries: Option<&'static Path>,
}

impl Place {
    /// None, and a message, where the software GPU cannot be built.
    pub(crate) fn new() -> Option<Self> {
        Self::of(Some(software::libraries()?))
    }

    /// With the machine's own GPUs if they are asked for.
    pub(crate) fn anywhere() -> Option<Self> {
        if software::is_real() { Self::of(None) } else { Self::new() }
    }

    fn of(libraries: Option<&'static Path>) -> Option<Self> {
        Some(Self { runs: tempfile::tempdir().expect("a folder"), libraries })
    }

    /// Returns true if there are that many GPUs; prints a message if not.
    pub(crate) fn has(&self, gpus: usize) -> bool {
        let there = if self.libraries.is_some() { gpus } else { phalanx_cuda::Device::count().unwrap_or(0) };
        if there < gpus {
            println!("skipped: {gpus} ranks on {there} GPU(s)");
        }
        there >= gpus
    }

    pub(crate) fn run(&self, name: &str) -> PathBuf {
        self.runs.path().join(name)
    }

    pub(crate) fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        let words = line.split(' ').filter(|part| !part.is_empty());
        if let Some(libraries) = self.libraries {
            command.env("LD_LIBRARY_PATH", libraries).env("XDG_CACHE_HOME", libraries);
        }
        command.args(words).current_dir(self.runs.path());
        command
    }

    pub(crate) fn output(&self, line: &str) -> Output {
        // As many GPUs as a line that names ranks has ranks.
        let ranks = line.split("train.ranks=").nth(1).and_then(|rest| rest.split(' ').next()).unwrap_or("1");
        self.command(line).env(DEVICES, ranks).output().expect("phalanx runs")
    }

    pub(crate) fn succeed(&self, line: &str) -> String {
        let output = self.output(line);
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{line}: {text}");
        text
    }

    pub(crate) fn fail(&self, line: &str) -> String {
        let output = self.output(line);
        assert!(!output.status.success(), "{line} succeeded");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// A field of every logged line.
pub(crate) fn column(run: &Path, name: &str) -> Vec<f64> {
    let lines = fs::read_to_string(run.join("metrics.jsonl")).expect("reads");
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("is JSON"));
    lines.filter_map(|line| line[name].as_f64()).collect()
}

/// Every number of every logged line that is a loss.
pub(crate) fn losses(run: &Path) -> Vec<f64> {
    let lines = fs::read_to_string(run.join("metrics.jsonl")).expect("reads");
    let mut all = Vec::new();
    for line in lines.lines() {
        let line: Value = serde_json::from_str(line).expect("is JSON");
        let fields = line.as_object().expect("is an object").iter();
        all.extend(fields.filter(|(name, _)| name.ends_with("loss")).filter_map(|(_, value)| value.as_f64()));
    }
    all
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
    let [on_cpu, on_gpu] = ["cpu", "cuda"].map(|name| losses(&place.run(name)));
    assert!(on_cpu.len() == on_gpu.len() && on_cpu.len() >= 5, "{} and {}", on_cpu.len(), on_gpu.len());
    let apart = |(a, b): (&f64, &f64)| (a - b).abs() / a.abs().max(1e-3);
    let apart: Vec<f64> = on_cpu.iter().zip(&on_gpu).map(apart).collect();
    let greatest = apart.iter().copied().fold(0.0, f64::max);
    println!("{line}, {ranks} rank(s): losses at most {greatest:.1e} apart, {tolerance:.0e} allowed");
    assert!(apart.iter().all(|apart| *apart <= tolerance), "{line}: {on_cpu:?} and {on_gpu:?}");
    let summary = fs::read(place.run("cuda").join("summary.json")).expect("reads");
    let summary: Value = serde_json::from_slice(&summary).expect("is JSON");
    if graphs {
        train("train.device=cuda --set train.graphs=true", "graphs");
        assert_eq!(losses(&place.run("graphs")), on_gpu, "{line}, by graphs");
        let log = fs::read_to_string(place.run("graphs").join("logs/rank-0.log")).expect("reads");
        assert!(log.contains(" pieces of work are recorded as"), "{line}: nothing was recorded: {log}");
        fs::remove_dir_all(place.run("graphs")).expect("removes");
    }
    for name in ["cpu", "cuda"] {
        fs::remove_dir_all(place.run(name)).expect("removes");
    }
    summary["ranks"][0]["step_bytes_sent"].as_f64().unwrap_or(0.0)
}

/// A run that is interrupted and resumed ends with the losses and weights of one that is not, `whole`.
pub(crate) fn goes_on_bit_for_bit(place: &Place, common: &str) {
    place.succeed(&format!("{common} --steps 5 --out whole"));
    place.succeed(&format!("{common} --steps 3 --out parts"));
    place.succeed(&format!("{common} --steps 5 --out parts --resume"));
    assert_eq!(column(&place.run("whole"), "loss"), column(&place.run("parts"), "loss"));
    for run in ["whole", "parts"] {
        place.succeed(&format!("export {run} --out {run}.safetensors"));
    }
    let [whole, parts] = ["whole", "parts"].map(|run| fs::read(place.run(&format!("{run}.safetensors"))));
    assert!(whole.expect("reads") == parts.expect("reads"), "the weights differ");
}

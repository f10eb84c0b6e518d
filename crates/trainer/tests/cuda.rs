//! Trainings on a GPU by configuration, in the built program, on the software GPU.
#![cfg(feature = "cuda")]

#[path = "../../cuda/tests/software/mod.rs"]
mod software;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

/// A folder of runs, and the libraries that programs find there.
struct Place {
    runs: tempfile::TempDir,
    libraries: &'static Path,
}

impl Place {
    /// None, and a message, where the software GPU cannot be built.
    fn new() -> Option<Self> {
        let runs = tempfile::tempdir().expect("a folder");
        Some(Self { runs, libraries: software::libraries()? })
    }

    fn run(&self, name: &str) -> PathBuf {
        self.runs.path().join(name)
    }

    fn output(&self, line: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        let words = line.split(' ').filter(|part| !part.is_empty());
        command.env("LD_LIBRARY_PATH", self.libraries).env("XDG_CACHE_HOME", self.libraries);
        command.args(words).current_dir(self.runs.path()).output().expect("phalanx runs")
    }

    fn succeed(&self, line: &str) -> String {
        let output = self.output(line);
        let text =
            format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{line}: {text}");
        text
    }

    fn fail(&self, line: &str) -> String {
        let output = self.output(line);
        assert!(!output.status.success(), "{line} succeeded");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

/// A field of every logged line.
fn column(run: &Path, name: &str) -> Vec<f64> {
    let lines = fs::read_to_string(run.join("metrics.jsonl")).expect("reads");
    let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("is JSON"));
    lines.filter_map(|line| line[name].as_f64()).collect()
}

fn agree(place: &Place, line: &str, tolerance: f64) {
    for device in ["cpu", "cuda"] {
        let common = "--set train.ranks=1 --set log.every=1";
        let text =
            place.succeed(&format!("train {line} {common} --set train.device={device} --out {device}"));
        assert_eq!(device == "cuda", text.contains("GPU 0, software GPU"), "{text}");
    }
    let [on_cpu, on_gpu] = ["cpu", "cuda"].map(|name| column(&place.run(name), "loss"));
    assert_eq!((on_cpu.len(), on_gpu.len()), (5, 5));
    for (step, (a, b)) in on_cpu.iter().zip(&on_gpu).enumerate() {
        assert!((a - b).abs() <= tolerance * a.abs().max(1e-3), "{line}, step {step}: {a} and {b}");
    }
    for name in ["cpu", "cuda"] {
        fs::remove_dir_all(place.run(name)).expect("removes");
    }
}

#[test]
fn an_autoencoder_trains_as_on_the_processor() {
    let Some(place) = Place::new() else { return };
    agree(&place, "tiny --steps 5 --set train.clip_norm=1 --set train.ema=0.9", 1e-4);
    agree(&place, "tiny --steps 5 --set train.precision=bf16", 2e-2);
    agree(&place, "tiny --steps 5 --set train.precision=f16 --set train.recompute=2", 4e-3);
}

#[test]
fn a_run_on_a_gpu_goes_on_bit_for_bit() {
    let Some(place) = Place::new() else { return };
    let common =
        "train tiny --set train.ranks=1 --set log.every=1 --set train.device=cuda --set train.ema=0.9";
    place.succeed(&format!("{common} --steps 5 --out whole"));
    place.succeed(&format!("{common} --steps 3 --out parts"));
    place.succeed(&format!("{common} --steps 5 --out parts --resume"));
    assert_eq!(column(&place.run("whole"), "loss"), column(&place.run("parts"), "loss"));
    for run in ["whole", "parts"] {
        place.succeed(&format!("export {run} --out {run}.safetensors"));
    }
    let [whole, parts] = ["whole", "parts"].map(|run| fs::read(place.run(&format!("{run}.safetensors"))));
    assert!(whole.expect("reads") == parts.expect("reads"), "the weights differ");
    place.succeed("sample whole --prompt red");
}

#[test]
fn classifiers_train_as_on_the_processor() {
    let Some(place) = Place::new() else { return };
    let small = "--steps 5 --set data.kind=shapes --set data.images=64 --set data.test_images=8 \
                 --set model.image_size=16 --set train.global_batch=4 --set train.accumulate=1";
    // Roundings grow at every ReLU of a deep network with batch norm.
    agree(&place, &format!("cifar10-resnet18 {small}"), 3e-2);
}

#[test]
fn what_does_not_train_on_a_gpu_yet_says_so() {
    let Some(place) = Place::new() else { return };
    let error = place.fail("train tiny --steps 1 --ranks 2 --set train.device=cuda --out two");
    assert!(error.contains("trains with one rank, and train.ranks is 2"), "{error}");
    let text = place.succeed("train tiny --steps 1 --set train.ranks=1 --out auto");
    assert!(text.contains("CPU; GPU 0 is software GPU 0"), "{text}");
}

#[test]
fn without_a_driver_the_processor_trains_and_a_gpu_is_an_error_with_names() {
    if phalanx_cuda::libraries::Library::Driver.find().is_ok() {
        println!("skipped: this machine has a driver");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let run = |line: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
        command.args(line.split(' ')).current_dir(folder.path()).output().expect("phalanx runs")
    };
    let output = run("train tiny --steps 1 --set train.ranks=1 --set train.device=cuda --out gpu");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(error.contains("the CUDA driver") && error.contains("libcuda.so.1"), "{error}");
    let output = run("train tiny --steps 1 --set train.ranks=1 --out auto");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("CPU, as the CUDA driver is not there"), "{text}");
}

#[test]
fn the_doctor_examines_gpus_and_libraries() {
    let Some(place) = Place::new() else { return };
    let text = place.succeed("doctor");
    for expected in
        ["cuDNN      9.10.2 (libcudnn.so)", "software GPU 0", "compute capability 9.0", "self-test passed"]
    {
        assert!(text.contains(expected), "no `{expected}` in:\n{text}");
    }
    assert!(text.contains("NCCL       not there") || text.contains("NCCL       2."), "{text}");
}

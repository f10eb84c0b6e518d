//! `cargo xtask test --gpu`: all tests that need a GPU, in one command.

use std::process::{Command, ExitCode};

use crate::{cargo_path, root, target};

/// The environment variable that makes tests use the machine's GPUs instead of the software GPU.
const REAL: &str = "PHALANX_TEST_GPU";

/// The commands, from single kernels to whole trainings, so that the first failure is closest to its cause.
const STEPS: &[(&str, &[&str])] = &[
    ("the machine as the program sees it", &["run", "--release", "--package", "phalanx", "--", "doctor"]),
    // One at a time: nothing else of a process may wait for the GPU while work is recorded.
    (
        "kernels against the CPU's, graphs, replays",
        &["test", "--package", "phalanx-cuda", "--", "--test-threads=1"],
    ),
    (
        "NCCL between the GPUs of this machine",
        &["test", "--package", "phalanx-collectives", "--features", "nccl", "--test", "it", "nccl::"],
    ),
    (
        "ops and whole trainings against the CPU's",
        &[
            "test",
            "--package",
            "phalanx-tensor",
            "--package",
            "phalanx",
            "--test",
            "it",
            "cuda::",
            "--",
            "--include-ignored",
        ],
    ),
];

/// The training under compute-sanitizer.
const WATCHED: &[&str] =
    &["train", "tiny", "--steps", "3", "--set", "train.ranks=1", "--set", "train.device=cuda"];

pub(crate) fn test(arguments: &[String]) -> Result<ExitCode, String> {
    if let Some(unknown) = arguments.iter().find(|argument| *argument != "--gpu") {
        return Err(format!("`test --gpu` takes no further argument: `{unknown}`"));
    }
    let mut failed = Vec::new();
    for (what, command) in STEPS {
        println!("== {what}");
        let status = Command::new(cargo_path()).args(*command).env(REAL, "1").current_dir(root()).status();
        if !status.map_err(|error| format!("cannot start cargo: {error}"))?.success() {
            failed.push(*what);
        }
    }
    println!("== a training under compute-sanitizer");
    match sanitized() {
        Ok(true) => {}
        Ok(false) => failed.push("a training under compute-sanitizer"),
        Err(why) => println!("skipped: {why}"),
    }
    if failed.is_empty() {
        println!("all passed; `cargo xtask bench train --device cuda --peer torch` measures");
        return Ok(ExitCode::SUCCESS);
    }
    Err(format!("failed: {}", failed.join("; ")))
}

/// Runs a training under compute-sanitizer. Returns true if it finds no error.
///
/// # Errors
/// If it is not installed.
fn sanitized() -> Result<bool, String> {
    let sanitizer = "compute-sanitizer";
    Command::new(sanitizer)
        .arg("--version")
        .output()
        .map_err(|_| format!("`{sanitizer}` is not on the PATH; it is part of the CUDA toolkit"))?;
    let out = std::env::temp_dir().join(format!("phalanx-sanitizer-{}", std::process::id()));
    let program = target().join("release").join("phalanx");
    let status = Command::new(sanitizer)
        .args(["--error-exitcode", "1"])
        .arg(program)
        .args(WATCHED)
        .arg("--out")
        .arg(&out)
        .status()
        .map_err(|error| format!("cannot start {sanitizer}: {error}"))?;
    // A leftover temporary folder does no harm.
    let _ = std::fs::remove_dir_all(&out);
    Ok(status.success())
}

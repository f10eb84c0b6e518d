//! `cargo xtask`: builds the release program and runs it. Thin, and without dependencies, so that it starts at
//! once on a fresh clone.

mod docs;
mod fuzz;
mod gpu;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

const HELP: &str = "\
Usage: cargo xtask COMMAND [ARGUMENTS]

  train [PRESET|FILE.toml] ...   trains a model: build in release mode, then `phalanx train`
  plan ...                       says what each strategy would hold and send, without training
  submit, status, logs, cancel   the training as a job of SLURM
  report, serve, watch, trace     pages, live pages, a dashboard and timelines of runs
  study [NAME], sweep FILE.toml  many trainings, and tables and pictures of what came of them
  sample, eval, export, parity, config, doctor, diagnose
                                 the same for the other commands of `phalanx`
  bench kernels|train|collectives ...
                                 measures, with --peer beside PyTorch
  bench codecs ...               codecs of gradients: ratio, error, speed, training over slow links
  bench memory ...               what strategies hold, predicted and measured
  bench strategies ...           trains by every strategy and writes one table and a picture
  bench versions ...             training steps of this build beside those of another
  chaos --seed S --schedules N   small trainings that are killed, stopped and cut off at drawn instants, and resumed: each must end in the
                                 weights of the undisturbed one, or with a named error
  test [--full] ...              runs all tests; with --full also those that are ignored for their length, and where
                                 PHALANX_CUDA_TOOLKIT names a CUDA toolkit, its compiler takes every kernel of the GPU
  test --gpu                     runs what a machine with GPUs can show, on its own GPUs and libraries: kernels, ops,
                                 NCCL, whole trainings, and a training under compute-sanitizer where that is installed
  docs [--all] [--list] [WORD ...]
                                 makes tables and pictures of the documentation again, by the commands beside them
  test --slurm                   starts a SLURM of two nodes on this machine (Debian: slurmctld slurmd slurm-client) and runs
                                 jobs on it: queued again, a lost node, cancelled, out of time
  fuzz [--guided] [READER ...] --minutes M --seed S
                                 gives drawn and damaged bytes to every reader of bytes from outside; --list names them;
                                 --guided counts which code is reached, and goes on from inputs that reach more
  tidy                           checks the house rules: dependency edges, file headers and lengths, printing
  ci                             what continuous integration runs
  help                           this text

`cargo xtask train --help` and so on explain the arguments.";

/// Commands of the program that are passed on as they are.
const PASSED_ON: &[&str] = &[
    "train", "plan", "submit", "status", "logs", "cancel", "study", "sweep", "report", "serve", "watch",
    "trace", "sample", "eval", "export", "parity", "config", "doctor", "diagnose",
];

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = if arguments.is_empty() { "help".to_owned() } else { arguments.remove(0) };
    let outcome = match command.as_str() {
        name if PASSED_ON.contains(&name) => program(name, &arguments),
        "test" if arguments.iter().any(|argument| argument == "--gpu") => gpu::test(&arguments),
        "test" if arguments.iter().any(|argument| argument == "--slurm") => {
            arguments.retain(|argument| argument != "--slurm");
            let test = ["test", "--workspace", "--test", "slurm", "--", "--include-ignored", "--nocapture"];
            // Asked for by name they fail where SLURM is missing.
            run(Command::new(cargo_path()).args(test).env("PHALANX_TEST_SLURM", "1").current_dir(root()))
        }
        "test" => {
            let full =
                arguments.iter().position(|argument| argument == "--full").map(|at| arguments.remove(at));
            let mut all = vec!["test", "--workspace"];
            all.extend(arguments.iter().map(String::as_str));
            if full.is_some() {
                all.extend(if arguments.iter().any(|argument| argument == "--") {
                    vec![]
                } else {
                    vec!["--"]
                });
                all.push("--include-ignored");
            }
            cargo(&all)
        }
        "bench" => bench(&arguments),
        "chaos" => bench(&prefixed(&["chaos"], &arguments)),
        "docs" => match build() {
            Ok(Some(failed)) => Ok(failed),
            Ok(None) => docs::docs(&arguments, &root(), &target()),
            Err(problem) => Err(problem),
        },
        "fuzz" => fuzz::fuzz(arguments),
        "tidy" => cargo(&prefixed(&["test", "--quiet", "--package", "xtask", "--test", "tidy"], &arguments)),
        "ci" => run(&mut Command::new(root().join(".ci").join("run"))),
        "help" | "--help" | "-h" => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        unknown => {
            eprintln!("error: there is no task `{unknown}`\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    outcome.unwrap_or_else(|message| {
        eprintln!("error: {message}");
        ExitCode::FAILURE
    })
}

/// Builds the benchmarks in release mode and runs one of them, in the current folder, which paths in the arguments are meant from.
fn bench(arguments: &[impl AsRef<std::ffi::OsStr>]) -> Result<ExitCode, String> {
    let mut command = Command::new(cargo_path());
    command.args(["run", "--release", "--package", "phalanx-benches", "--manifest-path"]);
    command.arg(root().join("Cargo.toml")).arg("--").args(arguments);
    // As `phalanx` runs: candle's own threads would spin beside those of the kernels, and the allocator would give pages back
    // between steps.
    run(command.envs([("CANDLE_NUM_THREADS", "1"), ("MIMALLOC_PURGE_DELAY", "10000")]))
}

/// Builds the program in release mode and runs one of its commands in the current folder.
fn program(command: &str, arguments: &[String]) -> Result<ExitCode, String> {
    if let Some(failed) = build()? {
        return Ok(failed);
    }
    let mut program =
        Command::new(target().join("release").join(format!("phalanx{}", std::env::consts::EXE_SUFFIX)));
    run(program.arg(command).args(arguments))
}

/// Builds the program in release mode; the exit code of a build that failed.
fn build() -> Result<Option<ExitCode>, String> {
    let manifest = root().join("Cargo.toml");
    let mut build = Command::new(cargo_path());
    build.args(["build", "--release", "--package", "phalanx-trainer", "--bin", "phalanx", "--manifest-path"]);
    build.arg(&manifest);
    let built = build.status().map_err(|error| format!("cannot start cargo: {error}"))?;
    Ok((!built.success()).then(|| code(built)))
}

/// Runs cargo in the workspace's root.
fn cargo(arguments: &[&str]) -> Result<ExitCode, String> {
    run(Command::new(cargo_path()).args(arguments).current_dir(root()))
}

fn prefixed<'a>(prefix: &[&'a str], arguments: &'a [String]) -> Vec<&'a str> {
    prefix.iter().copied().chain(arguments.iter().map(String::as_str)).collect()
}

/// Becomes the command where the system can do that, so that signals and exit codes need no passing on.
fn run(command: &mut Command) -> Result<ExitCode, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    #[cfg(unix)]
    {
        let error = std::os::unix::process::CommandExt::exec(command);
        Err(format!("cannot start {name}: {error}"))
    }
    #[cfg(not(unix))]
    {
        command.status().map(code).map_err(|error| format!("cannot start {name}: {error}"))
    }
}

fn code(status: ExitStatus) -> ExitCode {
    ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Where cargo builds.
fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from)
}

fn cargo_path() -> PathBuf {
    std::env::var_os("CARGO").map_or_else(|| PathBuf::from("cargo"), PathBuf::from)
}

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().unwrap_or(here).to_owned()
}

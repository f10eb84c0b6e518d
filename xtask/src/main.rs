//! `cargo xtask`: developer tasks. It has no dependencies, so it builds quickly on a fresh clone.
//!
//! Any other word is a command or an option of `phalanx`: xtask builds the program in release mode and runs it.

mod docs;
mod fuzz;
mod gpu;
mod release;
mod site;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, ExitStatus};

const HELP: &str = "\
Usage: cargo xtask COMMAND [ARGUMENTS]

  train [PRESET|FILE.toml] ...   build `phalanx` in release mode and train a model
  plan, submit, report, ...      the other commands of `phalanx`, in the same way (`cargo xtask config --help` and so on)

Measure:
  bench kernels|train|collectives ...
                                 speed, with --peer next to PyTorch
  bench loader ...               images of a loader, with and without augmentation
  bench codecs ...               gradient codecs: ratio, error, speed, training over slow links
  bench memory ...               predicted and measured memory of strategies
  bench bubbles ...              pipelines: the time in which ranks wait
  bench parallel ...             cut language models by samples and by layers; with --peer next to PyTorch
  bench strategies ...           train by every strategy; write one table and a picture
  bench versions ...             training steps of this build next to those of another

Test:
  test [--full] ...              run all tests; --full adds the long ones, and compiles every GPU kernel with the toolkit that
                                 PHALANX_CUDA_TOOLKIT names
  test --gpu                     run the tests of GPUs on this machine's GPUs: kernels, ops, NCCL, whole trainings, and a training
                                 under compute-sanitizer if it is installed
  test --slurm                   start a SLURM of two nodes on this machine and run jobs on it: requeued, a lost node, cancelled,
                                 out of time (Debian: slurmctld slurmd slurm-client)
  parity FILE.json ...           compare with recorded values of the reference implementations
  chaos --seed S --schedules N   kill, stop and cut off small trainings at random times, damage their checkpoints and resume them;
                                 each must end in the weights of the undisturbed one, or with a named error
  chaos --flips N                flip N bits of checkpoints, one at a time; each must be named and the older checkpoint used
  fuzz [READER ...] --minutes M  give damaged bytes to every reader of bytes from outside, guided by libFuzzer; --list prints them

Check:
  tidy [--count|--show PLACE]    check the house rules; --count writes the table of counts, --show lists what is counted there
  docs [--all] [--list] [WORD ...]
                                 make tables and pictures of the documentation again, by the commands next to them
  ci                             run what continuous integration runs

Publish:
  site [--serve]                 make the site of the documentation with mdBook
  release build [--target T]     archives of the program, its symbols, completions and manual pages
  release address URL            set the public address of the source in manifests and pages

`cargo xtask train --help` explains the arguments of a command.";

/// The user's program.
const PROGRAM: &str = "phalanx";

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let command = if arguments.is_empty() { "help".to_owned() } else { arguments.remove(0) };
    let outcome = match command.as_str() {
        "test" if arguments.iter().any(|argument| argument == "--gpu") => gpu::test(&arguments),
        "test" if arguments.iter().any(|argument| argument == "--slurm") => test_slurm(arguments),
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
        "bench" => developers_program("phalanx-bench", &arguments),
        "chaos" => developers_program("phalanx-bench", &prefixed(&["chaos"], &arguments)),
        "parity" => developers_program("phalanx-parity", &arguments),
        "docs" => match build(PROGRAM) {
            Ok(Some(failed)) => Ok(failed),
            Ok(None) => docs::docs(&arguments, &root(), &target()),
            Err(problem) => Err(problem),
        },
        "fuzz" => fuzz::fuzz(&arguments),
        "release" => release::release(&arguments, &root(), &target()),
        "site" => site::site(&arguments, &root(), &target()),
        "tidy" => tidy(&arguments),
        "ci" => run(&mut Command::new(root().join(".ci").join("run"))),
        "help" | "--help" | "-h" => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        // The program itself reports errors in its arguments.
        command => program(command, &arguments),
    };
    outcome.unwrap_or_else(|message| {
        eprintln!("error: {message}");
        ExitCode::FAILURE
    })
}

/// Runs the tests of SLURM on a cluster of two nodes on this machine.
fn test_slurm(mut arguments: Vec<String>) -> Result<ExitCode, String> {
    arguments.retain(|argument| argument != "--slurm");
    let test =
        ["test", "--package", "phalanx", "--test", "it", "slurm::", "--", "--include-ignored", "--nocapture"];
    // With this variable the tests fail without SLURM instead of being skipped.
    run(Command::new(cargo_path())
        .args(test)
        .args(arguments)
        .env("PHALANX_TEST_SLURM", "1")
        .current_dir(root()))
}

/// Checks the house rules. `--count` writes the table of counts, `--show PLACE` lists the findings there.
fn tidy(arguments: &[String]) -> Result<ExitCode, String> {
    let mut command = Command::new(cargo_path());
    command.args(["test", "--quiet", "--package", "xtask", "--test", "tidy"]).current_dir(root());
    let task = match arguments {
        [count] if count == "--count" => "write",
        [show, place] if show == "--show" => place,
        _ => return run(command.args(arguments)),
    };
    run(command.args(["counts::", "--", "--nocapture"]).env("PHALANX_TIDY_COUNTS", task))
}

/// Builds a developer program in release mode and runs it in the current folder.
fn developers_program(name: &str, arguments: &[impl AsRef<std::ffi::OsStr>]) -> Result<ExitCode, String> {
    if let Some(failed) = build(name)? {
        return Ok(failed);
    }
    // The settings that `phalanx` makes itself. Without them candle's threads would spin next to the kernels' threads,
    // and the allocator would return pages between steps.
    let settings = [("CANDLE_NUM_THREADS", "1"), ("MIMALLOC_PURGE_DELAY", "10000")];
    run(Command::new(built(name)).args(arguments).envs(settings))
}

/// Builds `phalanx` in release mode and runs one of its commands in the current folder.
fn program(command: &str, arguments: &[String]) -> Result<ExitCode, String> {
    if let Some(failed) = build(PROGRAM)? {
        return Ok(failed);
    }
    run(Command::new(built(PROGRAM)).arg(command).args(arguments))
}

/// Builds a program in release mode. Returns the exit code of a failed build.
///
/// The selected packages decide the features of their dependencies. Developer programs are built with all packages,
/// `phalanx` with the default ones, as by `cargo build`. Both have the same features (a test of tidy compares them), so
/// no crate is compiled twice.
fn build(program: &str) -> Result<Option<ExitCode>, String> {
    let mut build = Command::new(cargo_path());
    build.args(["build", "--release", "--bin", program]);
    if program != PROGRAM {
        build.args(["--workspace", "--exclude", "phalanx-fuzz"]);
    }
    build.arg("--manifest-path").arg(root().join("Cargo.toml"));
    let status = build.status().map_err(|error| format!("cannot start cargo: {error}"))?;
    Ok((!status.success()).then(|| code(status)))
}

/// Returns the path of a program built by [`build`].
fn built(program: &str) -> PathBuf {
    target().join("release").join(format!("{program}{}", std::env::consts::EXE_SUFFIX))
}

/// Runs cargo in the root of the workspace.
fn cargo(arguments: &[&str]) -> Result<ExitCode, String> {
    run(Command::new(cargo_path()).args(arguments).current_dir(root()))
}

fn prefixed<'a>(prefix: &[&'a str], arguments: &'a [String]) -> Vec<&'a str> {
    prefix.iter().copied().chain(arguments.iter().map(String::as_str)).collect()
}

/// Replaces this process by the command if the system supports it, so that signals and exit codes pass through.
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

/// The folder of build outputs.
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

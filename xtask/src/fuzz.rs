//! The fuzzer, in a development build, or guided by which code its inputs reach.

use std::process::{Command, ExitCode};

use crate::{cargo, cargo_path, prefixed, root, run, target};

/// What makes the compiler count passed edges: LLVM's SanitizerCoverage, which needs no nightly toolchain.
const COUNTED: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=3 \
                       -Cllvm-args=-sanitizer-coverage-inline-8bit-counters";

pub(crate) fn fuzz(mut arguments: Vec<String>) -> Result<ExitCode, String> {
    let Some(at) = arguments.iter().position(|argument| argument == "--guided") else {
        // With the checks of a development build, which find more; what is hot is optimised there too.
        return cargo(&prefixed(&["run", "--quiet", "--package", "phalanx-fuzz", "--"], &arguments));
    };
    arguments.remove(at);
    // A target that is named keeps the counters out of build scripts and macros, which nobody would count.
    let host = host()?;
    let folder = target().join("guided");
    let mut command = Command::new(cargo_path());
    command.args(["run", "--package", "phalanx-fuzz", "--profile", "fuzz", "--target", &host]);
    command.arg("--target-dir").arg(&folder).arg("--").args(&arguments);
    if !arguments.iter().any(|argument| argument.starts_with("--corpus")) {
        command.arg("--corpus").arg(target().join("fuzz").join("corpus"));
    }
    run(command.env("RUSTFLAGS", COUNTED).current_dir(root()))
}

/// The triple that the compiler builds for.
fn host() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output =
        Command::new(rustc).arg("-vV").output().map_err(|error| format!("cannot start rustc: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "`rustc -vV` names no host".to_owned())
}

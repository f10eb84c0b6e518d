//! Errors of the driver's stand-in for captures and graphs, called through its C interface.

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use crate::software;

/// `driver_rules.cpp`, linked with the stand-in for the driver.
struct Program {
    built: TempDir,
    libraries: &'static Path,
}

impl Program {
    /// Builds the program. None where there is no C++ compiler.
    fn build() -> Option<Self> {
        let libraries = software::libraries()?;
        let built = tempfile::tempdir().expect("a folder");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/driver_rules.cpp");
        let mut command = Command::new(software::compiler());
        command.args(["-std=c++17", "-Wall", "-Wextra", "-Werror"]).arg(source);
        command.arg("-o").arg(built.path().join("driver_rules")).arg(libraries.join("libcuda.so.1"));
        let output = command.output().expect("the compiler runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(Self { built, libraries })
    }

    /// Runs one case.
    fn run(&self, case: &str) -> Output {
        let mut command = Command::new(self.built.path().join("driver_rules"));
        command.arg(case).env("LD_LIBRARY_PATH", self.libraries).env("SOFTWARE_GPU_DELAY", "2000");
        command.output().expect("it runs")
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn errors_are_those_of_the_driver() {
    if let Some(program) = Program::build() {
        let output = program.run("answers");
        assert!(output.status.success() && text(&output).contains("all is refused"), "{}", text(&output));
    }
}

#[test]
fn undefined_behaviour_ends_the_process() {
    let Some(program) = Program::build() else { return };
    for (name, expected) in [
        ("allocation", "an allocation on a stream that captures"),
        ("freeing", "freeing on a stream that captures"),
        ("default stream", "on the default stream"),
        ("destroyed stream", "the end of a stream that captures"),
        ("freed since", "freed"),
        ("not waited for", "missing wait: a graph on stream 2"),
        ("while it runs", "a graph was destroyed while it runs"),
    ] {
        let output = program.run(name);
        let text = text(&output);
        assert!(!output.status.success(), "{name} was accepted: {text}");
        assert!(
            text.contains("software GPU: ") && text.contains(expected),
            "{name}: not `{expected}`: {text}"
        );
    }
}

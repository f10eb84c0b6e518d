//! What the stand-in of the driver refuses of captures and graphs, called through its C interface, without this crate between.

mod software;

use std::path::Path;
use std::process::{Command, Output};

/// Runs one case of the program; nothing where there is no C++ compiler.
fn case(name: &str) -> Option<Output> {
    let folder = software::libraries()?;
    let program = tempfile::tempdir().expect("a folder");
    let at = program.path().join("rules");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/software/rules.cpp");
    let compiler =
        std::env::var("CXX").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "c++".to_owned());
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-Wall", "-Wextra", "-Werror"]).arg(source).arg("-o").arg(&at);
    let built = command.arg(folder.join("libcuda.so.1")).output().expect("the compiler runs");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let mut command = Command::new(at);
    command.arg(name).env("LD_LIBRARY_PATH", folder).env("SOFTWARE_GPU_DELAY", "2000");
    Some(command.output().expect("it runs"))
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn answers_are_those_of_the_driver() {
    if let Some(output) = case("answers") {
        assert!(output.status.success() && text(&output).contains("all is refused"), "{}", text(&output));
    }
}

#[test]
fn what_the_driver_leaves_undefined_ends_the_process() {
    for (name, expected) in [
        ("allocation", "an allocation on a stream that captures"),
        ("freeing", "freeing on a stream that captures"),
        ("default stream", "on the default stream"),
        ("destroyed stream", "the end of a stream that captures"),
        ("freed since", "freed"),
        ("not waited for", "missing wait: a graph on stream 2"),
        ("while it runs", "a graph was destroyed while it runs"),
    ] {
        let Some(output) = case(name) else { return };
        let text = text(&output);
        assert!(!output.status.success(), "{name} was accepted: {text}");
        assert!(
            text.contains("software GPU: ") && text.contains(expected),
            "{name}: not `{expected}`: {text}"
        );
    }
}

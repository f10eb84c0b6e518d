//! Tests on the software GPU: stand-ins for NVIDIA's libraries, built here by the C++ compiler, in a process that finds them.
//!
//! A test hands its body to [`run`]. In the process that was started by the test runner that builds the stand-ins and starts the
//! same test again, with the libraries' folder on the loader's path; there the body runs.
#![allow(dead_code)]

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Set in processes whose loader finds the stand-ins.
const INSIDE: &str = "PHALANX_SOFTWARE_GPU";

/// The crate of the stand-ins' sources, seen from any crate of the workspace.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cuda/software-gpu");
const FIBRES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cuda/fibres/fibres.h");

/// Stand-ins: source, file, and what else it may be called.
const LIBRARIES: &[(&str, &str, &[&str])] = &[
    ("driver.cpp", "libcuda.so.1", &["libcuda.so"]),
    ("nvrtc.cpp", "libnvrtc.so.13", &["libnvrtc.so"]),
    ("cublaslt.cpp", "libcublasLt.so.13", &["libcublasLt.so"]),
    ("cudnn.cpp", "libcudnn.so.9", &["libcudnn.so"]),
    ("nvml.cpp", "libnvidia-ml.so.1", &["libnvidia-ml.so"]),
];

fn compiler() -> String {
    std::env::var("CXX").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "c++".to_owned())
}

/// A hash of all sources, so that changed ones are built anew.
fn version() -> u64 {
    let mut files: Vec<PathBuf> = fs::read_dir(SOURCES)
        .expect("software-gpu/")
        .filter_map(Result::ok)
        .map(|file| file.path())
        .collect();
    files.push(FIBRES.into());
    files.sort();
    let mut hasher = DefaultHasher::new();
    for file in files {
        hasher.write(&fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())));
    }
    hasher.write(format!("{LIBRARIES:?}").as_bytes());
    hasher.finish()
}

fn build(folder: &Path) {
    for (source, file, names) in LIBRARIES {
        let mut command = Command::new(compiler());
        command.args([
            "-std=c++17",
            "-O3",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
            "-fvisibility=hidden",
        ]);
        command
            .arg(format!("-DFIBRES=\"{}\"", Path::new(FIBRES).canonicalize().expect("fibres.h").display()));
        command.arg(Path::new(SOURCES).join(source)).arg("-o").arg(folder.join(file));
        command.arg(format!("-Wl,-soname,{file}"));
        if *source != "driver.cpp" {
            command.arg(folder.join("libcuda.so.1")).arg("-Wl,-rpath,$ORIGIN");
        }
        let output = command.args(["-ldl", "-lpthread"]).output().expect("the compiler runs");
        assert!(output.status.success(), "{source}:\n{}", String::from_utf8_lossy(&output.stderr));
        for name in *names {
            std::os::unix::fs::symlink(file, folder.join(name)).expect("a link");
        }
    }
}

/// The folder of the stand-ins, built if they are not yet; nothing, and a message, where there is no C++ compiler.
pub(crate) fn libraries() -> Option<&'static Path> {
    static FOLDER: OnceLock<Option<PathBuf>> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| {
        if !Command::new(compiler()).arg("--version").output().is_ok_and(|output| output.status.success()) {
            return None;
        }
        // …/target/debug/deps/test-hash
        let program = std::env::current_exe().expect("this program has a file");
        let top = program.ancestors().nth(2).expect("a build folder").join("software-gpu");
        let folder = top.join(format!("{:016x}", version()));
        if !folder.exists() {
            let draft = top.join(format!("draft-{}", std::process::id()));
            fs::create_dir_all(&draft).expect("a folder");
            build(&draft);
            if fs::rename(&draft, &folder).is_err() {
                // Another process was faster.
                let _ = fs::remove_dir_all(&draft);
            }
        }
        Some(folder)
    });
    if folder.is_none() {
        println!("skipped: no C++ compiler, which the software GPU is built with");
    }
    folder.as_deref()
}

/// Where kernels that were compiled for the software GPU are kept.
pub(crate) fn cache() -> PathBuf {
    PathBuf::from(std::env::var_os("LD_LIBRARY_PATH").expect("inside")).join("kernels")
}

fn started(settings: &[(&str, &str)]) -> Option<Output> {
    let folder = libraries()?;
    let test = std::thread::current().name().expect("tests run on threads of their names").to_owned();
    let mut command = Command::new(std::env::current_exe().expect("this program has a file"));
    command.args([&test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(INSIDE, "1").env("LD_LIBRARY_PATH", folder).envs(settings.iter().copied());
    Some(command.output().expect("the test starts again"))
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

pub(crate) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs a test's body where the libraries are the software GPU's.
pub(crate) fn run(body: impl FnOnce()) {
    run_with(&[], body);
}

/// Runs a test's body on a software GPU with settings: `SOFTWARE_GPU_COUNT` (1), `SOFTWARE_GPU_MEMORY` in bytes,
/// `SOFTWARE_GPU_DELAY` in microseconds, `SOFTWARE_GPU_SEED`, `SOFTWARE_GPU_ORDER` of a block's threads.
pub(crate) fn run_with(settings: &[(&str, &str)], body: impl FnOnce()) {
    if is_inside() {
        return body();
    }
    if let Some(output) = started(settings) {
        assert!(output.status.success(), "{}", text(&output));
        assert!(text(&output).contains("1 passed"), "the test did not run again:\n{}", text(&output));
    }
}

/// Runs a test's body, which the software GPU must end with a message that contains `expected`.
pub(crate) fn refused(expected: &str, body: impl FnOnce()) {
    if is_inside() {
        return body();
    }
    if let Some(output) = started(&[]) {
        let text = text(&output);
        assert!(!output.status.success(), "it was accepted:\n{text}");
        assert!(text.contains("software GPU: ") && text.contains(expected), "not `{expected}`:\n{text}");
    }
}

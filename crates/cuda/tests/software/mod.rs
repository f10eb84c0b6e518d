//! Tests on the software GPU: stand-ins for NVIDIA's libraries, built by the C++ compiler and found by a child process.
//!
//! A test passes its body to [`run`]. The test runner's process builds the stand-ins once, and starts the same test again with
//! their folder on the loader's path. The body runs in that child process.
#![allow(dead_code)]

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::Hasher as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Set in processes whose loader finds the stand-ins.
const INSIDE: &str = "PHALANX_SOFTWARE_GPU";

/// The sources of the stand-ins, from any crate of the workspace.
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cuda/software-gpu");
const FIBRES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../cuda/fibres");

/// The stand-in for the driver, which the others link.
const DRIVER: &str = "libcuda.so.1";

/// The stand-ins: source file or folder, library file, and further file names. The driver's comes first.
const LIBRARIES: &[(&str, &str, &[&str])] = &[
    ("driver", DRIVER, &["libcuda.so"]),
    ("nvrtc.cpp", "libnvrtc.so.13", &["libnvrtc.so"]),
    ("cublaslt.cpp", "libcublasLt.so.13", &["libcublasLt.so"]),
    ("cudnn.cpp", "libcudnn.so.9", &["libcudnn.so"]),
    ("nccl", "libnccl.so.2", &[]),
    ("nvml.cpp", "libnvidia-ml.so.1", &["libnvidia-ml.so"]),
];

/// The C++ compiler: `$CXX`, or `c++`.
pub(crate) fn compiler() -> String {
    std::env::var("CXX").ok().filter(|name| !name.is_empty()).unwrap_or_else(|| "c++".to_owned())
}

/// Returns the files of a folder and its subfolders, in order.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .filter_map(Result::ok);
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.path())
        .flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] })
        .collect();
    files.sort();
    files
}

/// Returns a hash of all sources, so that changed ones are rebuilt.
fn version() -> u64 {
    let mut hasher = DefaultHasher::new();
    for file in [SOURCES, FIBRES].into_iter().flat_map(|folder| files(Path::new(folder))) {
        hasher.write(&fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())));
    }
    hasher.write(format!("{LIBRARIES:?}").as_bytes());
    hasher.finish()
}

fn build(folder: &Path) {
    // Kernels are compiled with this header. It lies next to the stand-ins, as their folder outlives the checkout where CI keeps it.
    let fibres = folder.join("fibres");
    fs::create_dir(&fibres).expect("a folder");
    for file in files(Path::new(FIBRES)) {
        fs::copy(&file, fibres.join(file.file_name().expect("a name"))).expect("a copy");
    }
    for (source, file, names) in LIBRARIES {
        let source = Path::new(SOURCES).join(source);
        let sources = if source.is_dir() { files(&source) } else { vec![source.clone()] };
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
        command.args(sources.iter().filter(|file| file.extension().is_some_and(|ending| ending == "cpp")));
        command.arg("-o").arg(folder.join(file)).arg(format!("-Wl,-soname,{file}"));
        if *file != DRIVER {
            command.arg(folder.join(DRIVER)).arg("-Wl,-rpath,$ORIGIN");
        }
        let output = command.args(["-ldl", "-lpthread"]).output().expect("the compiler runs");
        assert!(
            output.status.success(),
            "{}:\n{}",
            source.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        for name in *names {
            std::os::unix::fs::symlink(file, folder.join(name)).expect("a link");
        }
    }
}

/// Returns the folder of the stand-ins, and builds them if necessary. None, with a message, where there is no C++ compiler.
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

/// Returns the cache folder of kernels compiled for the software GPU.
pub(crate) fn cache() -> PathBuf {
    PathBuf::from(std::env::var_os("LD_LIBRARY_PATH").expect("inside")).join("kernels")
}

fn started(settings: &[(&str, &str)]) -> Option<Output> {
    let folder = libraries()?;
    let test = std::thread::current().name().expect("tests run on threads of their names").to_owned();
    let mut command = Command::new(std::env::current_exe().expect("this program has a file"));
    command.args([&test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
    // The cache of the machine's own GPU has kernels of the same names.
    command.env(INSIDE, "1").env("LD_LIBRARY_PATH", folder).env("XDG_CACHE_HOME", folder);
    command.envs(settings.iter().copied());
    Some(command.output().expect("the test starts again"))
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Selects the machine's own GPUs and libraries.
const REAL: &str = "PHALANX_TEST_GPU";

/// Returns true if tests run on the machine's own GPUs.
pub(crate) fn is_real() -> bool {
    std::env::var_os(REAL).is_some()
}

/// Runs a test's body on the software GPU, or on the machine's own one if that is selected.
pub(crate) fn run_anywhere(body: impl FnOnce()) {
    run_anywhere_with(&[], body);
}

/// Runs a test's body on a software GPU with settings, or on the machine's own one, which has none.
pub(crate) fn run_anywhere_with(settings: &[(&str, &str)], body: impl FnOnce()) {
    if is_real() { body() } else { run_with(settings, body) }
}

pub(crate) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// Runs a test's body in a process with the software GPU's libraries.
pub(crate) fn run(body: impl FnOnce()) {
    run_with(&[], body);
}

/// Runs a test's body on a software GPU with settings: `SOFTWARE_GPU_COUNT` (1), `SOFTWARE_GPU_MEMORY` in bytes,
/// `SOFTWARE_GPU_DELAY` in microseconds, `SOFTWARE_GPU_SEED`, `SOFTWARE_GPU_ORDER` of a block's threads,
/// `SOFTWARE_GPU_CAPABILITY` (90), `SOFTWARE_GPU_SHARED` memory of a block, `SOFTWARE_GPU_NVRTC_NEWEST` architecture of NVRTC,
/// `SOFTWARE_GPU_FAILS` as "function:n" to fail the n-th call of a function.
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
    refused_with(&[], expected, body);
}

/// Runs a test's body on a software GPU with settings, which must end it with a message that contains `expected`.
pub(crate) fn refused_with(settings: &[(&str, &str)], expected: &str, body: impl FnOnce()) {
    if is_inside() {
        return body();
    }
    if let Some(output) = started(settings) {
        let text = text(&output);
        assert!(!output.status.success(), "it was accepted:\n{text}");
        assert!(text.contains("software GPU: ") && text.contains(expected), "not `{expected}`:\n{text}");
    }
}

//! NVIDIA's compiler compiles every kernel for each supported architecture, without spilled registers.
//!
//! `PHALANX_CUDA_TOOLKIT` names the folder of a toolkit, whose `lib` or `lib64` has `libnvrtc.so.*`. Without it the tests are
//! skipped. Each takes a minute, and no GPU.

use std::ffi::{CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::ptr;

use libloading::Library;
use phalanx_cuda::Source;
use phalanx_cuda::compile::OPTIONS;
use phalanx_cuda::kernels::sources;

const VARIABLE: &str = "PHALANX_CUDA_TOOLKIT";

/// Set in processes whose loader finds NVRTC's own libraries.
const INSIDE: &str = "PHALANX_CUDA_TOOLKIT_LIBRARY";

/// Returns the library in the toolkit's folder.
fn library() -> Option<PathBuf> {
    let toolkit = PathBuf::from(std::env::var_os(VARIABLE)?);
    let files =
        ["lib", "lib64"].into_iter().filter_map(|folder| toolkit.join(folder).read_dir().ok()).flatten();
    let mut found: Vec<PathBuf> = files
        .filter_map(Result::ok)
        .map(|file| file.path())
        .filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("libnvrtc.so") && !name.contains("alt")
        })
        .collect();
    found.sort();
    assert!(!found.is_empty(), "{VARIABLE}={}: no lib/libnvrtc.so.* in it", toolkit.display());
    found.pop()
}

/// Compiles a source. Returns true on success, and the log.
fn compiled(nvrtc: &Library, source: &Source, architecture: &str) -> (bool, String) {
    type Program = *mut c_void;
    let text = CString::new(source.text()).expect("text");
    let mut options = vec![format!("--gpu-architecture={architecture}"), "--ptxas-options=-v".to_owned()];
    options.extend(OPTIONS.iter().map(|option| (*option).to_owned()));
    let options: Vec<CString> =
        options.into_iter().map(|option| CString::new(option).expect("an option")).collect();
    let options: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    let mut program: Program = ptr::null_mut();
    // SAFETY: signatures are those of nvrtc.h; pointers live as long as the calls, and the program until it is destroyed.
    unsafe {
        let create = nvrtc
            .get::<unsafe extern "C" fn(
                *mut Program,
                *const c_char,
                *const c_char,
                c_int,
                *const *const c_char,
                *const *const c_char,
            ) -> c_int>(b"nvrtcCreateProgram")
            .expect("nvrtcCreateProgram");
        let compile = nvrtc
            .get::<unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int>(
                b"nvrtcCompileProgram",
            )
            .expect("nvrtcCompileProgram");
        let size_of = nvrtc
            .get::<unsafe extern "C" fn(Program, *mut usize) -> c_int>(b"nvrtcGetProgramLogSize")
            .expect("nvrtcGetProgramLogSize");
        let log_of = nvrtc
            .get::<unsafe extern "C" fn(Program, *mut c_char) -> c_int>(b"nvrtcGetProgramLog")
            .expect("nvrtcGetProgramLog");
        let destroy = nvrtc
            .get::<unsafe extern "C" fn(*mut Program) -> c_int>(b"nvrtcDestroyProgram")
            .expect("nvrtcDestroyProgram");
        let name = CString::new(source.name).expect("a name");
        assert_eq!(create(&raw mut program, text.as_ptr(), name.as_ptr(), 0, ptr::null(), ptr::null()), 0);
        let status = compile(program, c_int::try_from(options.len()).expect("few"), options.as_ptr());
        let mut size = 0;
        assert_eq!(size_of(program, &raw mut size), 0);
        let mut log = vec![0_u8; size];
        assert_eq!(log_of(program, log.as_mut_ptr().cast()), 0);
        destroy(&raw mut program);
        (status == 0, String::from_utf8_lossy(&log).trim_end_matches('\0').to_owned())
    }
}

/// Returns the number before a word in a line: 8 in "8 bytes spill stores".
fn number_before(line: &str, words: &str) -> Option<u32> {
    line[..line.find(words)?].split_whitespace().next_back()?.parse().ok()
}

/// Compiles all sources for an architecture, and prints the kernels' registers.
fn compiles_for(architecture: &str) {
    let nvrtc = PathBuf::from(std::env::var_os(INSIDE).expect("inside"));
    // SAFETY: NVRTC's library has no initialisers.
    let nvrtc = unsafe { Library::new(nvrtc) }.expect("NVRTC");
    let (mut problems, mut all) = (Vec::new(), 0);
    for source in sources() {
        let (taken, log) = compiled(&nvrtc, source, architecture);
        if !taken {
            problems.push(format!("{}: {log}", source.name));
            continue;
        }
        let (mut kernel, mut most, mut count) = (String::new(), (0, String::new()), 0);
        for line in log.lines() {
            if let Some(name) = line.split("entry function '").nth(1) {
                kernel = name.split('\'').next().unwrap_or_default().to_owned();
                count += 1;
            }
            if number_before(line, " bytes spill stores").is_some_and(|bytes| bytes > 0) {
                problems.push(format!("{kernel} spills: {}", line.trim()));
            }
            if let Some(registers) = number_before(line, " registers")
                && registers > most.0
            {
                most = (registers, kernel.clone());
            }
        }
        // A family may have no kernels for an element type.
        assert!(count == 0 || most.0 > 0, "{}: ptxas said nothing:\n{log}", source.name);
        all += count;
        println!(
            "{architecture} {}: {count} kernels, at most {} registers ({})",
            source.name, most.0, most.1
        );
    }
    println!("{architecture}: {all} kernels");
    assert!(all > 500, "only {all} kernels");
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Runs the test again where the loader finds NVRTC's own libraries. Skips it without a toolkit.
fn with_toolkit(architecture: &str) {
    if std::env::var_os(INSIDE).is_some() {
        return compiles_for(architecture);
    }
    let Some(library) = library() else {
        println!("skipped: {VARIABLE} names no toolkit");
        return;
    };
    let test = std::thread::current().name().expect("tests run on threads of their names").to_owned();
    let mut command = Command::new(std::env::current_exe().expect("this program has a file"));
    command.args([&test, "--exact", "--nocapture", "--include-ignored"]);
    command.env(INSIDE, &library).env("LD_LIBRARY_PATH", library.parent().expect("a folder"));
    let output = command.output().expect("the test starts again");
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    println!("{text}");
}

#[test]
#[ignore = "takes minutes; needs a toolkit"]
fn every_kernel_compiles_for_ampere() {
    with_toolkit("sm_80");
}

#[test]
#[ignore = "takes minutes; needs a toolkit"]
fn every_kernel_compiles_for_hopper() {
    with_toolkit("sm_90");
}

#[test]
#[ignore = "takes minutes; needs a toolkit"]
fn every_kernel_compiles_for_blackwell() {
    with_toolkit("sm_100");
}

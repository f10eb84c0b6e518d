//! The calls of NVRTC, with the unsafe code of this folder.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int};

use cudarc::nvrtc::{result, sys};

use super::refused;
use crate::{GpuError, Result};

/// A program of NVRTC.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was made by `create_program`, and this is its only owner.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

fn failed(function: &'static str) -> impl Fn(result::NvrtcError) -> GpuError {
    move |error| GpuError::Library { library: "NVRTC", function, problem: format!("{error:?}") }
}

/// Converts text of NVRTC, without the terminating zero.
fn text(bytes: Vec<c_char>) -> String {
    let bytes: Vec<u8> = bytes.into_iter().map(|byte| byte.to_ne_bytes()[0]).collect();
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim().to_owned()
}

/// Returns the supported architectures, such as 90 for sm_90. Empty before NVRTC 11.2, which reports them first.
pub(super) fn architectures() -> Result<Vec<c_int>> {
    // SAFETY: the library can be loaded, as was checked before.
    let tells = unsafe {
        sys::is_culib_present()
            && sys::culib().get::<unsafe extern "C" fn()>(b"nvrtcGetSupportedArchs").is_ok()
    };
    if !tells {
        return Ok(Vec::new());
    }
    let mut count = 0;
    // SAFETY: the pointer is valid for writes.
    unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) }
        .result()
        .map_err(failed("nvrtcGetNumSupportedArchs"))?;
    let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: there is room for as many numbers as the call above returned.
    unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) }
        .result()
        .map_err(failed("nvrtcGetSupportedArchs"))?;
    Ok(known)
}

/// The options of all compilations. Lambdas without annotation run on the device.
pub(super) const OPTIONS: &[&str] = &["--std=c++17", "--device-as-default-execution-space"];

/// Compiles a source to device code.
pub(super) fn compile(name: &'static str, source: &str, architecture: &str) -> Result<Vec<u8>> {
    let unfit = |_| GpuError::argument(name, "a source with a zero byte");
    let (source, file) = (CString::new(source).map_err(unfit)?, CString::new(name).map_err(unfit)?);
    let create = failed("nvrtcCreateProgram");
    let program = Program(result::create_program(&source, Some(&file)).map_err(create)?);
    let architecture_option = format!("--gpu-architecture={architecture}");
    let options: Vec<&str> = [&*architecture_option].into_iter().chain(OPTIONS.iter().copied()).collect();
    // SAFETY: the program is alive.
    if let Err(error) = unsafe { result::compile_program(program.0, &options) } {
        // SAFETY: the program is alive: a failed compilation leaves it, with its log.
        let log = unsafe { result::get_program_log(program.0) }.map(text).unwrap_or_default();
        return Err(refused(name, architecture, format!("{error:?}\n{log}")));
    }
    let mut size = 0;
    // SAFETY: the program is alive and compiled; the pointer is valid for writes.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut size) }
        .result()
        .map_err(failed("nvrtcGetCUBINSize"))?;
    let mut code = vec![0_u8; size];
    // SAFETY: there is as much memory as the call above returned.
    unsafe { sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()) }
        .result()
        .map_err(failed("nvrtcGetCUBIN"))?;
    Ok(code)
}

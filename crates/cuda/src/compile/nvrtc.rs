//! The calls of NVRTC. What is unsafe in this folder is here.
#![allow(unsafe_code)]

use std::ffi::{CString, c_char, c_int};

use cudarc::nvrtc::{result, sys};

use super::refused;
use crate::{GpuError, Result};

/// A program of NVRTC, which goes away with it.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program was made by `create_program`, and nobody else has it.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

fn failed(function: &'static str) -> impl Fn(result::NvrtcError) -> GpuError {
    move |error| GpuError::Library { library: "NVRTC", function, problem: format!("{error:?}") }
}

/// Text of NVRTC, without the byte that ends it.
fn text(bytes: Vec<c_char>) -> String {
    let bytes: Vec<u8> = bytes.into_iter().map(|byte| byte.to_ne_bytes()[0]).collect();
    String::from_utf8_lossy(&bytes).trim_end_matches('\0').trim().to_owned()
}

/// The architectures that the compiler knows: 90 for sm_90. None if it is too old to tell: from 11.2 on it does.
pub(super) fn architectures() -> Result<Vec<c_int>> {
    // SAFETY: the library can be loaded, as was asked before.
    let tells = unsafe {
        sys::is_culib_present()
            && sys::culib().get::<unsafe extern "C" fn()>(b"nvrtcGetSupportedArchs").is_ok()
    };
    if !tells {
        return Ok(Vec::new());
    }
    let mut count = 0;
    // SAFETY: the pointer is to a number.
    unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) }
        .result()
        .map_err(failed("nvrtcGetNumSupportedArchs"))?;
    let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
    // SAFETY: there is room for as many numbers as the call above said there are.
    unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) }
        .result()
        .map_err(failed("nvrtcGetSupportedArchs"))?;
    Ok(known)
}

/// How everything is compiled. Lambdas have no annotation that would say where they run; here all runs on the device.
pub(super) const OPTIONS: &[&str] = &["--std=c++17", "--device-as-default-execution-space"];

/// Code of the device for a source.
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
    // SAFETY: the program is alive and compiled; the pointer is to a size.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut size) }
        .result()
        .map_err(failed("nvrtcGetCUBINSize"))?;
    let mut code = vec![0_u8; size];
    // SAFETY: there is as much memory as the call above said it takes.
    unsafe { sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()) }
        .result()
        .map_err(failed("nvrtcGetCUBIN"))?;
    Ok(code)
}

//! Loading of shared libraries and reading of their versions, with the unsafe code of this folder.
#![allow(unsafe_code)]

use std::ffi::c_int;

use super::Library;
use crate::{GpuError, Result};

/// Returns true if a library can be loaded under a name.
pub(super) fn loads(name: &str) -> bool {
    // SAFETY: loading runs the library's initialisers, as its use does. cudarc loads it by the same name.
    unsafe { libloading::Library::new(name) }.is_ok()
}

/// Converts a version number to the notation of a library's vendor.
fn format_version(library: Library, number: c_int) -> String {
    let (major, minor, patch) = match library {
        Library::Driver => (number / 1000, number % 1000 / 10, None),
        Library::Cudnn if number >= 90_000 => (number / 10_000, number % 10_000 / 100, Some(number % 100)),
        Library::Cudnn => (number / 1000, number % 1000 / 100, Some(number % 100)),
        _ => (number / 10_000, number % 10_000 / 100, Some(number % 100)),
    };
    patch.map_or_else(|| format!("{major}.{minor}"), |patch| format!("{major}.{minor}.{patch}"))
}

/// Returns the version of the library with a file name.
pub(super) fn version(library: Library, name: &str) -> Result<String> {
    type IntGetter = unsafe extern "C" fn(*mut c_int) -> c_int;
    type IntPairGetter = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    type SizeGetter = unsafe extern "C" fn() -> usize;
    let function = match library {
        Library::Driver => "cuDriverGetVersion",
        Library::Nvrtc => "nvrtcVersion",
        Library::CublasLt => "cublasLtGetVersion",
        Library::Cudnn => "cudnnGetVersion",
        Library::Nccl => "ncclGetVersion",
        Library::Nvml => "nvmlSystemGetNVMLVersion",
    };
    let problem = |problem: String| GpuError::Library { library: library.name(), function, problem };
    // SAFETY: as in `loads`.
    let loaded = unsafe { libloading::Library::new(name) }.map_err(|error| problem(error.to_string()))?;
    let missing = |error: libloading::Error| problem(error.to_string());
    let failed = |code: c_int| problem(format!("error {code}"));
    match library {
        Library::CublasLt | Library::Cudnn => {
            // SAFETY: both functions take nothing and return a size, by their headers.
            let number = unsafe { loaded.get::<SizeGetter>(function.as_bytes()).map_err(missing)?() };
            c_int::try_from(number)
                .map(|number| format_version(library, number))
                .map_err(|e| problem(e.to_string()))
        }
        Library::Nvrtc => {
            let (mut major, mut minor) = (0, 0);
            // SAFETY: the function writes two numbers, by its header, and both pointers are valid for writes.
            let code = unsafe {
                loaded.get::<IntPairGetter>(function.as_bytes()).map_err(missing)?(
                    &raw mut major,
                    &raw mut minor,
                )
            };
            if code == 0 { Ok(format!("{major}.{minor}")) } else { Err(failed(code)) }
        }
        Library::Nvml => {
            type TextGetter = unsafe extern "C" fn(*mut std::ffi::c_char, std::ffi::c_uint) -> c_int;
            let mut text = [0_u8; 80];
            // SAFETY: the function writes a zero-terminated text of at most the given length.
            let code = unsafe {
                let get = loaded.get::<TextGetter>(function.as_bytes()).map_err(missing)?;
                get(text.as_mut_ptr().cast(), 80)
            };
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            if code == 0 { Ok(String::from_utf8_lossy(&text[..end]).into_owned()) } else { Err(failed(code)) }
        }
        Library::Driver | Library::Nccl => {
            let mut number = 0;
            // SAFETY: both functions write one number, by their headers.
            let code =
                unsafe { loaded.get::<IntGetter>(function.as_bytes()).map_err(missing)?(&raw mut number) };
            if code == 0 { Ok(format_version(library, number)) } else { Err(failed(code)) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_their_vendors_notation() {
        assert_eq!(format_version(Library::Driver, 12_080), "12.8");
        assert_eq!(format_version(Library::Cudnn, 91_002), "9.10.2");
        assert_eq!(format_version(Library::Cudnn, 8_902), "8.9.2");
        assert_eq!(format_version(Library::Nccl, 22_703), "2.27.3");
        assert_eq!(format_version(Library::CublasLt, 130_100), "13.1.0");
    }

    #[test]
    fn a_name_without_a_library_does_not_load() {
        assert!(!loads("libthere-is-no-such-library.so.1"));
    }
}

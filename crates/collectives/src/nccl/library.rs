//! NCCL's library: its file names, and the functions that are called.
//!
//! cudarc looks for `libnccl.so` alone, which only development packages contain. So the functions are loaded here, with the types
//! of cudarc.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use cudarc::nccl::sys::{
    cudaStream_t, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t, ncclUniqueId,
};

/// The names in order: that of the runtime, and that for development.
pub(super) const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// The functions by name, with their types in NCCL's header.
macro_rules! functions {
    ($($name:ident: fn($($argument:ty),*) -> $result:ty;)*) => {
        #[allow(non_snake_case, reason = "the names are NCCL's")]
        pub(super) struct Nccl {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl Nccl {
            fn of(library: &libloading::Library) -> Result<Self, libloading::Error> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the function has this type, by NCCL's header.
                        let function = unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) };
                        *function?
                    },)*
                })
            }
        }
    };
}

functions! {
    ncclGetVersion: fn(*mut c_int) -> ncclResult_t;
    ncclGetUniqueId: fn(*mut ncclUniqueId) -> ncclResult_t;
    ncclGetErrorString: fn(ncclResult_t) -> *const c_char;
    ncclGetLastError: fn(ncclComm_t) -> *const c_char;
    ncclCommInitRankConfig: fn(*mut ncclComm_t, c_int, ncclUniqueId, c_int, *mut ncclConfig_t) -> ncclResult_t;
    ncclCommGetAsyncError: fn(ncclComm_t, *mut ncclResult_t) -> ncclResult_t;
    ncclCommDestroy: fn(ncclComm_t) -> ncclResult_t;
    ncclCommAbort: fn(ncclComm_t) -> ncclResult_t;
    ncclGroupStart: fn() -> ncclResult_t;
    ncclGroupEnd: fn() -> ncclResult_t;
    ncclAllReduce: fn(
        *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t
    ) -> ncclResult_t;
    ncclReduceScatter: fn(
        *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, ncclComm_t, cudaStream_t
    ) -> ncclResult_t;
    ncclAllGather: fn(
        *const c_void, *mut c_void, usize, ncclDataType_t, ncclComm_t, cudaStream_t
    ) -> ncclResult_t;
    ncclBroadcast: fn(
        *const c_void, *mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t
    ) -> ncclResult_t;
    ncclReduce: fn(
        *const c_void, *mut c_void, usize, ncclDataType_t, ncclRedOp_t, c_int, ncclComm_t, cudaStream_t
    ) -> ncclResult_t;
    ncclSend: fn(*const c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t) -> ncclResult_t;
    ncclRecv: fn(*mut c_void, usize, ncclDataType_t, c_int, ncclComm_t, cudaStream_t) -> ncclResult_t;
}

/// Loads the library once; returns the problem if it is not available.
pub(super) fn nccl() -> Result<&'static Nccl, String> {
    static LOADED: OnceLock<Result<Nccl, String>> = OnceLock::new();
    LOADED.get_or_init(load).as_ref().map_err(Clone::clone)
}

fn load() -> Result<Nccl, String> {
    let mut tried = Vec::new();
    for name in NAMES {
        // SAFETY: opening runs the library's initialisers, as any use does.
        match unsafe { libloading::Library::new(name) } {
            Ok(library) => {
                let nccl = Nccl::of(&library)
                    .map_err(|error| format!("{name} is not NCCL 2.18 or later: {error}"))?;
                // It is used until the process ends.
                std::mem::forget(library);
                return Ok(nccl);
            }
            Err(error) => tried.push(format!("{name} ({error})")),
        }
    }
    Err(format!("NCCL cannot be loaded; tried {}", tried.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_the_names_that_were_tried() {
        match nccl() {
            Ok(_) => println!("there is NCCL"),
            Err(problem) => assert!(NAMES.iter().all(|name| problem.contains(name)), "{problem}"),
        }
    }
}

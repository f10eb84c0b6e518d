//! The stand-in of NCCL finds harmful calls that NCCL would accept. It is called like a C library, without this crate's checks.

use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};

use phalanx_collectives::nccl::cudarc::driver::{CudaSlice, CudaStream, DevicePtr as _};

use super::gpus::{open, real};
use super::software;

const F32: c_int = 7;
const SUM: c_int = 0;
const INVALID_ARGUMENT: c_int = 4;

type Id = [c_char; 128];
type Comm = *mut c_void;
type AllReduce =
    unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int;

/// A communicator of one rank that blocks.
struct SingleRank {
    library: libloading::Library,
    comm: Comm,
    stream: std::sync::Arc<CudaStream>,
    memory: CudaSlice<f32>,
}

impl SingleRank {
    fn new() -> Self {
        let context = open(0);
        let stream = context.new_stream().expect("a stream");
        let memory = stream.clone_htod(&[1.0_f32; 16]).expect("memory");
        stream.synchronize().expect("sound");
        // SAFETY: the functions have these types, by NCCL's header, and the pointers are to values of their types.
        unsafe {
            let library = libloading::Library::new("libnccl.so.2").expect("the stand-in");
            let mut id: Id = [0; 128];
            let make: libloading::Symbol<'_, unsafe extern "C" fn(*mut Id) -> c_int> =
                library.get(b"ncclGetUniqueId").expect("a function");
            assert_eq!(make(&raw mut id), 0);
            let mut comm = null_mut();
            #[repr(C)]
            struct UniqueId(Id);
            type Open = unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int;
            let begin: libloading::Symbol<'_, Open> = library.get(b"ncclCommInitRank").expect("a function");
            assert_eq!(begin(&raw mut comm, 1, UniqueId(id), 0), 0);
            Self { comm, stream, memory, library }
        }
    }

    /// An all-reduce in place, at an offset into an allocation of 16 elements.
    fn all_reduce(&self, offset: usize, count: usize, dtype: c_int, op: c_int) -> c_int {
        let (address, _) = self.memory.device_ptr(&self.stream);
        let at = (address as usize + offset) as *mut c_void;
        self.all_reduce_at(at, count, dtype, op, &self.stream)
    }

    fn all_reduce_at(
        &self,
        at: *mut c_void,
        count: usize,
        dtype: c_int,
        op: c_int,
        on: &CudaStream,
    ) -> c_int {
        // SAFETY: the function has this type. The test passes wrong arguments, which are found before they are used.
        unsafe {
            let call: libloading::Symbol<'_, AllReduce> =
                self.library.get(b"ncclAllReduce").expect("a function");
            call(at, at, count, dtype, op, self.comm, on.cu_stream().cast())
        }
    }
}

fn refused(expected: &str, body: impl FnOnce()) {
    if real() {
        return println!("skipped: NCCL finds nothing");
    }
    software::refused_with(&[("SOFTWARE_GPU_COUNT", "2")], expected, body);
}

#[test]
fn too_many_elements_are_found() {
    refused("accesses 68 bytes at 0 of allocation", || {
        SingleRank::new().all_reduce(0, 17, F32, SUM);
    });
}

#[test]
fn memory_of_the_host_is_found() {
    refused("which is not an address of a device", || {
        let mut values = [1.0_f32; 4];
        let alone = SingleRank::new();
        alone.all_reduce_at(values.as_mut_ptr().cast(), 4, F32, SUM, &alone.stream);
    });
}

#[test]
fn memory_that_was_freed_is_found() {
    refused("freed", || {
        let mut alone = SingleRank::new();
        let (address, _) = alone.memory.device_ptr(&alone.stream);
        let at = address as *mut c_void;
        // Slow work before it, so that the memory still exists when the call comes.
        alone.memory = alone.stream.alloc_zeros::<f32>(1 << 22).expect("memory");
        alone.all_reduce_at(at, 16, F32, SUM, &alone.stream);
    });
}

#[test]
fn a_stream_of_another_gpu_is_found() {
    refused("of a communicator of GPU 0 is on a stream of GPU 1", || {
        let alone = SingleRank::new();
        let other = open(1).new_stream().expect("a stream");
        alone.all_reduce_at(null_mut(), 0, F32, SUM, &other);
    });
}

#[test]
fn a_call_without_a_communicator_is_found() {
    refused("an invalid or destroyed communicator", || {
        let mut alone = SingleRank::new();
        alone.comm = (&raw mut alone.library).cast();
        alone.all_reduce(0, 4, F32, SUM);
    });
}

#[test]
fn wrong_arguments_are_refused_as_nccl_does() {
    if real() {
        return println!("skipped: NCCL checks other things");
    }
    software::run(|| {
        let alone = SingleRank::new();
        assert_eq!(alone.all_reduce(0, 4, 99, SUM), INVALID_ARGUMENT);
        assert_eq!(alone.all_reduce(0, 4, F32, 99), INVALID_ARGUMENT);
        assert_eq!(alone.all_reduce(2, 4, F32, SUM), INVALID_ARGUMENT);
        assert_eq!(
            alone.all_reduce_at(null::<c_void>().cast_mut(), 4, F32, SUM, &alone.stream),
            INVALID_ARGUMENT
        );
        assert_eq!(alone.all_reduce(0, 16, F32, SUM), 0);
        assert_eq!(alone.stream.clone_dtoh(&alone.memory).expect("sound"), [1.0; 16]);
    });
}

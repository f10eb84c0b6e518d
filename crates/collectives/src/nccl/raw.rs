//! Calls of NCCL. All unsafe code of this folder is here.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};

use cudarc::driver::{CudaContext, CudaStream};
use cudarc::nccl::sys;

use super::calls::{Call, Member};
use super::library::{Nccl, nccl};
use super::memory::{Span, SpanMut};
use crate::dtype::{DType, ReduceOp};

/// Bytes of the unique id of a communicator.
pub(super) const ID: usize = 128;

/// The magic number of a configuration, and the version that has its fields.
const MAGIC: u32 = 0xcafe_beef;
const VERSION: u32 = 2 * 10_000 + 30 * 100;

/// The state of a communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// Ready for calls.
    Ready,
    /// Still initialising, or submitting work to the GPU.
    Busy,
}

/// NCCL's communicator. It is non-blocking: after each call its state must be polled until it is ready.
pub(super) struct RawComm {
    comm: sys::ncclComm_t,
    nccl: &'static Nccl,
    /// The number of ranks.
    ranks: c_int,
}

// SAFETY: NCCL binds a communicator to a GPU, not to a thread; it may be used from any, by one at a time, which ownership
// and `&self` behind a lock ensure: the type is not `Sync`.
unsafe impl Send for RawComm {}

/// Returns the number of GPUs; the problem if it cannot be determined.
pub(super) fn device_count() -> Result<usize, String> {
    const NAMES: [&str; 3] = ["libcuda.so.1", "libcuda.so", "nvcuda.dll"];
    // SAFETY: opening runs the library's initialisers, as any use does.
    let loads = |name: &&str| unsafe { libloading::Library::new(*name) }.is_ok();
    if !NAMES.iter().any(loads) {
        return Err(format!("there is no driver for GPUs; tried {}", NAMES.join(", ")));
    }
    let count = CudaContext::device_count().map_err(|error| error.to_string())?;
    usize::try_from(count).map_err(|error| error.to_string())
}

/// Returns the version of NCCL; the problem if it is not available.
pub(super) fn version() -> Result<i32, String> {
    let mut version = 0;
    // SAFETY: the pointer is to a value of the type that is written.
    check(unsafe { (nccl()?.ncclGetVersion)(&raw mut version) })?;
    Ok(version)
}

/// Returns a new unique id. This process serves it.
pub(super) fn new_id() -> Result<[u8; ID], String> {
    let mut id = sys::ncclUniqueId { internal: [0; ID] };
    // SAFETY: the pointer is to a value of the type that is written.
    check(unsafe { (nccl()?.ncclGetUniqueId)(&raw mut id) })?;
    Ok(id.internal.map(|byte| byte.to_ne_bytes()[0]))
}

/// Returns an error's text and the last explanation, if there is one.
fn problem(result: sys::ncclResult_t) -> String {
    let Ok(nccl) = nccl() else { return format!("error {}", result as u32) };
    let text = |pointer: *const c_char| match pointer.is_null() {
        true => String::new(),
        // SAFETY: NCCL returns terminated strings in memory that it keeps.
        false => unsafe { CStr::from_ptr(pointer) }.to_string_lossy().trim().to_owned(),
    };
    // SAFETY: the first takes any result; the second accepts that there is no communicator.
    let (short, long) = unsafe {
        (text((nccl.ncclGetErrorString)(result)), text((nccl.ncclGetLastError)(std::ptr::null_mut())))
    };
    if long.is_empty() { short } else { format!("{short}: {long}") }
}

/// Checks that a call has ended well, or is in progress.
fn check(result: sys::ncclResult_t) -> Result<State, String> {
    match result {
        sys::ncclResult_t::ncclSuccess => Ok(State::Ready),
        sys::ncclResult_t::ncclInProgress => Ok(State::Busy),
        other => Err(problem(other)),
    }
}

fn type_of(dtype: DType) -> sys::ncclDataType_t {
    match dtype {
        DType::F32 => sys::ncclDataType_t::ncclFloat32,
        DType::F64 => sys::ncclDataType_t::ncclFloat64,
        DType::F16 => sys::ncclDataType_t::ncclFloat16,
        DType::BF16 => sys::ncclDataType_t::ncclBfloat16,
        DType::I32 => sys::ncclDataType_t::ncclInt32,
        DType::I64 => sys::ncclDataType_t::ncclInt64,
        DType::U8 => sys::ncclDataType_t::ncclUint8,
    }
}

/// Returns NCCL's operation. A mean over one rank is a sum: with `ncclAvg` NCCL 2.28 leaves the last elements of another buffer unwritten
/// then, if their number is not divisible by that of its blocks.
fn reduction(op: ReduceOp, ranks: c_int) -> sys::ncclRedOp_t {
    match op {
        ReduceOp::Mean if ranks == 1 => sys::ncclRedOp_t::ncclSum,
        ReduceOp::Sum => sys::ncclRedOp_t::ncclSum,
        ReduceOp::Mean => sys::ncclRedOp_t::ncclAvg,
        ReduceOp::Min => sys::ncclRedOp_t::ncclMin,
        ReduceOp::Max => sys::ncclRedOp_t::ncclMax,
        ReduceOp::Product => sys::ncclRedOp_t::ncclProd,
    }
}

fn reading(span: Span<'_>) -> *const c_void {
    span.address() as *const c_void
}

fn writing(span: SpanMut<'_>) -> *mut c_void {
    span.read().address() as *mut c_void
}

/// The number of ranks had this type when the communicator was opened.
fn number(rank: usize) -> c_int {
    rank as c_int
}

impl RawComm {
    /// Starts to open a communicator of all ranks with this `id`, on the GPU of this thread's context.
    pub(super) fn open(member: Member, id: &[u8; ID]) -> Result<Self, String> {
        let ranks = c_int::try_from(member.world_size).map_err(|error| error.to_string())?;
        let id = sys::ncclUniqueId { internal: id.map(|byte| c_char::from_ne_bytes([byte])) };
        // NCCL chooses fields that are not set. A library that knows fewer fields reads those that it knows.
        let unset = c_int::MIN;
        let mut config = sys::ncclConfig_t {
            size: size_of::<sys::ncclConfig_t>(),
            magic: MAGIC,
            version: VERSION,
            blocking: 0,
            cgaClusterSize: unset,
            minCTAs: unset,
            maxCTAs: unset,
            netName: std::ptr::null(),
            splitShare: unset,
            trafficClass: unset,
            commName: std::ptr::null(),
            collnetEnable: unset,
            CTAPolicy: unset,
            shrinkShare: unset,
            nvlsCTAs: unset,
            nChannelsPerNetPeer: unset,
            nvlinkCentricSched: unset,
            graphUsageMode: unset,
            numRmaCtx: unset,
            maxP2pPeers: unset,
        };
        let (mut comm, rank, nccl) = (std::ptr::null_mut(), number(member.rank), nccl()?);
        // SAFETY: both pointers are to values of the types that are read and written, and NCCL copies the configuration.
        let begun = unsafe { (nccl.ncclCommInitRankConfig)(&raw mut comm, ranks, id, rank, &raw mut config) };
        let opened = Self { comm, nccl, ranks };
        match check(begun) {
            Ok(_) if comm.is_null() => Err("gave no communicator".to_owned()),
            Ok(_) => Ok(opened),
            Err(problem) => {
                opened.abort();
                Err(problem)
            }
        }
    }

    /// Returns the state; the problem if the communicator has failed.
    pub(super) fn state(&self) -> Result<State, String> {
        let mut state = sys::ncclResult_t::ncclSuccess;
        // SAFETY: the communicator is open, since closing it takes it away, and the pointer is to a value of its type.
        check(unsafe { (self.nccl.ncclCommGetAsyncError)(self.comm, &raw mut state) })?;
        check(state)
    }

    /// Submits calls to NCCL as one group. They run on `stream`, at some time after the communicator is ready again.
    pub(super) fn enqueue(&self, calls: &[&Call<'_>], stream: &CudaStream) -> Result<(), String> {
        // SAFETY: groups belong to this thread, and this one ends below in every case.
        check(unsafe { (self.nccl.ncclGroupStart)() })?;
        let begun = calls.iter().try_for_each(|call| self.call(call, stream));
        // SAFETY: as above.
        let ended = check(unsafe { (self.nccl.ncclGroupEnd)() });
        begun.and(ended.map(|_| ()))
    }

    /// Submits one call to NCCL.
    fn call(&self, call: &Call<'_>, stream: &CudaStream) -> Result<(), String> {
        let (nccl, comm, stream) = (self.nccl, self.comm, stream.cu_stream().cast());
        // SAFETY: the communicator is open and the stream outlives it. The addresses are of whole elements inside of live
        // allocations on this GPU: only buffers that were lent become spans. They stay allocated until the GPU is done: memory is
        // freed in the order of the stream that computes on it, which waits for this operation before its caller can free it.
        let result = unsafe {
            match *call {
                Call::AllReduce { from, to, op } => {
                    let (dtype, op) = (type_of(from.dtype()), reduction(op, self.ranks));
                    (nccl.ncclAllReduce)(reading(from), writing(to), from.len(), dtype, op, comm, stream)
                }
                Call::ReduceScatter { from, to, op } => {
                    let (dtype, op) = (type_of(from.dtype()), reduction(op, self.ranks));
                    (nccl.ncclReduceScatter)(reading(from), writing(to), to.len(), dtype, op, comm, stream)
                }
                Call::AllGather { from, to } => {
                    let dtype = type_of(from.dtype());
                    (nccl.ncclAllGather)(reading(from), writing(to), from.len(), dtype, comm, stream)
                }
                Call::Broadcast { from, to, root } => {
                    let (dtype, from) = (type_of(to.read().dtype()), from.map_or(std::ptr::null(), reading));
                    (nccl.ncclBroadcast)(from, writing(to), to.len(), dtype, number(root), comm, stream)
                }
                Call::Reduce { from, to, op, root } => {
                    let (dtype, op) = (type_of(from.dtype()), reduction(op, self.ranks));
                    let to = to.map_or(std::ptr::null_mut(), writing);
                    (nccl.ncclReduce)(reading(from), to, from.len(), dtype, op, number(root), comm, stream)
                }
                Call::Send { from, to } => {
                    let dtype = type_of(from.dtype());
                    (nccl.ncclSend)(reading(from), from.len(), dtype, number(to), comm, stream)
                }
                Call::Receive { to, from } => {
                    let dtype = type_of(to.read().dtype());
                    (nccl.ncclRecv)(writing(to), to.len(), dtype, number(from), comm, stream)
                }
            }
        };
        check(result).map(|_| ())
    }

    /// Closes a communicator that is ready and whose work is done.
    pub(super) fn close(self) -> Result<(), String> {
        // SAFETY: the communicator is open, and cannot be used after this.
        check(unsafe { (self.nccl.ncclCommDestroy)(self.comm) }).map(|_| ())
    }

    /// Aborts work under way, also on the GPU, and closes.
    pub(super) fn abort(self) {
        // SAFETY: as for closing; NCCL also takes one that was never opened. It fails only for a communicator in an invalid state.
        let _ = check(unsafe { (self.nccl.ncclCommAbort)(self.comm) });
    }
}

#[cfg(test)]
mod tests {
    use cudarc::nccl::NcclType;

    use super::*;

    #[test]
    fn what_is_missing_is_named() {
        match (device_count(), version()) {
            (Ok(count), Ok(version)) => println!("{count} GPU(s), NCCL {version}"),
            (count, version) => println!("skipped: no GPU or no NCCL: {count:?}, {version:?}"),
        }
    }

    #[test]
    fn types_are_those_of_the_elements() {
        for dtype in DType::ALL {
            let theirs = crate::dtype::on_dtype!(dtype, T => T::as_nccl_type());
            assert_eq!(type_of(dtype), theirs);
        }
    }
}

//! The calls of the driver. What is unsafe about devices, memory, transfers, modules, launches and graphs is in this folder.
//!
//! What makes them sound: an address comes from an [`Allocation`], which frees it in the order of the computing stream when
//! nobody holds it any more; ranges are checked here; memory of the host that the device reads or writes later is a
//! [`HostMemory`], which a [`Transfer`] keeps until it is done. A kernel's arguments are compared with what the module says of
//! its parameters; that it keeps within the lengths that it is given is up to its source.
#![allow(unsafe_code)]

mod borrowed;
mod graph;
mod memory;
mod module;
mod transfer;

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, result, sys};

use crate::{GpuError, Result};

pub(crate) use borrowed::Borrowed;
pub(crate) use graph::{Captured, Executable, Node, begin_capture, end_capture, last_captured};
pub(crate) use memory::Allocation;
pub(crate) use module::{Call, Module, Shape};
pub(crate) use transfer::{HostMemory, Transfer};

/// Something whose end frees memory.
pub(crate) type Kept = Arc<dyn Any + Send + Sync>;

/// The driver's error as this crate's.
pub(crate) fn failed(action: &'static str) -> impl Fn(DriverError) -> GpuError {
    move |error| {
        let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
        let text = text.unwrap_or_else(|_| format!("error {}", error.0 as u32));
        GpuError::Driver { action, problem: format!("{:?}: {text}", error.0) }
    }
}

/// How many GPUs there are. The driver must be there.
pub(crate) fn device_count() -> Result<usize> {
    let count = CudaContext::device_count().map_err(failed("count the GPUs"))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// What a GPU is called, without a context.
pub(crate) fn device_name(index: usize) -> Result<String> {
    const ACTION: &str = "ask for a name";
    result::device::get_name(device(index, ACTION)?).map_err(failed(ACTION))
}

/// The driver's number of a GPU.
fn device(index: usize, action: &'static str) -> Result<sys::CUdevice> {
    let number = i32::try_from(index).map_err(|_| GpuError::NoDevice { index, count: 0 })?;
    result::init().and_then(|()| result::device::get(number)).map_err(failed(action))
}

/// A GPU's identity as NVML writes it, without a context: "GPU-…".
pub(crate) fn device_uuid(index: usize) -> Result<String> {
    const ACTION: &str = "ask for an identity";
    let bytes = result::device::get_uuid(device(index, ACTION)?).map_err(failed(ACTION))?.bytes;
    let hex: String = bytes.iter().map(|byte| format!("{:02x}", byte.to_ne_bytes()[0])).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Ok(format!("GPU-{}", parts.join("-")))
}

/// Whether a GPU can read and write the memory of another one.
pub(crate) fn can_access(index: usize, other: usize) -> Result<bool> {
    const ACTION: &str = "ask about the memory of two GPUs";
    let (index, other) = (device(index, ACTION)?, device(other, ACTION)?);
    let mut can = 0;
    // SAFETY: both are the driver's numbers, and the pointer is to what is written.
    unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, index, other) }.result().map_err(failed(ACTION))?;
    Ok(can != 0)
}

/// The compute capability of a GPU, without a context: (9, 0).
pub(crate) fn capability(index: usize) -> Result<(i32, i32)> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    };
    const ACTION: &str = "ask for an architecture";
    let device = device(index, ACTION)?;
    // SAFETY: the device is the driver's.
    let ask = |attribute| unsafe { result::device::get_attribute(device, attribute) }.map_err(failed(ACTION));
    Ok((
        ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    ))
}

/// A context without cudarc's tracking of events, and with a pool that keeps all memory that it was given.
pub(crate) fn open(index: usize) -> Result<Arc<CudaContext>> {
    let context = CudaContext::new(index).map_err(failed("open a GPU"))?;
    // SAFETY: nothing was allocated, so no buffer is half tracked. This crate orders streams itself.
    unsafe { context.disable_event_tracking() };
    let action = "set up the memory pool";
    let pool = pool(&context, action)?;
    // SAFETY: the pool is the device's, and the value that is read has the attribute's type.
    unsafe {
        let mut threshold = u64::MAX;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let value: *mut u64 = &raw mut threshold;
        result::mem_pool::set_attribute(pool, attribute, value.cast::<c_void>()).map_err(failed(action))?;
    }
    Ok(context)
}

/// The pool that a context's memory is of.
fn pool(context: &CudaContext, action: &'static str) -> Result<sys::CUmemoryPool> {
    context.bind_to_thread().map_err(failed(action))?;
    // SAFETY: the device is that of the context.
    unsafe { result::device::get_default_mem_pool(context.cu_device()) }.map_err(failed(action))
}

/// Bytes that the pool has of the system, in use or not.
pub(crate) fn reserved(context: &CudaContext) -> Result<u64> {
    const ACTION: &str = "ask for the memory pool's size";
    let pool = pool(context, ACTION)?;
    let mut bytes = 0_u64;
    let value: *mut u64 = &raw mut bytes;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
    // SAFETY: the pool is the device's, and the value has the attribute's type.
    unsafe { result::mem_pool::get_attribute(pool, attribute, value.cast::<c_void>()) }
        .map_err(failed(ACTION))?;
    Ok(bytes)
}

/// Gives the system back what the pool has and nobody uses, down to `keep` bytes.
pub(crate) fn trim(context: &CudaContext, keep: u64) -> Result<()> {
    const ACTION: &str = "give memory back";
    let keep = usize::try_from(keep).unwrap_or(usize::MAX);
    // SAFETY: the pool is the device's; what is used stays.
    unsafe { result::mem_pool::trim_to(pool(context, ACTION)?, keep) }.map_err(failed(ACTION))
}

/// Priorities of streams, least and greatest.
pub(crate) fn priorities(context: &CudaContext) -> Result<(i32, i32)> {
    const ACTION: &str = "ask for priorities of streams";
    context.bind_to_thread().map_err(failed(ACTION))?;
    result::stream::get_priority_range().map_err(failed(ACTION))
}

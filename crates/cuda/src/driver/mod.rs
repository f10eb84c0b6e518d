//! The calls of the driver. This folder holds the unsafe code for devices, memory, transfers, modules, launches and graphs.
//!
//! Soundness: an address comes from an [`Allocation`], which frees it in the order of the compute stream when its last owner is
//! dropped. Ranges are checked here. Host memory that the device accesses later is a [`HostMemory`], which a [`Transfer`] keeps
//! until it is done. A kernel's arguments are compared with the module's parameter sizes. Accesses within the given lengths are
//! the responsibility of the kernel's source.
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

pub(crate) use borrowed::CudarcBytes;
pub(crate) use graph::{CapturedGraph, Executable, Node, begin_capture, end_capture, last_captured};
pub(crate) use memory::Allocation;
pub(crate) use module::{Call, Module, Shape};
pub(crate) use transfer::{HostMemory, Transfer};

/// A resource that is released when its last owner is dropped.
pub(crate) type KeepAlive = Arc<dyn Any + Send + Sync>;

/// Converts the driver's error.
pub(crate) fn failed(action: &'static str) -> impl Fn(DriverError) -> GpuError {
    move |error| {
        let text = error.error_string().map(|text| text.to_string_lossy().into_owned());
        let text = text.unwrap_or_else(|_| format!("error {}", error.0 as u32));
        GpuError::Driver { action, problem: format!("{:?}: {text}", error.0) }
    }
}

/// Returns the number of GPUs. The driver must be installed.
pub(crate) fn device_count() -> Result<usize> {
    let count = CudaContext::device_count().map_err(failed("count the GPUs"))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

/// Returns the name of a GPU, without a context.
pub(crate) fn device_name(index: usize) -> Result<String> {
    const ACTION: &str = "query the name";
    result::device::get_name(device(index, ACTION)?).map_err(failed(ACTION))
}

/// Returns the driver's handle of a GPU.
fn device(index: usize, action: &'static str) -> Result<sys::CUdevice> {
    let number = i32::try_from(index).map_err(|_| GpuError::NoDevice { index, count: 0 })?;
    result::init().and_then(|()| result::device::get(number)).map_err(failed(action))
}

/// Returns the UUID of a GPU in NVML's format, without a context: "GPU-…".
pub(crate) fn device_uuid(index: usize) -> Result<String> {
    const ACTION: &str = "query the UUID";
    let bytes = result::device::get_uuid(device(index, ACTION)?).map_err(failed(ACTION))?.bytes;
    let hex: String = bytes.iter().map(|byte| format!("{:02x}", byte.to_ne_bytes()[0])).collect();
    let parts = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    Ok(format!("GPU-{}", parts.join("-")))
}

/// Returns true if a GPU can access the memory of another one.
pub(crate) fn can_access(index: usize, other: usize) -> Result<bool> {
    const ACTION: &str = "query peer access";
    let (index, other) = (device(index, ACTION)?, device(other, ACTION)?);
    let mut can = 0;
    // SAFETY: both are the driver's handles, and the pointer is valid for writes.
    unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, index, other) }.result().map_err(failed(ACTION))?;
    Ok(can != 0)
}

/// Returns the compute capability of a GPU, without a context: (9, 0).
pub(crate) fn capability(index: usize) -> Result<(i32, i32)> {
    use sys::CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    };
    const ACTION: &str = "query the compute capability";
    let device = device(index, ACTION)?;
    // SAFETY: the device is the driver's.
    let ask = |attribute| unsafe { result::device::get_attribute(device, attribute) }.map_err(failed(ACTION));
    Ok((
        ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        ask(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    ))
}

/// Opens a context without cudarc's event tracking, and with a pool that keeps all freed memory.
pub(crate) fn open(index: usize) -> Result<Arc<CudaContext>> {
    let context = CudaContext::new(index).map_err(failed("open a GPU"))?;
    // SAFETY: nothing was allocated, so no buffer is partly tracked. This crate orders streams itself.
    unsafe { context.disable_event_tracking() };
    let action = "set up the memory pool";
    let pool = pool(&context, action)?;
    // SAFETY: the pool is the device's, and the value has the attribute's type.
    unsafe {
        let mut threshold = u64::MAX;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let value: *mut u64 = &raw mut threshold;
        result::mem_pool::set_attribute(pool, attribute, value.cast::<c_void>()).map_err(failed(action))?;
    }
    Ok(context)
}

/// Returns the memory pool of a context.
fn pool(context: &CudaContext, action: &'static str) -> Result<sys::CUmemoryPool> {
    context.bind_to_thread().map_err(failed(action))?;
    // SAFETY: the device is that of the context.
    unsafe { result::device::get_default_mem_pool(context.cu_device()) }.map_err(failed(action))
}

/// Returns the bytes that the pool has reserved, in use or not.
pub(crate) fn reserved(context: &CudaContext) -> Result<u64> {
    const ACTION: &str = "query the size of the memory pool";
    let pool = pool(context, ACTION)?;
    let mut bytes = 0_u64;
    let value: *mut u64 = &raw mut bytes;
    let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
    // SAFETY: the pool is the device's, and the value has the attribute's type.
    unsafe { result::mem_pool::get_attribute(pool, attribute, value.cast::<c_void>()) }
        .map_err(failed(ACTION))?;
    Ok(bytes)
}

/// Releases the pool's unused memory to the system, down to `keep` bytes.
pub(crate) fn trim(context: &CudaContext, keep: u64) -> Result<()> {
    const ACTION: &str = "release memory";
    let keep = usize::try_from(keep).unwrap_or(usize::MAX);
    // SAFETY: the pool is the device's; used memory stays.
    unsafe { result::mem_pool::trim_to(pool(context, ACTION)?, keep) }.map_err(failed(ACTION))
}

/// Returns the lowest and the highest priority of streams.
pub(crate) fn priorities(context: &CudaContext) -> Result<(i32, i32)> {
    const ACTION: &str = "query the priorities of streams";
    context.bind_to_thread().map_err(failed(ACTION))?;
    result::stream::get_priority_range().map_err(failed(ACTION))
}

//! The calls of the driver. What is unsafe about devices, memory, transfers, modules and launches is in this folder.
//!
//! What makes them sound: an address comes from an [`Allocation`], which frees it in the order of the computing stream when
//! nobody holds it any more; ranges are checked here; memory of the host that the device reads or writes later is a
//! [`HostMemory`], which a [`Transfer`] keeps until it is done. A kernel's arguments are compared with what the module says of
//! its parameters; that it keeps within the lengths that it is given is up to its source.
#![allow(unsafe_code)]

mod borrowed;
mod memory;
mod module;
mod transfer;

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::{CudaContext, DriverError, result, sys};

use crate::{GpuError, Result};

pub(crate) use borrowed::Borrowed;
pub(crate) use memory::Allocation;
pub(crate) use module::{Module, Shape};
pub(crate) use transfer::{HostMemory, Transfer};

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

/// A context without cudarc's tracking of events, and with a pool that keeps all memory that it was given.
pub(crate) fn open(index: usize) -> Result<Arc<CudaContext>> {
    let context = CudaContext::new(index).map_err(failed("open a GPU"))?;
    // SAFETY: nothing was allocated, so no buffer is half tracked. This crate orders streams itself.
    unsafe { context.disable_event_tracking() };
    let action = "set up the memory pool";
    // SAFETY: the device is that of the context, and the value that is read has the attribute's type.
    unsafe {
        let pool = result::device::get_default_mem_pool(context.cu_device()).map_err(failed(action))?;
        let mut threshold = u64::MAX;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        let value: *mut u64 = &raw mut threshold;
        result::mem_pool::set_attribute(pool, attribute, value.cast::<c_void>()).map_err(failed(action))?;
    }
    Ok(context)
}

/// Priorities of streams, least and greatest.
pub(crate) fn priorities(context: &CudaContext) -> Result<(i32, i32)> {
    const ACTION: &str = "ask for priorities of streams";
    context.bind_to_thread().map_err(failed(ACTION))?;
    result::stream::get_priority_range().map_err(failed(ACTION))
}

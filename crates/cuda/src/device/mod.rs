//! A device: its context, its streams, and events where work goes from one stream to another.

use std::sync::Arc;

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, CudaStream};

use crate::driver::{self, failed};
use crate::libraries::Library;
use crate::{GpuError, Result};

/// One of a device's queues of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Kernels of forward, backward and update. Memory is allocated and freed in its order.
    Compute,
    /// Collectives. It has the greatest priority, so that a reduction that is ready is not kept waiting by the rest of backward.
    Communication,
    /// Copies to and from the host.
    Copies,
}

/// What a device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// "NVIDIA H100 80GB HBM3".
    pub name: String,
    /// Its compute capability: (9, 0).
    pub capability: (i32, i32),
    /// Bytes of memory.
    pub memory: usize,
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
}

/// A GPU's context with its streams. Clones are handles.
#[derive(Debug, Clone)]
pub struct Device(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    context: Arc<CudaContext>,
    compute: Arc<CudaStream>,
    communication: Arc<CudaStream>,
    copies: Arc<CudaStream>,
    description: Description,
}

impl Device {
    /// How many GPUs there are; none where there is no driver.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn count() -> Result<usize> {
        match Library::Driver.require() {
            Ok(()) => driver::device_count(),
            Err(_) => Ok(0),
        }
    }

    /// What GPU `index` is called, without opening it: "NVIDIA H100 80GB HBM3".
    ///
    /// # Errors
    /// [`GpuError::MissingLibrary`] without a driver, [`GpuError::NoDevice`] without such a GPU.
    pub fn name_of(index: usize) -> Result<String> {
        Library::Driver.require()?;
        let count = driver::device_count()?;
        if index >= count {
            return Err(GpuError::NoDevice { index, count });
        }
        driver::device_name(index)
    }

    /// Opens GPU `index`, from 0.
    ///
    /// # Errors
    /// [`GpuError::MissingLibrary`] without a driver, [`GpuError::NoDevice`] without such a GPU.
    pub fn open(index: usize) -> Result<Self> {
        Library::Driver.require()?;
        let count = driver::device_count()?;
        if index >= count {
            return Err(GpuError::NoDevice { index, count });
        }
        let context = driver::open(index)?;
        let (least, greatest) = driver::priorities(&context)?;
        let stream = |priority| context.new_stream_with_priority(priority).map_err(failed("make a stream"));
        let ask = |attribute| context.attribute(attribute).map_err(failed("ask for an attribute"));
        let multiprocessors = ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let description = Description {
            name: context.name().map_err(failed("ask for a name"))?,
            capability: context.compute_capability().map_err(failed("ask for an architecture"))?,
            memory: context.total_mem().map_err(failed("ask for the memory's size"))?,
            multiprocessors: usize::try_from(multiprocessors).unwrap_or(1),
        };
        let (compute, communication, copies) = (stream(least)?, stream(greatest)?, stream(least)?);
        Ok(Self(Arc::new(Inner { context, compute, communication, copies, description })))
    }

    /// What it is.
    pub fn description(&self) -> &Description {
        &self.0.description
    }

    /// Its identity, as NVML writes it: "GPU-…".
    ///
    /// # Errors
    /// If the driver fails.
    pub fn uuid(&self) -> Result<String> {
        driver::device_uuid(self.index())
    }

    /// Which GPU it is, from 0.
    pub fn index(&self) -> usize {
        self.0.context.ordinal()
    }

    /// The context, for libraries.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.0.context
    }

    /// A stream, for libraries.
    pub fn stream(&self, stream: Stream) -> &Arc<CudaStream> {
        match stream {
            Stream::Compute => &self.0.compute,
            Stream::Communication => &self.0.communication,
            Stream::Copies => &self.0.copies,
        }
    }

    /// What is issued on `waiter` from now on begins after all that was issued on `waited`. The host does not wait.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn wait(&self, waiter: Stream, waited: Stream) -> Result<()> {
        if waiter == waited {
            return Ok(());
        }
        self.stream(waiter).join(self.stream(waited)).map_err(failed("let a stream wait"))
    }

    /// Waits until everything that was issued is done, on all streams.
    ///
    /// # Errors
    /// If the driver fails, or something that was issued has failed.
    pub fn synchronize(&self) -> Result<()> {
        self.0.context.synchronize().map_err(failed("wait for the GPU"))
    }

    /// Free and all bytes of memory, as the driver counts them.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.0.context.mem_get_info().map_err(failed("ask for free memory"))
    }
}

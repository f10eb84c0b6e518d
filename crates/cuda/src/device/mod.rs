//! A device: its context, its streams, and the events that order work between streams.

mod capture;
mod event;
mod order;
mod replay;
mod segment;
mod timer;

use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};

use capture::Captures;
use order::Order;

use crate::driver::{self, failed};
use crate::libraries::Library;
use crate::{GpuError, Result};

pub use event::Event;
pub(crate) use replay::{MAX_BRANCHES, ReplayAction};
pub(crate) use segment::{Segment, Segments, Work};
pub use timer::Timer;

/// The reason why a first use cannot be captured.
const FIRST: &str = "it runs once, at first use: run the same work once before the capture";

/// The lowest supported compute capability: Ampere, the first with bf16 and TF32.
const NEEDED: (i32, i32) = (8, 0);

/// A queue of work of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Kernels of forward, backward and update. Memory is allocated and freed in its order.
    Compute,
    /// Communication of gradients and parameters between ranks. It has the highest priority, so that a ready reduction does not
    /// wait for the rest of backward.
    Communication,
    /// Copies to and from the host.
    Copies,
}

impl Stream {
    pub(crate) const COUNT: usize = 3;
}

impl std::fmt::Display for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Compute => "compute",
            Self::Communication => "communication",
            Self::Copies => "copy",
        })
    }
}

/// The properties of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// "NVIDIA H100 80GB HBM3".
    pub name: String,
    /// Compute capability: (9, 0).
    pub capability: (i32, i32),
    /// Bytes of memory.
    pub memory: usize,
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// The maximum shared memory of a block in bytes, beyond the 48 KiB that need no request.
    pub shared_memory: usize,
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
    /// The stream in whose order memory is allocated during a capture. Created at the first capture.
    reserve: OnceLock<Arc<CudaStream>>,
    order: Order,
    captures: Captures,
    description: Description,
}

impl Device {
    /// Returns the number of GPUs: 0 without a driver.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn count() -> Result<usize> {
        match Library::Driver.require() {
            Ok(()) => driver::device_count(),
            Err(_) => Ok(0),
        }
    }

    /// Returns the name of GPU `index` without opening it: "NVIDIA H100 80GB HBM3".
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
    /// [`GpuError::MissingLibrary`] without a driver, [`GpuError::NoDevice`] without such a GPU, [`GpuError::OldDevice`] if its
    /// compute capability is below 8.0.
    pub fn open(index: usize) -> Result<Self> {
        Library::Driver.require()?;
        let count = driver::device_count()?;
        if index >= count {
            return Err(GpuError::NoDevice { index, count });
        }
        let found = driver::capability(index)?;
        if found < NEEDED {
            return Err(GpuError::OldDevice {
                index,
                name: driver::device_name(index)?,
                found,
                needed: NEEDED,
            });
        }
        let context = driver::open(index)?;
        let (least, greatest) = driver::priorities(&context)?;
        let stream = |priority| context.new_stream_with_priority(priority).map_err(failed("create a stream"));
        let ask = |attribute| context.attribute(attribute).map_err(failed("query an attribute"));
        let multiprocessors = ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared_memory = ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let description = Description {
            name: context.name().map_err(failed("query the name"))?,
            capability: found,
            memory: context.total_mem().map_err(failed("query the size of the memory"))?,
            multiprocessors: usize::try_from(multiprocessors).unwrap_or(1),
            shared_memory: usize::try_from(shared_memory).unwrap_or(48 << 10),
        };
        let (compute, communication, copies) = (stream(least)?, stream(greatest)?, stream(least)?);
        Ok(Self(Arc::new(Inner {
            context,
            compute,
            communication,
            copies,
            reserve: OnceLock::new(),
            order: Order::default(),
            captures: Captures::default(),
            description,
        })))
    }

    /// Returns true if both are handles of one device.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the properties.
    pub fn description(&self) -> &Description {
        &self.0.description
    }

    /// Returns the UUID in NVML's format: "GPU-…".
    ///
    /// # Errors
    /// If the driver fails.
    pub fn uuid(&self) -> Result<String> {
        Self::uuid_of(self.index())
    }

    /// Returns the UUID of GPU `index` without opening it.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn uuid_of(index: usize) -> Result<String> {
        driver::device_uuid(index)
    }

    /// Returns the PCI address in Linux' format: "0000:c1:00.0".
    ///
    /// # Errors
    /// If the driver fails.
    pub fn pci_address(&self) -> Result<String> {
        let ask = |attribute| self.0.context.attribute(attribute).map_err(failed("query the PCI address"));
        let domain = ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let bus = ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
        let device = ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
        Ok(format!("{domain:04x}:{bus:02x}:{device:02x}.0"))
    }

    /// Returns the index of the GPU, from 0.
    pub fn index(&self) -> usize {
        self.0.context.ordinal()
    }

    /// Returns the context, for libraries.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.0.context
    }

    /// Returns a stream, for libraries.
    pub fn stream(&self, stream: Stream) -> &Arc<CudaStream> {
        match stream {
            Stream::Compute => &self.0.compute,
            Stream::Communication => &self.0.communication,
            Stream::Copies => &self.0.copies,
        }
    }

    /// Makes all later work of `waiter` wait for all earlier work of `waited`. The host does not wait. If `waited` takes part in
    /// a capture, `waiter` joins it.
    ///
    /// # Errors
    /// If the driver fails; [`GpuError::Capture`] if only the waiter takes part in a capture, or another thread captures.
    pub fn wait(&self, waiter: Stream, waited: Stream) -> Result<()> {
        if waiter == waited {
            return Ok(());
        }
        self.flush()?;
        self.0.captures.admit_wait(waiter, waited)?;
        let _turn = self.0.order.turn(waited);
        let reached = self.0.order.of(waited);
        self.stream(waiter).join(self.stream(waited)).map_err(failed("make a stream wait"))?;
        self.0.order.learn(waiter, reached);
        Ok(())
    }

    /// Makes all later work of `waiter` wait for an event that another stream recorded at `time`.
    pub(crate) fn wait_for_event(
        &self,
        waiter: Stream,
        waited: Stream,
        time: u64,
        event: &CudaEvent,
    ) -> Result<()> {
        if waiter == waited {
            return Ok(());
        }
        self.flush()?;
        self.0.captures.admit_wait(waiter, waited)?;
        self.stream(waiter).wait(event).map_err(failed("make a stream wait"))?;
        self.0.order.learn_time(waiter, waited, time);
        Ok(())
    }

    /// Makes `waiter` wait for the work of `waited` up to `time`, unless it has already.
    pub(crate) fn wait_until(&self, waiter: Stream, waited: Stream, time: u64) -> Result<()> {
        if waiter == waited || self.0.order.knows(waiter, waited, time) {
            return Ok(());
        }
        self.wait(waiter, waited)
    }

    /// Records that the host has waited for the work of a stream up to `time`.
    pub(crate) fn passed(&self, waited: Stream, time: u64) {
        self.0.order.passed(waited, time);
    }

    /// Counts an allocation in the order of the compute stream, and returns its time.
    pub(crate) fn count_allocation(&self) -> u64 {
        self.0.order.tick(Stream::Compute)
    }

    /// Issues work on a stream and counts it. Returns the result and the time of the stream. The compute stream is not counted,
    /// as memory is freed in its order.
    pub(crate) fn counted<R>(&self, stream: Stream, work: impl FnOnce() -> R) -> (R, u64) {
        if stream == Stream::Compute {
            return (work(), 0);
        }
        let _turn = self.0.order.turn(stream);
        let result = work();
        (result, self.0.order.tick(stream))
    }

    /// Waits until all issued work is done, on all streams.
    ///
    /// # Errors
    /// If the driver fails, or issued work has failed; [`GpuError::Capture`] while a graph is captured.
    pub fn synchronize(&self) -> Result<()> {
        self.flush()?;
        self.0.captures.refuse_host_wait("waiting for the GPU", None)?;
        self.0.context.synchronize().map_err(failed("wait for the GPU"))
    }

    /// Returns the free and the total bytes of memory, as reported by the driver.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn memory(&self) -> Result<(usize, usize)> {
        self.0.context.mem_get_info().map_err(failed("query free memory"))
    }
}

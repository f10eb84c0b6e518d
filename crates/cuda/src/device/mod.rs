//! A device: its context, its streams, and events where work goes from one stream to another.

mod capture;
mod laps;
mod mark;
mod order;
mod replaying;

use std::sync::{Arc, OnceLock};

use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};

use capture::{Admission, Captures};
use order::Order;

use crate::driver::{self, Kept, failed};
use crate::libraries::Library;
use crate::{GpuError, Result};

pub(crate) use capture::Left;
pub use laps::Laps;
pub use mark::Mark;
pub(crate) use replaying::{MOST, Segment, Segments, Turn, Work};

/// Why what happens once cannot be captured.
const FIRST: &str = "it is done once, at first use: run the same work once before";

/// The compute capability that kernels are written for: Ampere, the first with bf16 and TF32.
const NEEDED: (i32, i32) = (8, 0);

/// One of a device's queues of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Kernels of forward, backward and update. Memory is allocated and freed in its order.
    Compute,
    /// What is done to gradients and parameters on their way between ranks. It has the greatest priority, so that a reduction that is
    /// ready is not kept waiting by the rest of backward.
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
            Self::Compute => "computing",
            Self::Communication => "communication",
            Self::Copies => "copies'",
        })
    }
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
    /// Bytes of shared memory that a block can have, if it asks for more than 48 KiB.
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
    /// In whose order memory is allocated while the computing stream captures; made at the first capture.
    reserve: OnceLock<Arc<CudaStream>>,
    order: Order,
    captures: Captures,
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
        let stream = |priority| context.new_stream_with_priority(priority).map_err(failed("make a stream"));
        let ask = |attribute| context.attribute(attribute).map_err(failed("ask for an attribute"));
        let multiprocessors = ask(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?;
        let shared_memory = ask(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let description = Description {
            name: context.name().map_err(failed("ask for a name"))?,
            capability: found,
            memory: context.total_mem().map_err(failed("ask for the memory's size"))?,
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

    /// Whether both are handles of one.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
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
        Self::uuid_of(self.index())
    }

    /// The identity of a GPU, which is not opened for it.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn uuid_of(index: usize) -> Result<String> {
        driver::device_uuid(index)
    }

    /// Where it is on the PCI bus, as Linux writes it: "0000:c1:00.0".
    ///
    /// # Errors
    /// If the driver fails.
    pub fn pci_address(&self) -> Result<String> {
        let ask =
            |attribute| self.0.context.attribute(attribute).map_err(failed("ask for a place on the bus"));
        let domain = ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
        let bus = ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
        let device = ask(Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
        Ok(format!("{domain:04x}:{bus:02x}:{device:02x}.0"))
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

    /// What is issued on `waiter` from now on begins after all that was issued on `waited`. The host does not wait. While a graph
    /// is captured, a stream that waits for one that takes part does so from then on, too.
    ///
    /// # Errors
    /// If the driver fails; [`GpuError::Capture`] if the waiting stream takes part in a capture and the other one does not, or
    /// another thread captures.
    pub fn wait(&self, waiter: Stream, waited: Stream) -> Result<()> {
        if waiter == waited {
            return Ok(());
        }
        self.flush()?;
        self.0.captures.admit_wait(waiter, waited)?;
        let _turn = self.0.order.turn(waited);
        let reached = self.0.order.of(waited);
        self.stream(waiter).join(self.stream(waited)).map_err(failed("let a stream wait"))?;
        self.0.order.learn(waiter, reached);
        Ok(())
    }

    /// What is issued on `waiter` from now on begins after an event of another stream, which was then at `time`.
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
        self.stream(waiter).wait(event).map_err(failed("let a stream wait"))?;
        self.0.order.learn_time(waiter, waited, time);
        Ok(())
    }

    /// Makes sure that `waiter` has waited for what `waited` had been given at a time.
    pub(crate) fn wait_until(&self, waiter: Stream, waited: Stream, time: u64) -> Result<()> {
        if waiter == waited || self.0.order.knows(waiter, waited, time) {
            return Ok(());
        }
        self.wait(waiter, waited)
    }

    /// The host has waited for what a stream was given at a time.
    pub(crate) fn passed(&self, waited: Stream, time: u64) {
        self.0.order.passed(waited, time);
    }

    /// Counts an allocation, in the order of the computing stream.
    pub(crate) fn count_allocation(&self) -> u64 {
        self.0.order.tick(Stream::Compute)
    }

    /// Gives a stream work, and counts it: the time at which the stream is when that is done. The computing stream needs no count,
    /// as memory is freed in its order.
    pub(crate) fn counted<R>(&self, stream: Stream, work: impl FnOnce() -> R) -> (R, u64) {
        if stream == Stream::Compute {
            return (work(), 0);
        }
        let _turn = self.0.order.turn(stream);
        let result = work();
        (result, self.0.order.tick(stream))
    }

    /// Waits until everything that was issued is done, on all streams.
    ///
    /// # Errors
    /// If the driver fails, or something that was issued has failed; [`GpuError::Capture`] while a graph is captured.
    pub fn synchronize(&self) -> Result<()> {
        self.flush()?;
        self.0.captures.refuse_waiting("waiting for the GPU", None)?;
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

/// Capturing a graph.
impl Device {
    /// The stream in whose order memory is allocated: the computing one, or while that captures one beside.
    pub(crate) fn allocating(&self) -> Result<&Arc<CudaStream>> {
        if !self.0.captures.is_active() {
            return Ok(&self.0.compute);
        }
        if let Some(reserve) = self.0.reserve.get() {
            return Ok(reserve);
        }
        let made = self.0.context.new_stream().map_err(failed("make a stream"))?;
        Ok(self.0.reserve.get_or_init(|| made))
    }

    /// A number that no capture has.
    pub(crate) fn new_scope(&self) -> u64 {
        self.0.captures.number()
    }

    /// Begins to capture what this thread issues on the computing stream, under a number of [`Device::new_scope`].
    pub(crate) fn begin_capture_of(&self, scope: u64) -> Result<()> {
        // What was issued before is done before; the graph knows nothing of it.
        if !self.0.captures.is_active() {
            self.wait(Stream::Compute, Stream::Communication)?;
            self.wait(Stream::Compute, Stream::Copies)?;
        }
        self.0.captures.begin(scope, self.0.order.all())?;
        if let Err(error) = driver::begin_capture(&self.0.compute) {
            self.0.captures.end();
            return Err(error);
        }
        Ok(())
    }

    /// Ends the capture: what was captured, and what it leaves. What was refused in it is its error.
    pub(crate) fn end_capture(&self) -> (Result<driver::Captured>, Left) {
        let captured = driver::end_capture(&self.0.compute);
        let Some((before, left, refused)) = self.0.captures.end() else { return (captured, Left::default()) };
        self.0.order.forget(before);
        let joined = match self.0.reserve.get() {
            Some(reserve) => self.0.compute.join(reserve).map_err(failed("let a stream wait")),
            None => Ok(()),
        };
        match refused {
            Some(error) => (Err(error), left),
            None => (captured.and_then(|captured| joined.map(|()| captured)), left),
        }
    }

    /// The number of the capture of this thread.
    pub(crate) fn capture(&self) -> Option<u64> {
        self.0.captures.mine()
    }

    /// Whether work on a stream is run, or captured on a stream that then takes part.
    pub(crate) fn admit(&self, action: &str, stream: Stream) -> Result<bool> {
        match self.0.captures.admit(action, stream)? {
            Admission::Run => Ok(false),
            Admission::Captured { fork } => {
                if fork {
                    self.wait(stream, Stream::Compute)?;
                }
                Ok(true)
            }
        }
    }

    /// Fails if this thread captures: for what is done once, and would not be done again by the graph.
    pub(crate) fn refuse_in_capture(&self, action: &str, problem: &str) -> Result<()> {
        self.0.captures.refuse(action, problem)
    }

    /// Fails if the host would wait for a stream that captures.
    pub(crate) fn refuse_waiting(&self, action: &str, stream: Stream) -> Result<()> {
        self.flush()?;
        self.0.captures.refuse_waiting(action, Some(stream))
    }

    /// Keeps what captured work uses for as long as the graph is there.
    pub(crate) fn keep(&self, address: usize, make: impl FnOnce() -> Kept) {
        self.0.captures.keep(address, make);
    }

    /// Keeps something for as long as the graph is there that this thread captures, if it does.
    pub(crate) fn keep_in_capture<T: Send + Sync + 'static>(&self, what: &Arc<T>) {
        if self.capture().is_some() {
            self.keep(Arc::as_ptr(what).addr(), || what.clone());
        }
    }

    /// Keeps something until no graph is captured.
    pub(crate) fn defer(&self, make: impl FnOnce() -> Kept) {
        self.0.captures.defer(make);
    }
}

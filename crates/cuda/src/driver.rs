//! The calls of the driver. What is unsafe about devices, memory, modules and launches is here.
//!
//! What makes them sound: an address comes from an [`Allocation`], which frees it in the order of the computing stream when
//! nobody holds it any more; ranges are checked here; memory of the host that the device reads or writes later is a
//! [`HostMemory`], which a [`Transfer`] keeps until it is done. A kernel's arguments are compared with what the module says of
//! its parameters; that it keeps within the lengths that it is given is up to its source.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CString, c_uint, c_void};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};

use crate::{GpuError, Result};

/// What the driver answers when there is no more memory.
const OUT_OF_MEMORY: sys::CUresult = sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;

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
    let index = i32::try_from(index).map_err(|_| GpuError::NoDevice { index, count: 0 })?;
    let device = result::device::get(index).map_err(failed(ACTION))?;
    result::device::get_name(device).map_err(failed(ACTION))
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

/// Device memory. It is freed in the order of its stream.
#[derive(Debug)]
pub(crate) struct Allocation {
    address: u64,
    bytes: usize,
    stream: Arc<CudaStream>,
}

impl Allocation {
    /// Memory of unspecified content, in the order of a stream; nothing if there is not so much.
    pub(crate) fn new(stream: &Arc<CudaStream>, bytes: usize) -> Result<Option<Self>> {
        const ACTION: &str = "allocate device memory";
        stream.context().bind_to_thread().map_err(failed(ACTION))?;
        // A slice of nothing has an address all the same.
        let asked = bytes.max(1);
        // SAFETY: the stream is alive, and nobody reads the memory as a type of which not all bits are values.
        match unsafe { result::malloc_async(stream.cu_stream(), asked) } {
            Ok(address) => Ok(Some(Self { address, bytes, stream: stream.clone() })),
            Err(error) if error.0 == OUT_OF_MEMORY => Ok(None),
            Err(error) => Err(failed(ACTION)(error)),
        }
    }

    /// How many bytes it has.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The address of byte `start`, of which `bytes` follow.
    pub(crate) fn address(&self, range: &Range<usize>) -> u64 {
        assert!(range.start <= range.end && range.end <= self.bytes, "{range:?} of {} bytes", self.bytes);
        self.address + range.start as u64
    }

    /// Sets bytes to zero.
    pub(crate) fn zero(&self, range: &Range<usize>, stream: &CudaStream) -> Result<()> {
        const ACTION: &str = "set device memory to zero";
        if range.is_empty() {
            return Ok(());
        }
        stream.context().bind_to_thread().map_err(failed(ACTION))?;
        // SAFETY: the range is inside of this memory; zeros are values of every type of elements.
        unsafe { result::memset_d8_async(self.address(range), 0, range.len(), stream.cu_stream()) }
            .map_err(failed(ACTION))
    }

    /// Copies bytes of `from` here, as many as `range` has.
    pub(crate) fn copy(
        &self,
        range: &Range<usize>,
        from: &Self,
        start: usize,
        stream: &CudaStream,
    ) -> Result<()> {
        const ACTION: &str = "copy device memory";
        if range.is_empty() {
            return Ok(());
        }
        stream.context().bind_to_thread().map_err(failed(ACTION))?;
        let source = from.address(&(start..start + range.len()));
        // SAFETY: both ranges are inside of memory that is alive, and as long.
        unsafe { result::memcpy_dtod_async(self.address(range), source, range.len(), stream.cu_stream()) }
            .map_err(failed(ACTION))
    }

    /// Copies bytes of the host here, and waits until they were read.
    pub(crate) fn upload(&self, range: &Range<usize>, from: &[u8], stream: &CudaStream) -> Result<()> {
        const ACTION: &str = "copy to the device";
        assert_eq!(range.len(), from.len(), "bytes of both sides");
        if from.is_empty() {
            return Ok(());
        }
        stream.context().bind_to_thread().map_err(failed(ACTION))?;
        // SAFETY: the range is inside of this memory, and `from` is borrowed until the stream is done: the driver may read memory
        // of the host after the call, be it page-locked or not.
        unsafe { result::memcpy_htod_async(self.address(range), from, stream.cu_stream()) }
            .map_err(failed(ACTION))?;
        stream.synchronize().map_err(failed(ACTION))
    }

    /// Copies bytes to the host, and waits for them.
    pub(crate) fn download(&self, range: &Range<usize>, to: &mut [u8], stream: &CudaStream) -> Result<()> {
        const ACTION: &str = "copy to the host";
        assert_eq!(range.len(), to.len(), "bytes of both sides");
        if to.is_empty() {
            return Ok(());
        }
        stream.context().bind_to_thread().map_err(failed(ACTION))?;
        // SAFETY: the range is inside of this memory, and `to` is borrowed until the stream is done.
        unsafe { result::memcpy_dtoh_async(to, self.address(range), stream.cu_stream()) }
            .map_err(failed(ACTION))?;
        stream.synchronize().map_err(failed(ACTION))
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        let context = self.stream.context();
        context.record_err(context.bind_to_thread());
        // SAFETY: the address came from the same stream, and nobody has it any more. Work on it that was issued before runs
        // before: on this stream by its order, on others because whoever used it there made this stream wait.
        context.record_err(unsafe { result::free_async(self.address, self.stream.cu_stream()) });
    }
}

/// Page-locked memory of the host, which the device reads and writes while the host goes on.
#[derive(Debug)]
pub(crate) struct HostMemory {
    address: *mut c_void,
    bytes: usize,
    context: Arc<CudaContext>,
}

// SAFETY: it is owned memory of plain bytes; a context may be used from any thread.
unsafe impl Send for HostMemory {}
// SAFETY: shared access only reads.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Memory of zeros.
    pub(crate) fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        const ACTION: &str = "allocate page-locked memory";
        context.bind_to_thread().map_err(failed(ACTION))?;
        // SAFETY: it is filled below before anybody reads it.
        let address = unsafe { result::malloc_host(bytes.max(1), 0) }.map_err(failed(ACTION))?;
        // SAFETY: there are as many bytes at the address, and they are nobody else's.
        unsafe { address.cast::<u8>().write_bytes(0, bytes.max(1)) };
        Ok(Self { address, bytes, context: context.clone() })
    }

    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: the memory has as many bytes, written when it was made; no transfer has it, as it would own it.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.bytes) }
    }

    /// The bytes, to be written.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and it is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.bytes) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: the address came from `malloc_host`, and no transfer has it.
        self.context.record_err(unsafe { result::free_host(self.address) });
    }
}

/// A copy between a device and page-locked memory that may be under way. It has both until it is done.
#[derive(Debug)]
pub(crate) struct Transfer {
    memory: Option<HostMemory>,
    device: Arc<Allocation>,
    done: CudaEvent,
}

impl Transfer {
    /// Begins to copy the first bytes of `memory` to the device, as many as the range has.
    pub(crate) fn upload(
        device: &Arc<Allocation>,
        range: &Range<usize>,
        memory: HostMemory,
        stream: &CudaStream,
    ) -> Result<Self> {
        const ACTION: &str = "copy to the device";
        assert!(range.len() <= memory.bytes, "{range:?} of {} bytes", memory.bytes);
        let done = stream.context().new_event(None).map_err(failed(ACTION))?;
        if !range.is_empty() {
            let from = &memory.bytes()[..range.len()];
            // SAFETY: the range is inside of device memory; the host's is owned by what is returned until it is done.
            unsafe { result::memcpy_htod_async(device.address(range), from, stream.cu_stream()) }
                .map_err(failed(ACTION))?;
        }
        let transfer = Self { memory: Some(memory), device: device.clone(), done };
        transfer.done.record(stream).map_err(failed(ACTION))?;
        Ok(transfer)
    }

    /// Begins to copy bytes of the device to the first of `memory`.
    pub(crate) fn download(
        device: &Arc<Allocation>,
        range: &Range<usize>,
        mut memory: HostMemory,
        stream: &CudaStream,
    ) -> Result<Self> {
        const ACTION: &str = "copy to the host";
        assert!(range.len() <= memory.bytes, "{range:?} of {} bytes", memory.bytes);
        let done = stream.context().new_event(None).map_err(failed(ACTION))?;
        if !range.is_empty() {
            let to = &mut memory.bytes_mut()[..range.len()];
            // SAFETY: as for uploading.
            unsafe { result::memcpy_dtoh_async(to, device.address(range), stream.cu_stream()) }
                .map_err(failed(ACTION))?;
        }
        let transfer = Self { memory: Some(memory), device: device.clone(), done };
        transfer.done.record(stream).map_err(failed(ACTION))?;
        Ok(transfer)
    }

    /// Whether it is done.
    pub(crate) fn is_done(&self) -> Result<bool> {
        self.done.try_is_complete().map_err(failed("ask for a copy"))
    }

    /// What a stream that uses the device's memory waits for.
    pub(crate) fn event(&self) -> &CudaEvent {
        &self.done
    }

    /// Waits until it is done, and gives the host's memory back.
    pub(crate) fn finish(mut self) -> Result<HostMemory> {
        self.done.synchronize().map_err(failed("wait for a copy"))?;
        Ok(self.memory.take().expect("it is taken only here and when dropped"))
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        if self.memory.is_some() && self.done.synchronize().is_err() {
            // The device may still write there; memory that is lost is better than memory of somebody else that changes.
            std::mem::forget(self.memory.take());
        }
        let _ = &self.device;
    }
}

/// Kernels in the device's memory.
#[derive(Debug)]
pub(crate) struct Module {
    module: sys::CUmodule,
    name: &'static str,
    context: Arc<CudaContext>,
    functions: Mutex<HashMap<String, Function>>,
}

// SAFETY: the driver allows a module to be used from any thread whose context is its own, which every use here binds.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

/// A kernel. Its module is never unloaded while one is used, as launches borrow it.
#[derive(Debug, Clone)]
struct Function {
    function: sys::CUfunction,
    /// Sizes of its parameters; none where the driver is too old to tell.
    sizes: Option<Arc<[usize]>>,
}

// SAFETY: as for modules.
unsafe impl Send for Function {}
// SAFETY: as for modules.
unsafe impl Sync for Function {}

/// How a kernel is run.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Blocks.
    pub(crate) grid: [u32; 3],
    /// Threads of a block.
    pub(crate) block: [u32; 3],
    /// Bytes of shared memory besides what the kernel declares.
    pub(crate) shared: u32,
}

impl Module {
    /// Brings compiled code to the device.
    pub(crate) fn load(context: &Arc<CudaContext>, name: &'static str, code: &[u8]) -> Result<Self> {
        const ACTION: &str = "load kernels";
        context.bind_to_thread().map_err(failed(ACTION))?;
        // SAFETY: the code is what the compiler made, which says itself how long it is; it is copied.
        let module = unsafe { result::module::load_data(code.as_ptr().cast()) }.map_err(failed(ACTION))?;
        Ok(Self { module, name, context: context.clone(), functions: Mutex::default() })
    }

    fn function(&self, kernel: &str) -> Result<Function> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(function) = functions.get(kernel) {
            return Ok(function.clone());
        }
        let missing = || GpuError::NoKernel { source_name: self.name, kernel: kernel.to_owned() };
        let name = CString::new(kernel).map_err(|_| missing())?;
        // SAFETY: the module is loaded.
        let function = unsafe { result::module::get_function(self.module, name) }.map_err(|_| missing())?;
        let found = Function { function, sizes: sizes(function)? };
        functions.insert(kernel.to_owned(), found.clone());
        Ok(found)
    }

    /// Runs a kernel with arguments, which are bytes of `arguments` that end at `ends`, on a stream.
    pub(crate) fn launch(
        &self,
        kernel: &str,
        shape: Shape,
        arguments: &[u64],
        ends: &[(usize, usize)],
        stream: &CudaStream,
    ) -> Result<()> {
        const ACTION: &str = "launch a kernel";
        self.context.bind_to_thread().map_err(failed(ACTION))?;
        let Function { function, sizes } = self.function(kernel)?;
        let given = || ends.iter().map(|(_, size)| *size);
        if let Some(sizes) = sizes.filter(|sizes| !given().eq(sizes.iter().copied())) {
            let problem = format!(
                "was given arguments of {:?} bytes; its parameters have {sizes:?}",
                given().collect::<Vec<_>>()
            );
            return Err(GpuError::argument(kernel, problem));
        }
        if shape.shared > 48 * 1024 {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function is that of a loaded module.
            unsafe { result::function::set_function_attribute(function, attribute, shape.shared as i32) }
                .map_err(failed("ask for shared memory"))?;
        }
        let mut parameters: Vec<*mut c_void> = ends
            .iter()
            .map(|(start, _)| (&raw const arguments[*start]).cast_mut().cast::<c_void>())
            .collect();
        let three = |of: [u32; 3]| -> (c_uint, c_uint, c_uint) { (of[0], of[1], of[2]) };
        // SAFETY: there are as many parameters as the kernel has, each of its size and within `arguments`, which the driver
        // copies before it returns. Memory behind addresses is alive: the launch borrows the slices.
        unsafe {
            result::launch_kernel(
                function,
                three(shape.grid),
                three(shape.block),
                shape.shared,
                stream.cu_stream(),
                &mut parameters,
            )
        }
        .map_err(failed(ACTION))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // Kernels that were launched and have not run would lose their code.
        self.context.record_err(self.context.synchronize());
        // SAFETY: the module is loaded, nobody has its functions, and nothing of it runs.
        self.context.record_err(unsafe { result::module::unload(self.module) });
    }
}

/// The sizes of a kernel's parameters, if the driver can tell: from CUDA 12.4 on.
fn sizes(function: sys::CUfunction) -> Result<Option<Arc<[usize]>>> {
    type ParamInfo = unsafe extern "C" fn(sys::CUfunction, usize, *mut usize, *mut usize) -> sys::CUresult;
    // SAFETY: the library is loaded already.
    let loaded = unsafe { sys::culib() };
    // SAFETY: the function has that type, by its header.
    let Ok(info) = (unsafe { loaded.get::<ParamInfo>(b"cuFuncGetParamInfo") }) else { return Ok(None) };
    let mut sizes = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function is loaded; both pointers are to sizes.
        match unsafe { info(function, sizes.len(), &raw mut offset, &raw mut size) } {
            sys::CUresult::CUDA_SUCCESS => sizes.push(size),
            sys::CUresult::CUDA_ERROR_INVALID_VALUE => return Ok(Some(sizes.into())),
            other => return Err(failed("ask for a kernel's parameters")(DriverError(other))),
        }
    }
}

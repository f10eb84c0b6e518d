//! Loaded kernels, and their launches.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CString, c_uint, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{CudaContext, CudaStream, DriverError, result, sys};

use super::failed;
use super::graph::{Executable, Node};
use crate::{GpuError, Result};

#[derive(Debug)]
pub(crate) struct Module {
    module: sys::CUmodule,
    name: &'static str,
    context: Arc<CudaContext>,
    functions: Mutex<HashMap<String, Function>>,
}

// SAFETY: the driver allows the use of a module from any thread whose context is current, which every use ensures.
unsafe impl Send for Module {}
// SAFETY: its functions are looked up behind a lock, and the driver allows concurrent calls for one module.
unsafe impl Sync for Module {}

/// A kernel. Its module outlives each launch, which borrows it.
#[derive(Debug, Clone)]
struct Function {
    function: sys::CUfunction,
    /// The sizes of its parameters. None if the driver is too old to report them.
    sizes: Option<Arc<[usize]>>,
}

// SAFETY: the driver allows launches from any thread whose context is the module's, which every launch ensures.
unsafe impl Send for Function {}
// SAFETY: a launch does not change the kernel; the driver allows concurrent launches of one kernel.
unsafe impl Sync for Function {}

/// The grid of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Blocks.
    pub(crate) grid: [u32; 3],
    /// Threads of a block.
    pub(crate) block: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub(crate) shared: u32,
}

/// A kernel with its grid and arguments.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) module: &'a Module,
    pub(crate) kernel: &'a str,
    pub(crate) shape: Shape,
    /// The arguments. Each begins at its own word.
    pub(crate) arguments: &'a [u64],
    /// The first word and the bytes of each argument.
    pub(crate) places: &'a [(usize, usize)],
}

impl Module {
    /// Loads compiled code onto the device.
    pub(crate) fn load(context: &Arc<CudaContext>, name: &'static str, code: &[u8]) -> Result<Self> {
        const ACTION: &str = "load kernels";
        context.bind_to_thread().map_err(failed(ACTION))?;
        // SAFETY: the code is the compiler's output, which contains its own length; the driver copies it.
        let module = unsafe { result::module::load_data(code.as_ptr().cast()) }.map_err(failed(ACTION))?;
        Ok(Self { module, name, context: context.clone(), functions: Mutex::default() })
    }

    /// Returns true if a kernel was launched before: the driver has then loaded everything that it loads at first use.
    pub(crate) fn has_run(&self, kernel: &str) -> bool {
        self.functions.lock().unwrap_or_else(PoisonError::into_inner).contains_key(kernel)
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
}

impl Call<'_> {
    /// Returns an identifier: equal for calls of one kernel, and unique while its module is loaded.
    pub(crate) fn identity(&self) -> Result<usize> {
        Ok(self.module.function(self.kernel)?.function.addr())
    }

    /// Checks the sizes of the arguments, and returns the kernel with pointers to them.
    fn prepare(&self) -> Result<(sys::CUfunction, Vec<*mut c_void>)> {
        let &Self { module, kernel, shape, arguments, places } = self;
        let Function { function, sizes } = module.function(kernel)?;
        let given = || places.iter().map(|(_, size)| *size);
        if let Some(sizes) = sizes.filter(|sizes| !given().eq(sizes.iter().copied())) {
            let problem = format!(
                "was given arguments of {:?} bytes; its parameters have {sizes:?}",
                given().collect::<Vec<_>>()
            );
            return Err(GpuError::argument(kernel, problem));
        }
        if shape.shared > 48 * 1024 {
            let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // SAFETY: the function belongs to a loaded module.
            unsafe { result::function::set_function_attribute(function, attribute, shape.shared as i32) }
                .map_err(failed("request shared memory"))?;
        }
        let pointer =
            |(start, _): &(usize, usize)| (&raw const arguments[*start]).cast_mut().cast::<c_void>();
        Ok((function, places.iter().map(pointer).collect()))
    }

    /// Launches the kernel on a stream.
    pub(crate) fn launch(&self, stream: &CudaStream) -> Result<()> {
        const ACTION: &str = "launch a kernel";
        self.module.context.bind_to_thread().map_err(failed(ACTION))?;
        let (function, mut parameters) = self.prepare()?;
        let shape = self.shape;
        let three = |of: [u32; 3]| -> (c_uint, c_uint, c_uint) { (of[0], of[1], of[2]) };
        // SAFETY: there are as many arguments as parameters, each of its size and within `arguments`, which the driver copies
        // before it returns. Memory behind addresses is alive: the launch borrows the slices.
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

    /// Replaces the call of a graph's node, captured from the same kernel, from the next launch on.
    pub(crate) fn put(&self, executable: &mut Executable, node: Node) -> Result<()> {
        const ACTION: &str = "update a graph";
        self.module.context.bind_to_thread().map_err(failed(ACTION))?;
        let (function, mut parameters) = self.prepare()?;
        let Shape { grid, block, shared } = self.shape;
        let call = sys::CUDA_KERNEL_NODE_PARAMS {
            func: function,
            gridDimX: grid[0],
            gridDimY: grid[1],
            gridDimZ: grid[2],
            blockDimX: block[0],
            blockDimY: block[1],
            blockDimZ: block[2],
            sharedMemBytes: shared,
            kernelParams: parameters.as_mut_ptr(),
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        // SAFETY: there are as many arguments as parameters, each of its size and within `arguments`, which the driver copies
        // before it returns.
        unsafe { executable.set_kernel(node, &call) }.map_err(failed(ACTION))
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // Launched kernels that have not run would lose their code.
        self.context.record_err(self.context.synchronize());
        // SAFETY: the module is loaded, this is its last owner, and none of its kernels runs.
        self.context.record_err(unsafe { result::module::unload(self.module) });
    }
}

/// Returns the sizes of a kernel's parameters. None before CUDA 12.4, which reports them first.
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
            other => return Err(failed("query the parameters of a kernel")(DriverError(other))),
        }
    }
}

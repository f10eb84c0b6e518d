//! A GPU that is ready to compute: a device, its memory, and its kernels.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::compile::{Compiler, Source, default_folder};
use crate::device::{Device, Mark, Stream};
use crate::driver::Module;
use crate::memory::{Pool, Slice, Staging};
use crate::{Element, ElementType, Result};

/// What is chosen once for a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where compiled kernels are kept between runs of programs; nowhere if none.
    pub cache: Option<PathBuf>,
    /// Whether libraries are asked for algorithms that repeat their bits, chosen by rules. Otherwise those are taken that were
    /// the fastest when they were tried.
    pub repeatable: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { cache: default_folder(), repeatable: true }
    }
}

/// A device, its memory, and its kernels. Clones are handles.
#[derive(Debug, Clone)]
pub struct Gpu(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    // Modules go before the device that has them.
    modules: Mutex<HashMap<&'static str, Arc<Module>>>,
    compiler: OnceLock<Compiler>,
    /// The step that is captured, and where it lies when the graph runs.
    step: Mutex<Option<(u64, Slice)>>,
    /// What uploads pass through.
    staging: Mutex<Staging>,
    /// Bytes that were copied from the host so far.
    uploaded: AtomicU64,
    pool: Pool,
    device: Device,
    options: Options,
}

impl Gpu {
    /// Opens GPU `index`, from 0.
    ///
    /// # Errors
    /// [`MissingLibrary`](crate::GpuError::MissingLibrary) without a driver, [`NoDevice`](crate::GpuError::NoDevice) without such
    /// a GPU, [`OldDevice`](crate::GpuError::OldDevice) if its compute capability is below 8.0.
    pub fn new(index: usize, options: &Options) -> Result<Self> {
        let device = Device::open(index)?;
        Ok(Self(Arc::new(Inner {
            modules: Mutex::default(),
            compiler: OnceLock::new(),
            step: Mutex::default(),
            staging: Mutex::default(),
            uploaded: AtomicU64::new(0),
            pool: Pool::new(device.clone()),
            device,
            options: options.clone(),
        })))
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Its memory.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// What was chosen.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// Whether both are handles of one GPU.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Elements of unspecified value, for whoever overwrites all of them before anybody reads one.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::GpuError::OutOfMemory).
    pub fn unwritten(&self, dtype: ElementType, len: usize) -> Result<Slice> {
        self.0.pool.unwritten(dtype, len)
    }

    /// Elements whose bits are all zero.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::GpuError::OutOfMemory).
    pub fn zeros(&self, dtype: ElementType, len: usize) -> Result<Slice> {
        let slice = self.unwritten(dtype, len)?;
        slice.zero_on(Stream::Compute)?;
        Ok(slice)
    }

    /// A copy of elements of the host, which were read when this returns. Nobody waits for the device: they go by page-locked
    /// memory, unless they are more than 64 MiB.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::GpuError::OutOfMemory).
    pub fn upload<T: Element>(&self, values: &[T]) -> Result<Slice> {
        let slice = self.0.pool.dedicated(T::TYPE, values.len())?;
        if values.is_empty() {
            return Ok(slice);
        }
        if self.0.device.records() {
            let (gpu, values, to) = (self.clone(), values.to_vec(), slice.clone());
            self.0.device.send_aside(move || gpu.send(&values, &to, Stream::Compute))?;
        } else {
            self.0.device.aside(|| self.send(values, &slice, Stream::Compute))?;
        }
        Ok(slice)
    }

    /// Begins to copy elements of the host to a slice, in the order of a stream; they were read when this returns.
    fn send<T: Element>(&self, values: &[T], slice: &Slice, stream: Stream) -> Result<()> {
        self.0.device.refuse_waiting("a copy from the host", stream)?;
        self.0.uploaded.fetch_add(size_of_val(values) as u64, Ordering::Relaxed);
        let mut staging = self.0.staging.lock().unwrap_or_else(PoisonError::into_inner);
        if !staging.send(bytemuck::cast_slice(values), slice, stream)? {
            drop(staging);
            slice.upload_on(values, stream)?;
        }
        Ok(())
    }

    /// How many bytes have been copied from the host since this GPU was opened.
    pub fn uploaded(&self) -> u64 {
        self.0.uploaded.load(Ordering::Relaxed)
    }

    /// Begins to copy elements of the host to a slice, beside what is computed; they were read when this returns. They go by
    /// page-locked memory, in pieces of up to 64 MiB. Who computes with the slice lets the computing stream wait for the mark.
    ///
    /// # Errors
    /// If there are not as many elements, or of another type, and if the driver fails;
    /// [`GpuError::Capture`](crate::GpuError::Capture) while a graph is captured.
    pub fn upload_beside<T: Element>(&self, values: &[T], slice: &Slice) -> Result<Mark> {
        slice.holds::<T>("upload", values.len())?;
        let piece = Staging::LARGEST / size_of::<T>();
        for (at, values) in values.chunks(piece).enumerate() {
            let first = at * piece;
            self.send(values, &slice.view(first..first + values.len())?, Stream::Copies)?;
        }
        self.0.device.mark(Stream::Copies)
    }

    /// A copy of elements on the host, for which this waits.
    ///
    /// # Errors
    /// If they are of another type, or something that was issued before has failed.
    pub fn download<T: Element>(&self, slice: &Slice) -> Result<Vec<T>> {
        slice.download_on(Stream::Compute)
    }

    /// Says that the work which this thread issues next depends on a number, such as a size: a [`Replay`](crate::Replay) has a
    /// recording for each. Elsewhere this does nothing.
    ///
    /// # Errors
    /// [`GpuError::Replay`](crate::GpuError::Replay) if other work was recorded here.
    pub fn branch(&self, key: u64) -> Result<()> {
        if self.device().branch(key)? {
            self.0.pool.branch(key);
        }
        Ok(())
    }

    /// Waits until everything that was issued is done.
    ///
    /// # Errors
    /// If something of it has failed.
    pub fn synchronize(&self) -> Result<()> {
        self.0.device.synchronize()?;
        // Page-locked memory of copies that are done is there for the next.
        self.0.staging.lock().unwrap_or_else(PoisonError::into_inner).collect()
    }

    /// Where a step's number is read when the graph that is captured runs; nothing if it is another step, or none is captured.
    pub(crate) fn captured_step(&self, step: u64) -> Option<Slice> {
        self.device().capture()?;
        let captured = self.0.step.lock().unwrap_or_else(PoisonError::into_inner);
        captured.as_ref().filter(|(number, _)| *number == step).map(|(_, slice)| slice.clone())
    }

    /// Says which step is captured.
    pub(crate) fn set_captured_step(&self, step: Option<(u64, Slice)>) {
        *self.0.step.lock().unwrap_or_else(PoisonError::into_inner) = step;
    }

    /// The kernels of a source, compiled and loaded if they are not yet.
    pub(crate) fn module(&self, source: &Source) -> Result<Arc<Module>> {
        let mut modules = self.0.modules.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(module) = modules.get(source.name) {
            return Ok(module.clone());
        }
        self.device().first_use(&format!("loading kernels `{}`", source.name))?;
        let code = self.compiler()?.compile(source)?;
        let module = Arc::new(Module::load(self.0.device.context(), source.name, &code)?);
        modules.insert(source.name, module.clone());
        Ok(module)
    }

    fn compiler(&self) -> Result<&Compiler> {
        if let Some(compiler) = self.0.compiler.get() {
            return Ok(compiler);
        }
        let capability = self.0.device.description().capability;
        let compiler = Compiler::new(capability, self.0.options.cache.clone())?;
        Ok(self.0.compiler.get_or_init(|| compiler))
    }
}

//! An open GPU: a device, its memory and its kernels.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::compile::{Compiler, Source, default_folder};
use crate::device::{Device, Event, Stream};
use crate::driver::Module;
use crate::memory::{Pool, Slice, Staging};
use crate::{Element, ElementType, Result};

/// Options of a GPU, chosen when it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// The folder that caches compiled kernels between runs. None disables the cache.
    pub cache: Option<PathBuf>,
    /// Use deterministic algorithms of the libraries, chosen by their heuristics. Otherwise algorithms are timed and the fastest
    /// is used.
    pub repeatable: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { cache: default_folder(), repeatable: true }
    }
}

/// A device, its memory and its kernels. Clones are handles.
#[derive(Debug, Clone)]
pub struct Gpu(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    // Dropped before the device that holds them.
    modules: Mutex<HashMap<&'static str, Arc<Module>>>,
    compiler: OnceLock<Compiler>,
    /// The step that is being captured, and the slice from which the graph reads its number.
    step: Mutex<Option<(u64, Slice)>>,
    /// Page-locked memory for uploads.
    staging: Mutex<Staging>,
    /// Bytes copied from the host so far.
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

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Returns the memory pool.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// Returns the options.
    pub fn options(&self) -> &Options {
        &self.0.options
    }

    /// Returns true if both are handles of one GPU.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Allocates elements of unspecified value, for callers that overwrite all of them before any is read.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::GpuError::OutOfMemory).
    pub fn unwritten(&self, dtype: ElementType, len: usize) -> Result<Slice> {
        self.0.pool.unwritten(dtype, len)
    }

    /// Allocates elements whose bits are all zero.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::GpuError::OutOfMemory).
    pub fn zeros(&self, dtype: ElementType, len: usize) -> Result<Slice> {
        let slice = self.unwritten(dtype, len)?;
        slice.zero_on(Stream::Compute)?;
        Ok(slice)
    }

    /// Copies host elements to a new slice. The elements have been read when this returns.
    ///
    /// The host does not wait for the device, as the copy goes through page-locked memory. Copies of more than 64 MiB do wait.
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
            self.0.device.before_launch(move || gpu.send(&values, &to, Stream::Compute))?;
        } else {
            self.0.device.issue_first(|| self.send(values, &slice, Stream::Compute))?;
        }
        Ok(slice)
    }

    /// Starts a copy of host elements to a slice, in the order of a stream. The elements have been read when this returns.
    fn send<T: Element>(&self, values: &[T], slice: &Slice, stream: Stream) -> Result<()> {
        self.0.device.refuse_host_wait("a copy from the host", stream)?;
        self.0.uploaded.fetch_add(size_of_val(values) as u64, Ordering::Relaxed);
        let mut staging = self.0.staging.lock().unwrap_or_else(PoisonError::into_inner);
        if !staging.send(bytemuck::cast_slice(values), slice, stream)? {
            drop(staging);
            slice.upload_on(values, stream)?;
        }
        Ok(())
    }

    /// Returns the bytes copied from the host since this GPU was opened.
    pub fn uploaded(&self) -> u64 {
        self.0.uploaded.load(Ordering::Relaxed)
    }

    /// Starts a copy of host elements to a slice on the copy stream, concurrently with compute. The elements have been read when
    /// this returns.
    ///
    /// The copy goes through page-locked memory, in pieces of up to 64 MiB. Call [`Event::make_wait`] for each stream that uses
    /// the slice.
    ///
    /// # Errors
    /// If the number or the type of the elements differs, or the driver fails; [`GpuError::Capture`](crate::GpuError::Capture)
    /// while a graph is captured.
    pub fn upload_async<T: Element>(&self, values: &[T], slice: &Slice) -> Result<Event> {
        slice.holds::<T>("upload", values.len())?;
        let piece = Staging::LARGEST / size_of::<T>();
        for (at, values) in values.chunks(piece).enumerate() {
            let first = at * piece;
            self.send(values, &slice.view(first..first + values.len())?, Stream::Copies)?;
        }
        self.0.device.record_event(Stream::Copies)
    }

    /// Copies a slice to the host, and waits for the copy.
    ///
    /// # Errors
    /// If the elements are of another type, or work that was issued before has failed.
    pub fn download<T: Element>(&self, slice: &Slice) -> Result<Vec<T>> {
        slice.download_on(Stream::Compute)
    }

    /// Declares that the next work of this thread depends on `key`, such as a size. A [`GraphReplay`](crate::GraphReplay) keeps a
    /// recording for each key. Elsewhere this does nothing.
    ///
    /// # Errors
    /// [`GpuError::Replay`](crate::GpuError::Replay) if other work was recorded here.
    pub fn branch(&self, key: u64) -> Result<()> {
        if self.device().branch(key)? {
            self.0.pool.branch(key);
        }
        Ok(())
    }

    /// Waits until all issued work is done.
    ///
    /// # Errors
    /// If any of it has failed.
    pub fn synchronize(&self) -> Result<()> {
        self.0.device.synchronize()?;
        // Page-locked memory of finished copies becomes available for the next ones.
        self.0.staging.lock().unwrap_or_else(PoisonError::into_inner).collect()
    }

    /// Returns the slice from which the graph that is being captured reads the number of `step`. None if no graph, or another
    /// step, is being captured.
    pub(crate) fn captured_step(&self, step: u64) -> Option<Slice> {
        self.device().capture()?;
        let captured = self.0.step.lock().unwrap_or_else(PoisonError::into_inner);
        captured.as_ref().filter(|(number, _)| *number == step).map(|(_, slice)| slice.clone())
    }

    /// Sets the step that is being captured.
    pub(crate) fn set_captured_step(&self, step: Option<(u64, Slice)>) {
        *self.0.step.lock().unwrap_or_else(PoisonError::into_inner) = step;
    }

    /// Returns the kernels of a source, which are compiled and loaded at first use.
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

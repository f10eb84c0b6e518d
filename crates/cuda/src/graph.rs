//! CUDA graphs: work that is captured once and launched again as a whole.
//!
//! A capture runs the code that issues the work. The work itself is recorded and not run. A launch then runs all of it on the
//! compute stream, at a fraction of the host's cost of issuing it piece by piece. The bits are the same: the same kernels get the
//! same arguments.
//!
//! ```no_run
//! use phalanx_cuda::{ElementType, Gpu, GpuError, Graph, Options, kernels};
//!
//! let gpu = Gpu::new(0, &Options::default())?;
//! let input = gpu.upload(&[1.0_f32, -2.0])?;
//! let forward = || kernels::affine(&gpu, &input, 2.0, 1.0);
//! forward()?; // Eagerly first: kernels are compiled, libraries choose their algorithms.
//! let (graph, output) = Graph::capture(&gpu, None, forward)?;
//! for step in 0..10 {
//!     kernels::write(&gpu, &input, &[step as f32, 0.5])?;
//!     graph.launch()?;
//! }
//! assert_eq!(gpu.download::<f32>(&output)?, [19.0, 2.0]);
//! # Ok::<(), GpuError>(())
//! ```
//!
//! # Memory
//!
//! A graph's memory has fixed addresses. Memory that is allocated during the capture belongs to the graph. Memory that is dropped
//! during the capture is reused within it. Slices that leave the capture hold the results of the latest launch. The graph keeps
//! earlier slices that its work uses: write new inputs into the same slices.
//!
//! # Scalars that change
//!
//! Scalars that kernels take by value are part of the graph. Scalars that change from step to step are read from device memory.
//! [`kernels::write`](crate::kernels::write) updates them before each launch, without waiting:
//!
//! - the step of random numbers: [`CapturedStep`] gives its number and its slice, and all keys of that step read it there;
//! - the scalars of an optimizer step: [`StepScalars::OnDevice`](crate::kernels::StepScalars::OnDevice);
//! - gradient factor, skip flag and loss scale, which are always on the device.
//!
//! # Streams
//!
//! A stream joins the capture when it waits for the compute stream, or when the capturing thread gives it work. The compute
//! stream must wait for it before the capture ends. A graph does not wait for other work: before a launch, wait for its inputs by
//! [`Device::wait`](crate::Device::wait).
//!
//! # Limits
//!
//! These operations are [`GpuError::Capture`] and end the capture, even if the caller drops the error:
//!
//! - waiting on the host: downloads and uploads;
//! - the first use of a kernel, of a library, or of a product's or convolution's sizes;
//! - the launch of another graph.
//!
//! Other threads cannot use the captured streams during the capture.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

use crate::device::Stream;
use crate::driver::{Executable, KeepAlive};
use crate::memory::{Reserve, Slice};
use crate::{ElementType, Gpu, GpuError, Result};

/// A step's number, and the slice from which a graph reads it.
#[derive(Debug, Clone, Copy)]
pub struct CapturedStep<'a> {
    /// The number during the capture. Keys of random numbers with this step read it from the device.
    pub step: u64,
    /// The number at each launch: one i64 element with the bits of the u64.
    pub at: &'a Slice,
}

/// Captured work. It is launched on the compute stream of its GPU, and keeps the kernels and libraries that it uses.
#[derive(Debug)]
pub struct Graph {
    // Dropped before the kernels that it uses.
    executable: Mutex<Executable>,
    bytes: usize,
    gpu: Gpu,
}

impl Graph {
    /// Captures the work that `body` issues on this thread, and returns the graph with the result of `body`. No work runs before
    /// the graph is launched.
    ///
    /// # Errors
    /// The errors of `body`; [`GpuError::Capture`] if an operation cannot be captured, the compute stream did not wait for a stream of
    /// the capture, or the GPU captures already; [`GpuError::Argument`] if the step's number is not one i64 of this GPU. The GPU
    /// runs eagerly again after an error.
    pub fn capture<R, E: From<GpuError>>(
        gpu: &Gpu,
        step: Option<CapturedStep<'_>>,
        body: impl FnOnce() -> Result<R, E>,
    ) -> Result<(Self, R), E> {
        let device = gpu.device();
        if let Some(CapturedStep { at, .. }) = step
            && ((at.dtype(), at.len()) != (ElementType::I64, 1) || !at.device().is(device))
        {
            let problem = format!(
                "a step of {} elements of {}; it should be one i64 of this GPU",
                at.len(),
                at.dtype()
            );
            return Err(GpuError::argument("capture", problem).into());
        }
        device.refuse_in_capture("a capture", "the GPU is capturing already")?;
        let scope = device.new_scope();
        gpu.pool().begin_scope(Reserve::new(scope))?;
        if let Err(error) = device.begin_capture_of(scope) {
            gpu.pool().end_scope();
            return Err(error.into());
        }
        gpu.set_captured_step(step.map(|step| (step.step, step.at.clone())));
        let result = catch_unwind(AssertUnwindSafe(body));
        gpu.set_captured_step(None);
        let (captured, left) = device.end_capture();
        let owned = gpu.pool().end_scope().map(Reserve::into_owned).unwrap_or_default();
        let kept = left.into_kept();
        let result = result.unwrap_or_else(|panic| resume_unwind(panic))?;
        let bytes = owned.iter().map(|block| block.memory().bytes()).sum();
        let memory = owned.into_iter().map(|block| block as KeepAlive).chain(kept).collect();
        let executable = Mutex::new(captured?.instantiate(memory)?);
        Ok((Self { executable, bytes, gpu: gpu.clone() }, result))
    }

    /// Runs the graph, in the order of the compute stream. The host does not wait.
    ///
    /// # Errors
    /// If the driver fails; [`GpuError::Capture`] while another graph is captured.
    pub fn launch(&self) -> Result<()> {
        let device = self.gpu.device();
        device.refuse_in_capture("launching a graph", "a graph cannot be part of another one")?;
        device.admit("launching a graph", Stream::Compute)?;
        let mut executable = self.executable.lock().unwrap_or_else(PoisonError::into_inner);
        executable.launch(device.stream(Stream::Compute))
    }

    /// Returns the bytes that were allocated for the graph. It keeps them until it is dropped.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

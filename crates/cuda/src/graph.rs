//! CUDA graphs: a sequence of work that is captured once and launched again as one.
//!
//! Capturing runs the code that issues the work; the work itself is recorded and not run. A launch then runs all of it, on the
//! computing stream, at a fraction of what it costs the host to issue it piece by piece. The bits are the same: the same kernels
//! get the same arguments.
//!
//! ```no_run
//! use phalanx_cuda::{ElementType, Gpu, GpuError, Graph, Options, kernels};
//!
//! let gpu = Gpu::new(0, &Options::default())?;
//! let input = gpu.upload(&[1.0_f32, -2.0])?;
//! let forward = || kernels::affine(&gpu, &input, 2.0, 1.0);
//! forward()?; // Once as always: kernels are compiled, libraries choose their algorithms.
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
//! A graph's memory is at fixed addresses. What is allocated during the capture belongs to the graph; what is dropped during the
//! capture is used again within it. Slices that leave the capture hold what the latest launch wrote. Slices from before that
//! captured work uses are kept for the graph, so whoever wants other inputs writes them into the same slices.
//!
//! # Numbers that change
//!
//! Numbers that kernels take by value are part of the graph. What changes from step to step lies on the device instead, and is
//! written there before each launch by [`kernels::write`](crate::kernels::write), which waits for nothing:
//!
//! - the step of random numbers: the capture is told the step's number and where it lies ([`CapturedStep`]), and all keys of that
//!   step read it there;
//! - what a step of an optimizer multiplies by: [`StepNumbers::At`](crate::kernels::StepNumbers::At);
//! - factor, skip flag, loss scale: on the device in any case.
//!
//! # Streams
//!
//! A stream that waits for the computing one, or is given work by the thread that captures, takes part from then on; the
//! computing one must wait for it before the capture ends. The graph does not wait for what it does not know: whoever launches
//! it waits for its inputs before, by [`Device::wait`](crate::Device::wait).
//!
//! # What cannot be captured
//!
//! Waiting on the host (reading numbers, copies from and to it), kernels that have never run, products and convolutions of sizes
//! that were not computed before, opening a library, launching another graph: each is [`GpuError::Capture`], and the capture ends
//! with it, even if the error is not handed on. Other threads cannot use the captured streams meanwhile.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};

use crate::device::Stream;
use crate::driver::{Executable, Kept};
use crate::memory::{Reserve, Slice};
use crate::{ElementType, Gpu, GpuError, Result};

/// A step's number, and where a graph reads it.
#[derive(Debug, Clone, Copy)]
pub struct CapturedStep<'a> {
    /// The number while the graph is captured. Keys of random numbers with this step read it from the device.
    pub step: u64,
    /// The number at each launch: one element of i64, whose bits are those of u64.
    pub at: &'a Slice,
}

/// Work that was captured. It is launched on the computing stream of its GPU, whose kernels and libraries it keeps.
#[derive(Debug)]
pub struct Graph {
    // Goes before the kernels that it has.
    executable: Mutex<Executable>,
    bytes: usize,
    gpu: Gpu,
}

impl Graph {
    /// Captures what `body` issues on this thread, and gives what it returns. Nothing of it is run before the graph is launched.
    ///
    /// # Errors
    /// Those of `body`; [`GpuError::Capture`] if something cannot be captured, a stream that took part was not waited for, or the
    /// GPU captures already; [`GpuError::Argument`] if the step's number is no i64 of this GPU. The capture is over then, and the
    /// GPU runs what it is given as before.
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
        device.refuse_in_capture("a capture", "the GPU captures one already")?;
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
        let memory = owned.into_iter().map(|block| block as Kept).chain(kept).collect();
        let executable = Mutex::new(captured?.instantiate(memory)?);
        Ok((Self { executable, bytes, gpu: gpu.clone() }, result))
    }

    /// Runs all of it, after what the computing stream was given before and before what it is given after. The host does not wait.
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

    /// Bytes that were allocated for it, and are held as long as it is there.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

//! Capturing a stream, and launching what was captured.
#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};

use super::{Kept, failed};
use crate::{GpuError, Result};

/// Begins to capture what a stream is given. Calls that are no work of a stream go on as always: this crate refuses those that
/// would be missing in the graph.
pub(crate) fn begin_capture(stream: &CudaStream) -> Result<()> {
    stream
        .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
        .map_err(failed("begin a capture"))
}

/// Ends the capture of a stream, well or not; afterwards the stream runs what it is given.
pub(crate) fn end_capture(stream: &CudaStream) -> Result<Captured> {
    const ACTION: &str = "end a capture";
    let context = stream.context();
    context.bind_to_thread().map_err(failed(ACTION))?;
    // SAFETY: the stream is alive.
    let graph = unsafe { result::stream::end_capture(stream.cu_stream()) }.map_err(|error| broken(&error))?;
    if graph.is_null() {
        return Err(broken(&DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)));
    }
    Ok(Captured { graph, context: context.clone() })
}

/// The error of a capture that has no graph.
fn broken(error: &DriverError) -> GpuError {
    let problem = match error.0 {
        sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED => {
            "a stream that took part was not waited for: let the computing stream wait for it at the end"
        }
        sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => {
            "something that the driver does not capture was issued"
        }
        _ => return failed("end a capture")(*error),
    };
    GpuError::Capture { action: "a graph".to_owned(), problem: problem.to_owned() }
}

/// What was captured.
#[derive(Debug)]
pub(crate) struct Captured {
    graph: sys::CUgraph,
    context: Arc<CudaContext>,
}

impl Captured {
    /// Makes it ready to be launched. It has `memory`, which is all that captured work uses.
    pub(crate) fn instantiate(&self, memory: Vec<Kept>) -> Result<Executable> {
        const ACTION: &str = "instantiate a graph";
        self.context.bind_to_thread().map_err(failed(ACTION))?;
        let done = self.context.new_event(None).map_err(failed(ACTION))?;
        // SAFETY: the graph is alive, and by the borrow nobody destroys it meanwhile.
        let executable = unsafe { result::graph::instantiate(self.graph, sys::CUgraphInstantiate_flags(0)) }
            .map_err(failed(ACTION))?;
        Ok(Executable { executable, done, context: self.context.clone(), _memory: memory })
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: the graph came from a capture, and nobody has it any more; what was instantiated is a copy.
        self.context.record_err(unsafe { result::graph::destroy(self.graph) });
    }
}

/// A graph that can be launched.
#[derive(Debug)]
pub(crate) struct Executable {
    executable: sys::CUgraphExec,
    /// The end of the latest launch.
    done: CudaEvent,
    context: Arc<CudaContext>,
    /// What it reads and writes.
    _memory: Vec<Kept>,
}

// SAFETY: the driver allows a graph to be used from any thread whose context is its own, which every use binds.
unsafe impl Send for Executable {}

impl Executable {
    /// Launches it on the stream in whose order memory is freed: all of it runs between what the stream was given before and what
    /// it is given after.
    pub(crate) fn launch(&mut self, stream: &CudaStream) -> Result<()> {
        const ACTION: &str = "launch a graph";
        self.context.bind_to_thread().map_err(failed(ACTION))?;
        // SAFETY: graph and stream are alive, and the graph is borrowed alone; it has its memory.
        unsafe { result::graph::launch(self.executable, stream.cu_stream()) }.map_err(failed(ACTION))?;
        self.done.record(stream).map_err(|error| {
            // Without an event nobody would know when it is done.
            self.context.record_err(stream.synchronize());
            failed(ACTION)(error)
        })
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // One that runs may not be destroyed. An event that was never recorded is over.
        if let Err(error) = self.done.synchronize() {
            return self.context.record_err::<()>(Err(error));
        }
        // SAFETY: the graph was instantiated, nobody has it any more, and nothing of it runs.
        self.context.record_err(unsafe { result::graph::exec_destroy(self.executable) });
    }
}

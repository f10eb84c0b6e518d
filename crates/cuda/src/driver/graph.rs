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

/// A piece of captured work, as its graph knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node(sys::CUgraphNode);

/// The piece of work that a stream which captures was given last.
pub(crate) fn last_captured(stream: &CudaStream) -> Result<Node> {
    const ACTION: &str = "ask what was captured";
    type CaptureInfo = unsafe extern "C" fn(
        sys::CUstream,
        *mut sys::CUstreamCaptureStatus,
        *mut u64,
        *mut sys::CUgraph,
        *mut *const sys::CUgraphNode,
        *mut usize,
    ) -> sys::CUresult;
    stream.context().bind_to_thread().map_err(failed(ACTION))?;
    // SAFETY: the library is loaded already.
    let loaded = unsafe { sys::culib() };
    // Every driver since 11.3 has this version of the function, whatever the newest one is.
    // SAFETY: the function has that type, by its header.
    let info = unsafe { loaded.get::<CaptureInfo>(b"cuStreamGetCaptureInfo_v2") }
        .map_err(|error| GpuError::Driver { action: ACTION, problem: error.to_string() })?;
    let mut status = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let (mut id, mut graph, mut nodes, mut count) = (0, std::ptr::null_mut(), std::ptr::null(), 0);
    let stream = stream.cu_stream();
    // SAFETY: the stream is alive, and all pointers are to what is written.
    unsafe { info(stream, &raw mut status, &raw mut id, &raw mut graph, &raw mut nodes, &raw mut count) }
        .result()
        .map_err(failed(ACTION))?;
    if count != 1 || nodes.is_null() {
        let problem = format!("{count} pieces of work that the next one comes after; one was expected");
        return Err(GpuError::Capture { action: "a recording".to_owned(), problem });
    }
    // SAFETY: the driver's list has `count` nodes, and is there until the stream is given more work.
    Ok(Node(unsafe { *nodes }))
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

impl Executable {
    /// Replaces what a node of the graph that this was made of runs, from the next launch on.
    ///
    /// # Safety
    /// The kernel must be that of the node, with parameters that the driver can read; the graph must still be there.
    pub(super) unsafe fn set_kernel(
        &mut self,
        Node(node): Node,
        call: &sys::CUDA_KERNEL_NODE_PARAMS,
    ) -> Result<(), DriverError> {
        // SAFETY: the executable graph is alive and borrowed alone; the rest is up to the caller.
        unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.executable, node, call) }.result()
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

//! Captures of streams, and launches of graphs.
#![allow(unsafe_code)]

use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaEvent, CudaStream, DriverError, result, sys};

use super::{KeepAlive, failed};
use crate::{GpuError, Result};

/// Begins to capture a stream. Other calls of the driver stay allowed: this crate refuses those that the graph would lack.
pub(crate) fn begin_capture(stream: &CudaStream) -> Result<()> {
    stream
        .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
        .map_err(failed("begin a capture"))
}

/// Ends the capture of a stream, successful or not. The stream runs its work again.
pub(crate) fn end_capture(stream: &CudaStream) -> Result<CapturedGraph> {
    const ACTION: &str = "end a capture";
    let context = stream.context();
    context.bind_to_thread().map_err(failed(ACTION))?;
    // SAFETY: the stream is alive.
    let graph = unsafe { result::stream::end_capture(stream.cu_stream()) }.map_err(|error| broken(&error))?;
    if graph.is_null() {
        return Err(broken(&DriverError(sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)));
    }
    Ok(CapturedGraph { graph, context: context.clone() })
}

/// Returns the error of a capture without a graph.
fn broken(error: &DriverError) -> GpuError {
    let problem = match error.0 {
        sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED => {
            "a stream of the capture was not waited for: make the compute stream wait for it at the end"
        }
        sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED => {
            "an operation that the driver does not capture was issued"
        }
        _ => return failed("end a capture")(*error),
    };
    GpuError::Capture { action: "a graph".to_owned(), problem: problem.to_owned() }
}

/// A captured graph.
#[derive(Debug)]
pub(crate) struct CapturedGraph {
    graph: sys::CUgraph,
    context: Arc<CudaContext>,
}

/// A node of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node(sys::CUgraphNode);

/// Returns the node of the latest work of a stream that captures.
pub(crate) fn last_captured(stream: &CudaStream) -> Result<Node> {
    const ACTION: &str = "query the captured node";
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
    // Every driver since 11.3 has this version of the function.
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
        let problem = format!("{count} dependencies of the next node; one was expected");
        return Err(GpuError::Capture { action: "a recording".to_owned(), problem });
    }
    // SAFETY: the driver's list has `count` nodes, and is there until the stream is given more work.
    Ok(Node(unsafe { *nodes }))
}

impl CapturedGraph {
    /// Instantiates the graph for launches. `memory` is all memory that its work uses.
    pub(crate) fn instantiate(&self, memory: Vec<KeepAlive>) -> Result<Executable> {
        const ACTION: &str = "instantiate a graph";
        self.context.bind_to_thread().map_err(failed(ACTION))?;
        let done = self.context.new_event(None).map_err(failed(ACTION))?;
        // SAFETY: the graph is alive, and borrowed during the call.
        let executable = unsafe { result::graph::instantiate(self.graph, sys::CUgraphInstantiate_flags(0)) }
            .map_err(failed(ACTION))?;
        Ok(Executable { executable, done, context: self.context.clone(), _memory: memory })
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: the graph came from a capture, and this is its last owner; instances are copies.
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
    /// The memory that it reads and writes.
    _memory: Vec<KeepAlive>,
}

// SAFETY: the driver allows the use of a graph from any thread whose context is current, which every use ensures.
unsafe impl Send for Executable {}

impl Executable {
    /// Launches the graph on the stream in whose order memory is freed, between earlier and later work of the stream.
    pub(crate) fn launch(&mut self, stream: &CudaStream) -> Result<()> {
        const ACTION: &str = "launch a graph";
        self.context.bind_to_thread().map_err(failed(ACTION))?;
        // SAFETY: graph and stream are alive, and the graph is borrowed exclusively; it owns its memory.
        unsafe { result::graph::launch(self.executable, stream.cu_stream()) }.map_err(failed(ACTION))?;
        self.done.record(stream).map_err(|error| {
            // Without an event the end of the launch would be unknown.
            self.context.record_err(stream.synchronize());
            failed(ACTION)(error)
        })
    }
}

impl Executable {
    /// Replaces the kernel call of a node of this graph, from the next launch on.
    ///
    /// # Safety
    /// The kernel must be that of the node, with parameters that the driver can read. The graph of the node must be alive.
    pub(super) unsafe fn set_kernel(
        &mut self,
        Node(node): Node,
        call: &sys::CUDA_KERNEL_NODE_PARAMS,
    ) -> Result<(), DriverError> {
        // SAFETY: the executable graph is alive and borrowed exclusively; the caller ensures the rest.
        unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.executable, node, call) }.result()
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // A running graph may not be destroyed. An event that was never recorded is complete.
        if let Err(error) = self.done.synchronize() {
            return self.context.record_err::<()>(Err(error));
        }
        // SAFETY: the graph was instantiated, this is its last owner, and it does not run.
        self.context.record_err(unsafe { result::graph::exec_destroy(self.executable) });
    }
}

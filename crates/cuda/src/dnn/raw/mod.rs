//! The calls of cuDNN, with the unsafe code of this folder.
#![allow(unsafe_code)]

mod algorithms;
mod descriptors;

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cudnn::{result, sys};
use cudarc::driver::{CudaContext, CudaStream};

use super::{Key, Pass};
use crate::device::Stream;
use crate::driver::failed as driver_failed;
use crate::gpu::Gpu;
use crate::memory::Slice;
use crate::{ElementType, GpuError, Result};
use descriptors::{Images, Weights, Window};

fn failed(function: &'static str) -> impl Fn(result::CudnnError) -> GpuError {
    move |error| GpuError::Library { library: "cuDNN", function, problem: format!("{:?}", error.0) }
}

/// The library's handle, on the compute stream.
#[derive(Debug)]
pub(super) struct Handle {
    handle: sys::cudnnHandle_t,
    context: Arc<CudaContext>,
}

// SAFETY: cuDNN's handle may be used from any thread, one at a time, which the lock around it ensures.
unsafe impl Send for Handle {}
/// The descriptors of a shape, and the algorithm of a pass.
#[derive(Debug)]
pub(super) struct Plan {
    x: Images,
    w: Weights,
    y: Images,
    window: Window,
    algorithm: Algorithm,
    workspace: usize,
}

// SAFETY: descriptors are plain memory of the library, used by one thread at a time, behind a lock.
unsafe impl Send for Plan {}

#[derive(Debug, Clone, Copy)]
enum Algorithm {
    Forward(sys::cudnnConvolutionFwdAlgo_t),
    BackwardInput(sys::cudnnConvolutionBwdDataAlgo_t),
    BackwardWeight(sys::cudnnConvolutionBwdFilterAlgo_t),
}

impl Plan {
    /// Returns the algorithm's workspace in bytes.
    pub(super) fn workspace(&self) -> usize {
        self.workspace
    }
}
impl Handle {
    /// Opens a handle on a GPU.
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let context = gpu.device().context().clone();
        context.bind_to_thread().map_err(driver_failed("open cuDNN"))?;
        let handle = Self { handle: result::create_handle().map_err(failed("cudnnCreate"))?, context };
        let stream = gpu.device().stream(Stream::Compute).cu_stream().cast();
        // SAFETY: the stream lives as long as the GPU, which every owner of this handle keeps.
        unsafe { result::set_stream(handle.handle, stream) }.map_err(failed("cudnnSetStream"))?;
        Ok(handle)
    }

    /// Runs a pass over input, weight and output, or their gradients.
    pub(super) fn run(
        &self,
        key: &Key,
        plan: &Plan,
        slices: [&Slice; 3],
        add: bool,
        workspace: Option<&Slice>,
        stream: &CudaStream,
    ) -> Result<()> {
        stream.context().bind_to_thread().map_err(driver_failed("convolve"))?;
        let beta = f64::from(u8::from(add));
        let (single, double) = ([1.0_f32, beta as f32], [1.0_f64, beta]);
        let [alpha, beta]: [*const c_void; 2] = match key.dtype == ElementType::F64 {
            true => [(&raw const double[0]).cast(), (&raw const double[1]).cast()],
            false => [(&raw const single[0]).cast(), (&raw const single[1]).cast()],
        };
        let [x, w, y] = slices.map(|slice| slice.address() as *mut c_void);
        let workspace = workspace.map_or(0, Slice::address) as *mut c_void;
        let (handle, window, bytes) = (self.handle, plan.window.0, plan.workspace);
        // The three functions differ in the operands that they read and write.
        macro_rules! call {
            ($function:path, $name:literal, $algorithm:ident, [$a:ident, $b:ident, $to:ident]) => {
                $function(
                    handle, alpha, plan.$a.0, $a, plan.$b.0, $b, window, $algorithm, workspace, bytes, beta,
                    plan.$to.0, $to,
                )
                .map_err(failed($name))
            };
        }
        // SAFETY: descriptors give the layout of each slice, whose length and type were compared with the shape; the workspace has
        // as many bytes as the algorithm uses; all are alive, and outlive the work (`memory::issue`).
        unsafe {
            match plan.algorithm {
                Algorithm::Forward(algorithm) => {
                    call!(result::convolution_forward, "cudnnConvolutionForward", algorithm, [x, w, y])
                }
                Algorithm::BackwardInput(algorithm) => {
                    call!(
                        result::convolution_backward_data,
                        "cudnnConvolutionBackwardData",
                        algorithm,
                        [w, y, x]
                    )
                }
                Algorithm::BackwardWeight(algorithm) => {
                    call!(
                        result::convolution_backward_filter,
                        "cudnnConvolutionBackwardFilter",
                        algorithm,
                        [x, y, w]
                    )
                }
            }
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: the handle was made, and this is its last owner.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

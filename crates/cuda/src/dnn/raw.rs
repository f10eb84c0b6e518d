//! The calls of cuDNN. What is unsafe in this folder is here.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use cudarc::cudnn::{result, sys};
use cudarc::driver::{CudaContext, CudaStream};

use super::{Key, Layout, Pass};
use crate::device::Stream;
use crate::driver::failed as driver_failed;
use crate::gpu::Gpu;
use crate::memory::Slice;
use crate::{ElementType, GpuError, Result};

/// More algorithms than there are for any pass.
const CANDIDATES: usize = 16;

fn failed(function: &'static str) -> impl Fn(result::CudnnError) -> GpuError {
    move |error| GpuError::Library { library: "cuDNN", function, problem: format!("{:?}", error.0) }
}

/// The library's handle, on the computing stream.
#[derive(Debug)]
pub(super) struct Handle {
    handle: sys::cudnnHandle_t,
    context: Arc<CudaContext>,
}

// SAFETY: cuDNN's handle may be used from any thread, by one at a time, which the lock around it ensures.
unsafe impl Send for Handle {}

/// A descriptor of the library, which goes away with it.
macro_rules! descriptor {
    ($(#[$doc:meta])* $name:ident, $type:ty, $make:path, $make_name:literal, $destroy:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        struct $name($type);

        impl $name {
            fn new() -> Result<Self> {
                $make().map(Self).map_err(failed($make_name))
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the descriptor was made by the library, and nobody else has it.
                let _ = unsafe { $destroy(self.0) };
            }
        }
    };
}
descriptor! {
    /// How images lie.
    Images, sys::cudnnTensorDescriptor_t, result::create_tensor_descriptor, "cudnnCreateTensorDescriptor",
    result::destroy_tensor_descriptor
}
descriptor! {
    /// How weights lie.
    Weights, sys::cudnnFilterDescriptor_t, result::create_filter_descriptor, "cudnnCreateFilterDescriptor",
    result::destroy_filter_descriptor
}
descriptor! {
    /// How the window moves.
    Window, sys::cudnnConvolutionDescriptor_t, result::create_convolution_descriptor,
    "cudnnCreateConvolutionDescriptor", result::destroy_convolution_descriptor
}

/// How a pass over some shape is computed.
#[derive(Debug)]
pub(super) struct Plan {
    x: Images,
    w: Weights,
    y: Images,
    window: Window,
    algorithm: Algorithm,
    workspace: usize,
}

// SAFETY: descriptors are plain memory of the library, used by one at a time, behind a lock.
unsafe impl Send for Plan {}

#[derive(Debug, Clone, Copy)]
enum Algorithm {
    Forward(sys::cudnnConvolutionFwdAlgo_t),
    BackwardInput(sys::cudnnConvolutionBwdDataAlgo_t),
    BackwardWeight(sys::cudnnConvolutionBwdFilterAlgo_t),
}

impl Plan {
    /// Bytes that the algorithm takes while it runs.
    pub(super) fn workspace(&self) -> usize {
        self.workspace
    }
}

/// What cuDNN says of an algorithm.
struct Candidate {
    algorithm: Algorithm,
    works: bool,
    repeats: bool,
    math: sys::cudnnMathType_t,
}

fn data_type(dtype: ElementType) -> sys::cudnnDataType_t {
    match dtype {
        ElementType::F64 => sys::cudnnDataType_t::CUDNN_DATA_DOUBLE,
        ElementType::Bf16 => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
        ElementType::F16 => sys::cudnnDataType_t::CUDNN_DATA_HALF,
        _ => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
    }
}

/// Sizes as the library counts them.
fn ints<const N: usize>(sizes: [usize; N]) -> Result<[c_int; N]> {
    let mut narrow = [0; N];
    for (to, size) in narrow.iter_mut().zip(sizes) {
        let large = |_| GpuError::argument("convolution", format!("a size of {size} is too large"));
        *to = c_int::try_from(size).map_err(large)?;
    }
    Ok(narrow)
}

fn images(dtype: ElementType, layout: Layout, [n, c, h, w]: [usize; 4]) -> Result<Images> {
    let strides = match layout {
        Layout::ChannelsFirst => [c * h * w, h * w, w, 1],
        Layout::ChannelsLast => [h * w * c, 1, w * c, c],
    };
    let (sizes, strides) = (ints([n, c, h, w])?, ints(strides)?);
    let made = Images::new()?;
    // SAFETY: the descriptor was just made.
    unsafe { result::set_tensor4d_descriptor_ex(made.0, data_type(dtype), sizes, strides) }
        .map_err(failed("cudnnSetTensor4dDescriptorEx"))?;
    Ok(made)
}

impl Handle {
    /// A handle on a GPU.
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let context = gpu.device().context().clone();
        context.bind_to_thread().map_err(driver_failed("open cuDNN"))?;
        let handle = Self { handle: result::create_handle().map_err(failed("cudnnCreate"))?, context };
        let stream = gpu.device().stream(Stream::Compute).cu_stream().cast();
        // SAFETY: the stream lives as long as the GPU, of which whoever has this handle has one.
        unsafe { result::set_stream(handle.handle, stream) }.map_err(failed("cudnnSetStream"))?;
        Ok(handle)
    }

    /// Descriptors of a shape, without an algorithm.
    fn describe(&self, key: &Key) -> Result<Plan> {
        self.context.bind_to_thread().map_err(driver_failed("plan a convolution"))?;
        let of = &key.convolution;
        let [height, width] = of.output().unwrap_or_default();
        let x = images(key.dtype, key.reading.layout, [of.batch, of.in_channels, of.height, of.width])?;
        let y = images(key.dtype, key.reading.layout, [of.batch, of.out_channels, height, width])?;
        let (w, window) = (Weights::new()?, Window::new()?);
        let algorithm =
            Algorithm::Forward(sys::cudnnConvolutionFwdAlgo_t::CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM);
        let plan = Plan { x, w, y, window, algorithm, workspace: 0 };
        let format = match key.reading.layout {
            Layout::ChannelsFirst => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NCHW,
            Layout::ChannelsLast => sys::cudnnTensorFormat_t::CUDNN_TENSOR_NHWC,
        };
        let sizes = ints([of.out_channels, of.in_channels / of.groups, of.kernel[0], of.kernel[1]])?;
        let [pad_h, pad_w, step_h, step_w, between_h, between_w, groups] = ints([
            of.padding[0],
            of.padding[1],
            of.stride[0],
            of.stride[1],
            of.dilation[0],
            of.dilation[1],
            of.groups,
        ])?;
        let compute = data_type(key.dtype.wide());
        let mode = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        // SAFETY: the descriptors were just made.
        unsafe {
            result::set_filter4d_descriptor(plan.w.0, data_type(key.dtype), format, sizes)
                .map_err(failed("cudnnSetFilter4dDescriptor"))?;
            result::set_convolution2d_descriptor(
                plan.window.0,
                pad_h,
                pad_w,
                step_h,
                step_w,
                between_h,
                between_w,
                mode,
                compute,
            )
            .map_err(failed("cudnnSetConvolution2dDescriptor"))?;
            result::set_convolution_group_count(plan.window.0, groups)
                .map_err(failed("cudnnSetConvolutionGroupCount"))?;
        }
        self.set_math(&plan, math(key))?;
        Ok(plan)
    }

    fn set_math(&self, plan: &Plan, math: sys::cudnnMathType_t) -> Result<()> {
        // SAFETY: the descriptor is alive.
        unsafe { result::set_convolution_math_type(plan.window.0, math) }
            .map_err(failed("cudnnSetConvolutionMathType"))
    }

    /// The algorithm that the library's rules put first, among those that repeat their bits and need at most `room` bytes.
    pub(super) fn plan_by_rules(&self, key: &Key, room: usize) -> Result<Plan> {
        let plan = self.describe(key)?;
        let candidates = self.ranked(key.pass, &plan)?;
        self.choose(key, plan, candidates, room, true)
    }

    /// The algorithm that is the fastest when tried. What they write goes to `scratch`.
    pub(super) fn plan_by_trying(
        &self,
        key: &Key,
        slices: [&Slice; 3],
        scratch: &Slice,
        room: Option<&Slice>,
    ) -> Result<Plan> {
        let plan = self.describe(key)?;
        let candidates = self.tried(key.pass, &plan, slices, scratch, room)?;
        self.choose(key, plan, candidates, room.map_or(0, Slice::bytes), false)
    }

    /// The first of some algorithms that serves.
    fn choose(
        &self,
        key: &Key,
        mut plan: Plan,
        candidates: Vec<Candidate>,
        room: usize,
        repeatable: bool,
    ) -> Result<Plan> {
        use sys::cudnnMathType_t::{CUDNN_DEFAULT_MATH, CUDNN_FMA_MATH};
        // Without TF32 no algorithm may bring it in, whatever it would gain.
        let strict = key.dtype == ElementType::F32 && !key.reading.tf32;
        let exact = |one: &Candidate| !strict || matches!(one.math, CUDNN_DEFAULT_MATH | CUDNN_FMA_MATH);
        for one in
            candidates.into_iter().filter(|one| one.works && (one.repeats || !repeatable) && exact(one))
        {
            // The default allows TF32.
            self.set_math(&plan, if strict { CUDNN_FMA_MATH } else { one.math })?;
            plan.algorithm = one.algorithm;
            // How much it needs follows from what it may round to, too, so that is asked last. An error is an algorithm that does
            // not go with it.
            match self.room_of(&plan) {
                Ok(workspace) if workspace <= room => {
                    plan.workspace = workspace;
                    return Ok(plan);
                }
                _ => {}
            }
        }
        let what = format!("{:?} of {}, {:?}", key.convolution, key.dtype, key.reading.layout);
        Err(GpuError::unsupported(key.pass.name(), what))
    }

    /// Bytes that a plan's algorithm takes while it runs.
    fn room_of(&self, plan: &Plan) -> Result<usize> {
        let Plan { x, w, y, window, .. } = plan;
        // SAFETY: handle and descriptors are alive.
        unsafe {
            match plan.algorithm {
                Algorithm::Forward(algorithm) => result::get_convolution_forward_workspace_size(
                    self.handle,
                    x.0,
                    w.0,
                    window.0,
                    y.0,
                    algorithm,
                ),
                Algorithm::BackwardInput(algorithm) => result::get_convolution_backward_data_workspace_size(
                    self.handle,
                    w.0,
                    y.0,
                    window.0,
                    x.0,
                    algorithm,
                ),
                Algorithm::BackwardWeight(algorithm) => {
                    result::get_convolution_backward_filter_workspace_size(
                        self.handle,
                        x.0,
                        y.0,
                        window.0,
                        w.0,
                        algorithm,
                    )
                }
            }
        }
        .map_err(failed("cudnnGetConvolutionWorkspaceSize"))
    }

    /// Runs a pass over input, weight and output, or what stands for them.
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
        let room = workspace.map_or(0, Slice::address) as *mut c_void;
        let (handle, convolution, bytes) = (self.handle, plan.window.0, plan.workspace);
        // SAFETY: descriptors say of each slice how it lies, and its length and type were compared with the shape; the workspace
        // has as many bytes as the algorithm takes; all are alive, and outlive what the stream is given (`memory::issue`).
        unsafe {
            match plan.algorithm {
                Algorithm::Forward(algorithm) => result::convolution_forward(
                    handle,
                    alpha,
                    plan.x.0,
                    x,
                    plan.w.0,
                    w,
                    convolution,
                    algorithm,
                    room,
                    bytes,
                    beta,
                    plan.y.0,
                    y,
                )
                .map_err(failed("cudnnConvolutionForward")),
                Algorithm::BackwardInput(algorithm) => result::convolution_backward_data(
                    handle,
                    alpha,
                    plan.w.0,
                    w,
                    plan.y.0,
                    y,
                    convolution,
                    algorithm,
                    room,
                    bytes,
                    beta,
                    plan.x.0,
                    x,
                )
                .map_err(failed("cudnnConvolutionBackwardData")),
                Algorithm::BackwardWeight(algorithm) => result::convolution_backward_filter(
                    handle,
                    alpha,
                    plan.x.0,
                    x,
                    plan.y.0,
                    y,
                    convolution,
                    algorithm,
                    room,
                    bytes,
                    beta,
                    plan.w.0,
                    w,
                )
                .map_err(failed("cudnnConvolutionBackwardFilter")),
            }
        }
    }
}

/// What products may be rounded to.
fn math(key: &Key) -> sys::cudnnMathType_t {
    match key.dtype {
        ElementType::F32 if !key.reading.tf32 => sys::cudnnMathType_t::CUDNN_FMA_MATH,
        ElementType::F64 => sys::cudnnMathType_t::CUDNN_DEFAULT_MATH,
        _ => sys::cudnnMathType_t::CUDNN_TENSOR_OP_MATH,
    }
}

/// Asks one of the library's functions for candidates, and turns its answers into this module's.
macro_rules! candidates {
    ($type:ty, $variant:ident, $name:literal, |$count:ident, $answers:ident| $call:expr) => {{
        // SAFETY: the answers are plain numbers, of which zeros are values.
        let mut answers: [$type; CANDIDATES] = unsafe { std::mem::zeroed() };
        let mut found: c_int = 0;
        let ($count, $answers) = (&raw mut found, answers.as_mut_ptr());
        // SAFETY: descriptors and slices are alive, and there is room for as many answers as are asked for.
        unsafe { $call }.result().map_err(failed($name))?;
        let found = usize::try_from(found).unwrap_or(0).min(CANDIDATES);
        let candidate = |one: &$type| Candidate {
            algorithm: Algorithm::$variant(one.algo),
            works: one.status == sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS,
            repeats: one.determinism == sys::cudnnDeterminism_t::CUDNN_DETERMINISTIC,
            math: one.mathType,
        };
        Ok(answers[..found].iter().map(candidate).collect())
    }};
}

impl Handle {
    /// Algorithms in the order in which the library's rules put them.
    fn ranked(&self, pass: Pass, plan: &Plan) -> Result<Vec<Candidate>> {
        let (handle, conv, most) = (self.handle, plan.window.0, CANDIDATES as c_int);
        match pass {
            Pass::Forward => candidates!(
                sys::cudnnConvolutionFwdAlgoPerf_t,
                Forward,
                "cudnnGetConvolutionForwardAlgorithm_v7",
                |count, answers| sys::cudnnGetConvolutionForwardAlgorithm_v7(
                    handle, plan.x.0, plan.w.0, conv, plan.y.0, most, count, answers,
                )
            ),
            Pass::BackwardInput => candidates!(
                sys::cudnnConvolutionBwdDataAlgoPerf_t,
                BackwardInput,
                "cudnnGetConvolutionBackwardDataAlgorithm_v7",
                |count, answers| sys::cudnnGetConvolutionBackwardDataAlgorithm_v7(
                    handle, plan.w.0, plan.y.0, conv, plan.x.0, most, count, answers,
                )
            ),
            Pass::BackwardWeight => candidates!(
                sys::cudnnConvolutionBwdFilterAlgoPerf_t,
                BackwardWeight,
                "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
                |count, answers| sys::cudnnGetConvolutionBackwardFilterAlgorithm_v7(
                    handle, plan.x.0, plan.y.0, conv, plan.w.0, most, count, answers,
                )
            ),
        }
    }

    /// Algorithms in the order of the time that they took.
    fn tried(
        &self,
        pass: Pass,
        plan: &Plan,
        slices: [&Slice; 3],
        scratch: &Slice,
        room: Option<&Slice>,
    ) -> Result<Vec<Candidate>> {
        let (handle, conv, most) = (self.handle, plan.window.0, CANDIDATES as c_int);
        let [x, w, y] = slices.map(|slice| slice.address() as *const c_void);
        let to = scratch.address() as *mut c_void;
        let (space, bytes) = (room.map_or(0, Slice::address) as *mut c_void, room.map_or(0, Slice::bytes));
        match pass {
            Pass::Forward => candidates!(
                sys::cudnnConvolutionFwdAlgoPerf_t,
                Forward,
                "cudnnFindConvolutionForwardAlgorithmEx",
                |count, answers| sys::cudnnFindConvolutionForwardAlgorithmEx(
                    handle, plan.x.0, x, plan.w.0, w, conv, plan.y.0, to, most, count, answers, space, bytes,
                )
            ),
            Pass::BackwardInput => candidates!(
                sys::cudnnConvolutionBwdDataAlgoPerf_t,
                BackwardInput,
                "cudnnFindConvolutionBackwardDataAlgorithmEx",
                |count, answers| sys::cudnnFindConvolutionBackwardDataAlgorithmEx(
                    handle, plan.w.0, w, plan.y.0, y, conv, plan.x.0, to, most, count, answers, space, bytes,
                )
            ),
            Pass::BackwardWeight => candidates!(
                sys::cudnnConvolutionBwdFilterAlgoPerf_t,
                BackwardWeight,
                "cudnnFindConvolutionBackwardFilterAlgorithmEx",
                |count, answers| sys::cudnnFindConvolutionBackwardFilterAlgorithmEx(
                    handle, plan.x.0, x, plan.y.0, y, conv, plan.w.0, to, most, count, answers, space, bytes,
                )
            ),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: the handle was made, and nobody has it any more.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

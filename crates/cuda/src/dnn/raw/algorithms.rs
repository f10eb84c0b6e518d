//! The choice of algorithms, by cuDNN's heuristics or by timing.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use cudarc::cudnn::{result, sys};

use super::{Algorithm, Handle, Key, Pass, Plan, failed};
use crate::driver::failed as driver_failed;
use crate::memory::Slice;
use crate::{ElementType, GpuError, Result};

/// More than the algorithms of any pass.
const CANDIDATES: usize = 16;

/// cuDNN's description of an algorithm.
struct Candidate {
    algorithm: Algorithm,
    works: bool,
    repeats: bool,
    math: sys::cudnnMathType_t,
}
/// Calls one of the library's functions for algorithms, and converts its results.
macro_rules! candidates {
    ($type:ty, $variant:ident, $name:literal, |$count:ident, $answers:ident| $call:expr) => {{
        // SAFETY: the results are plain numbers, of which zeros are values.
        let mut answers: [$type; CANDIDATES] = unsafe { std::mem::zeroed() };
        let mut found: c_int = 0;
        let ($count, $answers) = (&raw mut found, answers.as_mut_ptr());
        // SAFETY: descriptors and slices are alive, and there is room for as many results as are requested.
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
    /// Returns the plan that the library's heuristics rank first, among deterministic algorithms with at most `limit` bytes.
    pub(in crate::dnn) fn plan_by_heuristics(&self, key: &Key, limit: usize) -> Result<Plan> {
        self.context.bind_to_thread().map_err(driver_failed("plan a convolution"))?;
        let plan = Plan::describe(key)?;
        let candidates = self.candidates_by_heuristics(key.pass, &plan)?;
        self.choose(key, plan, candidates, limit, true)
    }

    /// Returns the fastest plan by timing. Results go to `scratch`.
    pub(in crate::dnn) fn plan_by_timing(
        &self,
        key: &Key,
        slices: [&Slice; 3],
        scratch: &Slice,
        workspace: Option<&Slice>,
    ) -> Result<Plan> {
        self.context.bind_to_thread().map_err(driver_failed("plan a convolution"))?;
        let plan = Plan::describe(key)?;
        let candidates = self.candidates_by_timing(key.pass, &plan, slices, scratch, workspace)?;
        self.choose(key, plan, candidates, workspace.map_or(0, Slice::bytes), false)
    }

    /// Returns a plan with the first suitable algorithm.
    fn choose(
        &self,
        key: &Key,
        mut plan: Plan,
        candidates: Vec<Candidate>,
        limit: usize,
        repeatable: bool,
    ) -> Result<Plan> {
        use sys::cudnnMathType_t::{CUDNN_DEFAULT_MATH, CUDNN_FMA_MATH};
        // Without TF32, algorithms that round to it are excluded, even if they are faster.
        let strict = key.dtype == ElementType::F32 && !key.format.tf32;
        let exact = |one: &Candidate| !strict || matches!(one.math, CUDNN_DEFAULT_MATH | CUDNN_FMA_MATH);
        for one in
            candidates.into_iter().filter(|one| one.works && (one.repeats || !repeatable) && exact(one))
        {
            // The default allows TF32.
            plan.set_math(if strict { CUDNN_FMA_MATH } else { one.math })?;
            plan.algorithm = one.algorithm;
            // The workspace depends on the math type, so it is queried last. An error means that the algorithm does not support
            // it.
            match self.workspace_of(&plan) {
                Ok(workspace) if workspace <= limit => {
                    plan.workspace = workspace;
                    return Ok(plan);
                }
                _ => {}
            }
        }
        let what = format!("{:?} of {}, {:?}", key.convolution, key.dtype, key.format.layout);
        Err(GpuError::unsupported(key.pass.name(), what))
    }

    /// Returns the workspace of a plan's algorithm in bytes.
    fn workspace_of(&self, plan: &Plan) -> Result<usize> {
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

    /// Returns algorithms in the order of the library's heuristics.
    fn candidates_by_heuristics(&self, pass: Pass, plan: &Plan) -> Result<Vec<Candidate>> {
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

    /// Returns algorithms in the order of their measured times.
    fn candidates_by_timing(
        &self,
        pass: Pass,
        plan: &Plan,
        slices: [&Slice; 3],
        scratch: &Slice,
        workspace: Option<&Slice>,
    ) -> Result<Vec<Candidate>> {
        let (handle, conv, most) = (self.handle, plan.window.0, CANDIDATES as c_int);
        let [x, w, y] = slices.map(|slice| slice.address() as *const c_void);
        let to = scratch.address() as *mut c_void;
        let (space, bytes) =
            (workspace.map_or(0, Slice::address) as *mut c_void, workspace.map_or(0, Slice::bytes));
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

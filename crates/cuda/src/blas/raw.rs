//! The calls of cuBLASLt, with the unsafe code of this folder.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::cublaslt::{result, sys};
use cudarc::driver::{CudaContext, CudaStream};

use super::{Key, Product};
use crate::driver::failed as driver_failed;
use crate::gpu::Gpu;
use crate::memory::Slice;
use crate::{ElementType, GpuError, Result};

fn failed(function: &'static str) -> impl Fn(result::CublasError) -> GpuError {
    move |error| GpuError::Library { library: "cuBLASLt", function, problem: format!("{:?}", error.0) }
}

/// The library's handle.
#[derive(Debug)]
pub(super) struct Handle {
    handle: sys::cublasLtHandle_t,
    context: Arc<CudaContext>,
}

// SAFETY: cuBLASLt's handle may be used from any thread.
unsafe impl Send for Handle {}
// SAFETY: cuBLASLt allows concurrent calls with one handle: it holds no state of a call.
unsafe impl Sync for Handle {}

/// Defines a descriptor of the library, which is destroyed when dropped.
macro_rules! descriptor {
    ($(#[$doc:meta])* $name:ident, $type:ty, $destroy:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        struct $name($type);

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the descriptor was made by the library, and this is its only owner.
                let _ = unsafe { $destroy(self.0) };
            }
        }
    };
}
descriptor! {
    /// The operation: types, transpositions and epilogue.
    Description, sys::cublasLtMatmulDesc_t, result::destroy_matmul_desc
}
descriptor! {
    /// The sizes and the stride of matrices.
    MatrixLayout, sys::cublasLtMatrixLayout_t, result::destroy_matrix_layout
}
descriptor! {
    /// The limits for the choice of an algorithm.
    Preference, sys::cublasLtMatmulPreference_t, result::destroy_matmul_pref
}

/// The descriptors and the algorithm of a product.
#[derive(Debug)]
pub(super) struct Plan {
    description: Description,
    layouts: [MatrixLayout; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
    wide: bool,
}

// SAFETY: descriptors are plain memory of the library, used by one thread at a time, behind a lock.
unsafe impl Send for Plan {}

impl Plan {
    /// Returns the descriptors of a product, with a placeholder for the algorithm.
    fn describe(key: &Key) -> Result<Self> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        let [batch, m, n, k] = key.sizes;
        let wide = key.factors == ElementType::F64;
        let (compute, scale) = match (wide, key.tf32) {
            (true, _) => (sys::cublasComputeType_t::CUBLAS_COMPUTE_64F, sys::cudaDataType_t::CUDA_R_64F),
            (_, true) => {
                (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F_FAST_TF32, sys::cudaDataType_t::CUDA_R_32F)
            }
            _ => (sys::cublasComputeType_t::CUBLAS_COMPUTE_32F, sys::cudaDataType_t::CUDA_R_32F),
        };
        let description = result::create_matmul_desc(compute, scale)
            .map(Description)
            .map_err(failed("cublasLtMatmulDescCreate"))?;
        // The transposed product: the right factor comes first.
        let of = |transposed: bool, rows, columns| if transposed { (columns, rows) } else { (rows, columns) };
        let ((b_rows, b_columns), (a_rows, a_columns)) =
            (of(key.transposed[1], n, k), of(key.transposed[0], k, m));
        let plan = Self {
            description,
            layouts: [
                layout(key.factors, b_rows, b_columns, batch)?,
                layout(key.factors, a_rows, a_columns, batch)?,
                layout(key.to, n, m, batch)?,
            ],
            algorithm: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            workspace: 0,
            wide,
        };
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, &i32::from(key.transposed[1]))?;
        plan.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, &i32::from(key.transposed[0]))?;
        if key.bias {
            let epilogue = sys::cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS;
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_EPILOGUE, &(epilogue as u32))?;
            // The choice depends on the presence and the alignment of a bias. Its address is set at each run.
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &u64::from(key.alignment[2]))?;
        }
        Ok(plan)
    }

    /// Returns the algorithm's workspace in bytes.
    pub(super) fn workspace(&self) -> usize {
        self.workspace
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        // SAFETY: the descriptor is alive; the value has the attribute's type, as the callers below ensure.
        unsafe {
            let at: *const T = value;
            result::set_matmul_desc_attribute(
                self.description.0,
                attribute,
                at.cast::<c_void>(),
                size_of::<T>(),
            )
        }
        .map_err(failed("cublasLtMatmulDescSetAttribute"))
    }
}

fn data_type(dtype: ElementType) -> sys::cudaDataType_t {
    match dtype {
        ElementType::F64 => sys::cudaDataType_t::CUDA_R_64F,
        ElementType::Bf16 => sys::cudaDataType_t::CUDA_R_16BF,
        ElementType::F16 => sys::cudaDataType_t::CUDA_R_16F,
        _ => sys::cudaDataType_t::CUDA_R_32F,
    }
}

/// Returns the layout of `batch` contiguous column-major matrices of `rows`×`columns`.
fn layout(dtype: ElementType, rows: usize, columns: usize, batch: usize) -> Result<MatrixLayout> {
    use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
    let (long, lead) = (|size: usize| size as u64, rows as i64);
    let made = result::create_matrix_layout(data_type(dtype), long(rows), long(columns), lead)
        .map(MatrixLayout)
        .map_err(failed("cublasLtMatrixLayoutCreate"))?;
    let count =
        i32::try_from(batch).map_err(|_| GpuError::argument("matmul", format!("{batch} products")))?;
    let offset = (rows * columns) as i64;
    // SAFETY: the layout is alive, and the values have the attributes' types.
    unsafe {
        let (at, size) = ((&raw const count).cast::<c_void>(), size_of::<i32>());
        result::set_matrix_layout_attribute(made.0, Attribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, at, size)
            .map_err(failed("cublasLtMatrixLayoutSetAttribute"))?;
        let (at, size) = ((&raw const offset).cast::<c_void>(), size_of::<i64>());
        let attribute = Attribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET;
        result::set_matrix_layout_attribute(made.0, attribute, at, size)
            .map_err(failed("cublasLtMatrixLayoutSetAttribute"))?;
    }
    Ok(made)
}

/// Returns the limits for the choice of an algorithm.
fn preference(key: &Key, limit: usize) -> Result<Preference> {
    use sys::cublasLtMatmulPreferenceAttributes_t as Attribute;
    let preference =
        result::create_matmul_pref().map(Preference).map_err(failed("cublasLtMatmulPreferenceCreate"))?;
    let [of_a, of_b, of_to] = key.alignment;
    let alignments = [
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, of_b),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, of_a),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_to),
        (Attribute::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_to),
    ];
    let set = failed("cublasLtMatmulPreferenceSetAttribute");
    let limit = limit as u64;
    // SAFETY: the preference is alive, and the values have the attributes' types.
    unsafe {
        let (attribute, size) = (Attribute::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, size_of::<u64>());
        result::set_matmul_pref_attribute(preference.0, attribute, (&raw const limit).cast(), size)
            .map_err(&set)?;
        // Partial sums stay in the compute type: only the result is rounded to 16 bits.
        let scheme = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
        let (attribute, size) = (Attribute::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, size_of::<u32>());
        result::set_matmul_pref_attribute(preference.0, attribute, (&raw const scheme).cast(), size)
            .map_err(&set)?;
        for (attribute, bytes) in alignments {
            let (at, size) = ((&raw const bytes).cast::<c_void>(), size_of::<u32>());
            result::set_matmul_pref_attribute(preference.0, attribute, at, size).map_err(&set)?;
        }
    }
    Ok(preference)
}

impl Handle {
    /// Opens a handle on a GPU.
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let context = gpu.device().context().clone();
        context.bind_to_thread().map_err(driver_failed("open cuBLASLt"))?;
        Ok(Self { handle: result::create_handle().map_err(failed("cublasLtCreate"))?, context })
    }

    /// Returns a plan for a product. Its workspace is at most `limit` bytes.
    pub(super) fn plan(&self, key: &Key, limit: usize) -> Result<Plan> {
        self.context.bind_to_thread().map_err(driver_failed("plan a product"))?;
        let (mut plan, preference) = (Plan::describe(key)?, preference(key, limit)?);
        let (of, [first, second, to]) = (plan.description.0, plan.layouts.each_ref().map(|layout| layout.0));
        // SAFETY: everything was made above and is alive.
        let found = unsafe {
            result::get_matmul_algo_heuristic(self.handle, of, first, second, to, to, preference.0)
        }
        .map_err(failed("cublasLtMatmulAlgoGetHeuristic"))?;
        (plan.algorithm, plan.workspace) = (found.algo, found.workspaceSize);
        Ok(plan)
    }

    /// Runs a product by its plan.
    pub(super) fn run(
        &self,
        plan: &Plan,
        product: &Product<'_>,
        workspace: Option<&Slice>,
        stream: &CudaStream,
    ) -> Result<()> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        self.context.bind_to_thread().map_err(driver_failed("multiply"))?;
        if let Some(bias) = product.bias {
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias.address())?;
        }
        let beta = f64::from(u8::from(product.add));
        let (single, double) = ([1.0_f32, beta as f32], [1.0_f64, beta]);
        let scales: [*const c_void; 2] = match plan.wide {
            true => [(&raw const double[0]).cast(), (&raw const double[1]).cast()],
            false => [(&raw const single[0]).cast(), (&raw const single[1]).cast()],
        };
        let [first, second, layout] = plan.layouts.each_ref().map(|layout| layout.0);
        let (first_factor, second_factor) = (product.b.slice.address(), product.a.slice.address());
        let to = product.to.address();
        let workspace = workspace.map_or(0, Slice::address);
        // SAFETY: the plan was made for these sizes, types and alignments, and the lengths of the slices were compared with the
        // sizes; slices and workspace are alive, and outlive the work (`memory::issue`).
        unsafe {
            result::matmul(
                self.handle,
                plan.description.0,
                scales[0],
                scales[1],
                first_factor as *const c_void,
                first,
                second_factor as *const c_void,
                second,
                to as *const c_void,
                layout,
                to as *mut c_void,
                layout,
                &raw const plan.algorithm,
                workspace as *mut c_void,
                plan.workspace,
                stream.cu_stream().cast(),
            )
        }
        .map_err(failed("cublasLtMatmul"))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: the handle was made, and this is its last owner.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

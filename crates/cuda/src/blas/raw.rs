//! The calls of cuBLASLt. What is unsafe in this folder is here.
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
// SAFETY: cuBLASLt allows calls with one handle from several threads at once: it holds no state of a call.
unsafe impl Sync for Handle {}

/// A descriptor of the library, which goes away with it.
macro_rules! descriptor {
    ($(#[$doc:meta])* $name:ident, $type:ty, $destroy:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        struct $name($type);

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the descriptor was made by the library, and nobody else has it.
                let _ = unsafe { $destroy(self.0) };
            }
        }
    };
}
descriptor! {
    /// What is multiplied how.
    Description, sys::cublasLtMatmulDesc_t, result::destroy_matmul_desc
}
descriptor! {
    /// How a matrix lies.
    Layout, sys::cublasLtMatrixLayout_t, result::destroy_matrix_layout
}
descriptor! {
    /// What an algorithm may need.
    Preference, sys::cublasLtMatmulPreference_t, result::destroy_matmul_pref
}

/// How a product of some sizes and types is computed.
#[derive(Debug)]
pub(super) struct Plan {
    description: Description,
    layouts: [Layout; 3],
    algorithm: sys::cublasLtMatmulAlgo_t,
    workspace: usize,
    wide: bool,
}

// SAFETY: descriptors are plain memory of the library, used by one at a time, behind a lock.
unsafe impl Send for Plan {}

impl Plan {
    /// Bytes that the algorithm takes while it runs.
    pub(super) fn workspace(&self) -> usize {
        self.workspace
    }

    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<()> {
        // SAFETY: the descriptor is alive; the value has the attribute's type, as the callers below see to.
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

/// A layout of `rows`×`columns`, counted by columns, of which `batch` follow each other.
fn layout(dtype: ElementType, rows: usize, columns: usize, batch: usize) -> Result<Layout> {
    use sys::cublasLtMatrixLayoutAttribute_t as Attribute;
    let (long, lead) = (|size: usize| size as u64, rows as i64);
    let made = result::create_matrix_layout(data_type(dtype), long(rows), long(columns), lead)
        .map(Layout)
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

impl Handle {
    /// A handle on a GPU.
    pub(super) fn new(gpu: &Gpu) -> Result<Self> {
        let context = gpu.device().context().clone();
        context.bind_to_thread().map_err(driver_failed("open cuBLASLt"))?;
        Ok(Self { handle: result::create_handle().map_err(failed("cublasLtCreate"))?, context })
    }

    /// Finds out how to compute a product.
    pub(super) fn plan(&self, key: &Key, room: usize) -> Result<Plan> {
        use sys::cublasLtMatmulDescAttributes_t as Attribute;
        use sys::cublasLtMatmulPreferenceAttributes_t as Wish;
        self.context.bind_to_thread().map_err(driver_failed("plan a product"))?;
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
        let mut plan = Plan {
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
            // Algorithms depend on there being one, and on how it is aligned; which is told at each run.
            plan.set(Attribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, &u64::from(key.alignment[2]))?;
        }
        let wishes =
            result::create_matmul_pref().map(Preference).map_err(failed("cublasLtMatmulPreferenceCreate"))?;
        let [of_a, of_b, of_to] = key.alignment;
        let alignments = [
            (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, of_b),
            (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, of_a),
            (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, of_to),
            (Wish::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, of_to),
        ];
        let set = failed("cublasLtMatmulPreferenceSetAttribute");
        let room = room as u64;
        // SAFETY: the preference is alive, and the values have the attributes' types.
        unsafe {
            let (wish, size) = (Wish::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, size_of::<u64>());
            result::set_matmul_pref_attribute(wishes.0, wish, (&raw const room).cast(), size)
                .map_err(&set)?;
            // Partial sums stay in the type that is computed in: none is rounded to 16 bits before the last.
            let scheme = sys::cublasLtReductionScheme_t::CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE as u32;
            let (wish, size) = (Wish::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, size_of::<u32>());
            result::set_matmul_pref_attribute(wishes.0, wish, (&raw const scheme).cast(), size)
                .map_err(&set)?;
            for (wish, bytes) in alignments {
                let (at, size) = ((&raw const bytes).cast::<c_void>(), size_of::<u32>());
                result::set_matmul_pref_attribute(wishes.0, wish, at, size).map_err(&set)?;
            }
        }
        let (of, [first, second, to]) = (plan.description.0, plan.layouts.each_ref().map(|layout| layout.0));
        // SAFETY: everything was made above and is alive.
        let found =
            unsafe { result::get_matmul_algo_heuristic(self.handle, of, first, second, to, to, wishes.0) }
                .map_err(failed("cublasLtMatmulAlgoGetHeuristic"))?;
        (plan.algorithm, plan.workspace) = (found.algo, found.workspaceSize);
        Ok(plan)
    }

    /// Computes a product by its plan.
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
        let room = workspace.map_or(0, Slice::address);
        // SAFETY: the plan was made for these sizes, types and alignments, and the lengths of the slices were compared with the
        // sizes; slices and workspace are alive, and outlive what the stream is given (`memory::issue`).
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
                room as *mut c_void,
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
        // SAFETY: the handle was made, and nobody has it any more.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

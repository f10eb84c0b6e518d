//! Matrix products by cuBLASLt, with one plan for each combination of sizes and types.
//!
//! Matrices are row-major here, and column-major in cuBLASLt. It therefore computes the transposed product of the transposed
//! factors, which are the same elements in memory.

mod raw;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{DefaultHasher, Hash as _};
use std::sync::{Arc, Mutex, PoisonError};

use phalanx_kernels::BinaryOp;

use crate::device::{Stream, Work};
use crate::gpu::Gpu;
use crate::kernels;
use crate::libraries::Library;
use crate::memory::{Kind, Slice, counted_as, issue_repeatable};
use crate::{ElementType, GpuError, Result};

/// The maximum workspace of an algorithm in bytes, as NVIDIA recommends for its larger GPUs.
const WORKSPACE: usize = 32 << 20;

/// The name in messages.
const NAME: &str = "matmul";

/// A factor of a product, plain or transposed.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    /// The elements of all matrices, row-major and contiguous.
    pub slice: &'a Slice,
    /// True if each matrix is transposed.
    pub transposed: bool,
}

impl<'a> Matrix<'a> {
    /// Returns plain matrices.
    pub fn plain(slice: &'a Slice) -> Self {
        Self { slice, transposed: false }
    }

    /// Returns transposed matrices.
    pub fn transposed(slice: &'a Slice) -> Self {
        Self { slice, transposed: true }
    }
}

/// A batch of products of m×k and k×n matrices.
#[derive(Debug, Clone, Copy)]
pub struct Product<'a> {
    /// `[batch, m, n, k]`.
    pub sizes: [usize; 4],
    /// The left factors.
    pub a: Matrix<'a>,
    /// The right factors, of the same type.
    pub b: Matrix<'a>,
    /// The products, of the factors' type, or f32 for 16-bit factors.
    pub to: &'a Slice,
    /// Add to the previous values of `to`.
    pub add: bool,
    /// `n` elements of the type of `to`, added to each row.
    pub bias: Option<&'a Slice>,
    /// Round f32 factors to 10 bits of mantissa (TF32), for tensor cores.
    pub tf32: bool,
}

/// The key of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    sizes: [usize; 4],
    transposed: [bool; 2],
    factors: ElementType,
    to: ElementType,
    add: bool,
    bias: bool,
    tf32: bool,
    /// The alignment of a, b and the result in bytes, up to 256.
    alignment: [u32; 3],
}

/// Matrix products on a GPU's compute stream.
#[derive(Debug)]
pub struct Blas {
    // Dropped before the handle that made them.
    plans: Mutex<HashMap<Key, raw::Plan>>,
    handle: Arc<raw::Handle>,
    gpu: Gpu,
}

impl Blas {
    /// Opens cuBLASLt for a GPU.
    ///
    /// # Errors
    /// [`GpuError::MissingLibrary`] if cuBLASLt is not installed; [`GpuError::Capture`] while a graph is captured.
    pub fn new(gpu: &Gpu) -> Result<Self> {
        gpu.device().first_use("opening cuBLASLt")?;
        Library::CublasLt.require()?;
        Ok(Self { plans: Mutex::default(), handle: Arc::new(raw::Handle::new(gpu)?), gpu: gpu.clone() })
    }

    /// Computes products. Sums are in f32, for f64 factors in f64.
    ///
    /// # Errors
    /// [`GpuError::Argument`] if lengths or types do not match; [`GpuError::Unsupported`] for types that cuBLASLt does not
    /// multiply, and for a bias of f64; [`GpuError::Capture`] if a graph is captured and it is the first product of its sizes.
    pub fn matmul(&self, product: &Product<'_>) -> Result<()> {
        check(product)?;
        let [batch, m, n, k] = product.sizes;
        if batch == 0 || m == 0 || n == 0 {
            return Ok(());
        }
        if k == 0 {
            return self.without_terms(product);
        }
        let factors = product.a.slice.dtype();
        let key = Key {
            sizes: product.sizes,
            transposed: [product.a.transposed, product.b.transposed],
            factors,
            to: product.to.dtype(),
            add: product.add,
            bias: product.bias.is_some(),
            tf32: factors == ElementType::F32 && product.tf32,
            // An epilogue reads the bias as it writes the result.
            alignment: [
                alignment(product.a.slice),
                alignment(product.b.slice),
                alignment(product.to).min(product.bias.map_or(u32::MAX, alignment)),
            ],
        };
        let device = self.gpu.device();
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = match plans.entry(key) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                device.first_use(&format!("a product of {:?}", product.sizes))?;
                new.insert(self.handle.plan(&key, WORKSPACE)?)
            }
        };
        let bytes = plan.workspace();
        let workspace = (bytes > 0)
            .then(|| counted_as(Kind::Workspace, || self.gpu.unwritten(ElementType::U8, bytes)))
            .transpose()?;
        let slices = [
            Some(product.a.slice),
            Some(product.b.slice),
            Some(product.to),
            product.bias,
            workspace.as_ref(),
        ];
        let slices: Vec<&Slice> = slices.into_iter().flatten().collect();
        let what = |hasher: &mut DefaultHasher| (key, Arc::as_ptr(&self.handle)).hash(hasher);
        issue_repeatable(device, NAME, &slices, &Work::Fixed(&what), |stream| {
            self.handle.run(plan, product, workspace.as_ref(), stream)
        })?;
        device.keep_for_graph(&self.handle);
        Ok(())
    }

    /// Computes products with k = 0: zeros plus the bias.
    fn without_terms(&self, product: &Product<'_>) -> Result<()> {
        let (to, [batch, m, n, _]) = (product.to, product.sizes);
        if !product.add {
            to.zero_on(Stream::Compute)?;
        }
        let Some(bias) = product.bias else { return Ok(()) };
        let sums =
            kernels::binary(&self.gpu, BinaryOp::Add, (to, &[batch * m, n]), (bias, &[n]), to.dtype())?;
        to.copy_from_on(&sums, Stream::Compute)
    }
}

/// Returns the alignment of an address in bytes, up to 256.
fn alignment(slice: &Slice) -> u32 {
    1 << slice.address().trailing_zeros().min(8)
}

fn check(product: &Product<'_>) -> Result<()> {
    let Product { sizes: [batch, m, n, k], a, b, to, bias, .. } = *product;
    let factors = a.slice.dtype();
    let multiplied = match factors {
        ElementType::F32 | ElementType::F64 => to.dtype() == factors,
        ElementType::Bf16 | ElementType::F16 => to.dtype() == factors || to.dtype() == ElementType::F32,
        _ => false,
    };
    if !multiplied || b.slice.dtype() != factors {
        let what = format!("factors of {factors} and {}, products of {}", b.slice.dtype(), to.dtype());
        return Err(GpuError::unsupported(NAME, what));
    }
    if bias.is_some() && factors == ElementType::F64 {
        return Err(GpuError::unsupported(NAME, "a bias of f64"));
    }
    let lengths = [
        ("left factors", a.slice.len(), batch * m * k),
        ("right factors", b.slice.len(), batch * k * n),
        ("products", to.len(), batch * m * n),
        ("bias", bias.map_or(n, Slice::len), n),
    ];
    if let Some((what, found, right)) = lengths.into_iter().find(|(_, found, right)| found != right) {
        let problem = format!("{found} elements of {what}; sizes {:?} need {right}", product.sizes);
        return Err(GpuError::argument(NAME, problem));
    }
    if let Some(bias) = bias.filter(|bias| bias.dtype() != to.dtype()) {
        let problem = format!("a bias of {} for products of {}", bias.dtype(), to.dtype());
        return Err(GpuError::argument(NAME, problem));
    }
    Ok(())
}

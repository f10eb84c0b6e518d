//! Elements of 16 bits: widened to f32 for arithmetic, rounded for storage.

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Shape, Storage, Tensor};
use phalanx_kernels::{
    Context, Half, Matrix, Products, RoundedFactor, add_half, bf16, f16, narrow_half, round_half,
    round_half_to, widen_half,
};

use super::{AnyBits, Contiguous, Elements, Scalar, tensor_from, unwritten};
use crate::precision::Precision;
use crate::{ArrayError, Result};

/// True for element types that are stored but not computed in.
pub(crate) fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::BF16 | DType::F16)
}

/// The type of the arithmetic for elements of type `dtype`.
pub fn wide(dtype: DType) -> DType {
    if is_half(dtype) { DType::F32 } else { dtype }
}

/// Widens elements to f32.
pub(super) fn widened<L: Half>(context: &Context, values: &[L]) -> Result<Vec<f32>> {
    let mut wide = unwritten::<f32>(values.len());
    widen_half(context, values, &mut wide)?;
    Ok(wide)
}

fn narrowed<L: Half + AnyBits>(context: &Context, values: &[f32]) -> Result<Vec<L>> {
    let mut low = unwritten::<L>(values.len());
    narrow_half(context, values, &mut low)?;
    Ok(low)
}

/// Makes a CPU tensor of computed elements, stored as `dtype`: rounded if that has 16 bits, else of their own type.
pub(crate) fn stored<T: Scalar>(
    context: &Context,
    values: Vec<T>,
    shape: impl Into<Shape>,
    dtype: DType,
) -> Result<Tensor> {
    match (dtype, T::singles(&values)) {
        (DType::BF16, Some(wide)) => {
            Ok(Tensor::from_vec(narrowed::<bf16>(context, wide)?, shape.into(), &Device::Cpu)?)
        }
        (DType::F16, Some(wide)) => {
            Ok(Tensor::from_vec(narrowed::<f16>(context, wide)?, shape.into(), &Device::Cpu)?)
        }
        _ => tensor_from(values, shape),
    }
}

/// Converts the elements to `dtype`; returns the tensor itself if it has that type.
pub fn cast(context: &Context, tensor: &Tensor, dtype: DType) -> Result<Tensor> {
    const OP: &str = "convert";
    if tensor.dtype() == dtype {
        return Ok(tensor.clone());
    }
    let between = |dtype: DType| is_half(dtype) || dtype == DType::F32;
    if !tensor.device().is_cpu() || !between(dtype) || !between(tensor.dtype()) {
        return Ok(tensor.to_dtype(dtype)?);
    }
    let tensor = tensor.contiguous()?;
    let read = Contiguous::by(OP, context, &tensor)?;
    let shape = tensor.shape().clone();
    match read.elements {
        Elements::Wide(values) => stored(context, values, shape, dtype),
        Elements::Locked { .. } => {
            let values = read.slice::<f32>()?;
            match dtype {
                DType::BF16 => Ok(Tensor::from_vec(narrowed::<bf16>(context, values)?, shape, &Device::Cpu)?),
                _ => Ok(Tensor::from_vec(narrowed::<f16>(context, values)?, shape, &Device::Cpu)?),
            }
        }
    }
}

/// Returns both operands of an elementwise op in the type of the arithmetic, and the type of the stored result. Where
/// a low type meets f32, the result is of the low type: it is an activation, and stays one when a parameter is added.
pub(crate) fn meet(
    context: &Context,
    op: &'static str,
    a: &Tensor,
    b: &Tensor,
) -> Result<(Tensor, Tensor, DType)> {
    let dtype = met(op, a.dtype(), b.dtype())?;
    if !is_half(dtype) {
        return Ok((a.clone(), b.clone(), dtype));
    }
    Ok((cast(context, a, DType::F32)?, cast(context, b, DType::F32)?, dtype))
}

/// Returns the type of the stored result of an elementwise op, as [`meet`] does.
pub(crate) fn met(op: &'static str, of_a: DType, of_b: DType) -> Result<DType> {
    let low = match (is_half(of_a), is_half(of_b)) {
        (false, false) => return Ok(of_a),
        (true, _) => of_a,
        (false, true) => of_b,
    };
    if [of_a, of_b].iter().any(|dtype| *dtype != low && *dtype != DType::F32) {
        return Err(ArrayError::shape(op, format!("element types {of_a:?} and {of_b:?} do not match")));
    }
    Ok(low)
}

/// Reads an operand of a product in the type of the arithmetic, rounded to the type that `precision` multiplies.
/// `tensor` must be contiguous.
pub(crate) fn operand<'a>(
    op: &'static str,
    context: &Context,
    precision: Precision,
    tensor: &'a Tensor,
) -> Result<Contiguous<'a>> {
    let read = Contiguous::by(op, context, tensor)?;
    let dtype = tensor.dtype();
    if matches!(precision, Precision::F32 | Precision::Tf32) || dtype == DType::F64 {
        return Ok(read);
    }
    if precision == Precision::F16 && context.products() != Products::F32 {
        let what =
            "f16 in a context that rounds products' operands to bf16; its products must be Products::F32";
        return Err(ArrayError::Unsupported { op, what: what.into() });
    }
    if dtype == precision.dtype() {
        return Ok(read);
    }
    let is_bf16 = precision == Precision::Bf16;
    let values = match read.elements {
        Elements::Wide(mut values) if is_bf16 => {
            round_half::<bf16>(context, &mut values);
            values
        }
        Elements::Wide(mut values) => {
            round_half::<f16>(context, &mut values);
            values
        }
        Elements::Locked { .. } => {
            let from = read.slice::<f32>()?;
            let mut values = unwritten::<f32>(from.len());
            match is_bf16 {
                true => round_half_to::<bf16>(context, from, &mut values)?,
                false => round_half_to::<f16>(context, from, &mut values)?,
            }
            values
        }
    };
    Ok(Contiguous { op, elements: Elements::Wide(values) })
}

/// A factor of a product of bf16 numbers, locked as it is stored: the product rounds it.
pub(crate) struct RoundedOperand<'a>(Contiguous<'a>);

impl<'a> RoundedOperand<'a> {
    /// Locks a contiguous tensor; `None` if products of its type in `precision` are of other numbers.
    pub(crate) fn of(
        op: &'static str,
        context: &Context,
        precision: Precision,
        tensor: &'a Tensor,
    ) -> Result<Option<Self>> {
        match (precision, tensor.dtype()) {
            (Precision::Bf16, DType::F32 | DType::BF16) => Ok(Some(Self(Contiguous::locked(op, tensor)?))),
            (Precision::Bf16, DType::F16) => Ok(Some(Self(operand(op, context, precision, tensor)?))),
            _ => Ok(None),
        }
    }

    /// Returns the matrices; see [`Matrix::batched`].
    pub(crate) fn factor(&self, rows: usize, cols: usize, transposed: bool) -> Result<RoundedFactor<'_>> {
        if let Elements::Locked { storage, range } = &self.0.elements
            && let Storage::Cpu(CpuStorage::BF16(values)) = &**storage
        {
            let of = Matrix::batched(&values[range.clone()], rows, cols, transposed);
            return Ok(RoundedFactor::Bf16(of));
        }
        Ok(RoundedFactor::F32(Matrix::batched(self.0.slice::<f32>()?, rows, cols, transposed)))
    }
}

/// Reads a contiguous tensor of bf16 as it is stored.
pub(crate) fn with_bf16_slice<R>(
    op: &'static str,
    tensor: &Tensor,
    read: impl FnOnce(&[bf16]) -> Result<R>,
) -> Result<R> {
    let (storage, layout) = tensor.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(CpuStorage::BF16(values)), Some((start, end))) => read(&values[start..end]),
        _ => Err(ArrayError::shape(op, "expected a contiguous tensor of bf16 on the CPU")),
    }
}

/// Computes `accumulator += addend` for an accumulator of 16 bits.
pub(super) fn add_in_place(
    context: &Context,
    op: &'static str,
    accumulator: &Tensor,
    addend: &Tensor,
) -> Result<()> {
    struct Add<'a>(&'static str, &'a Context, &'a CpuStorage, std::ops::Range<usize>);

    impl InplaceOp1 for Add<'_> {
        fn name(&self) -> &'static str {
            self.0
        }
        fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
            let Some((start, end)) = layout.contiguous_offsets() else {
                candle_core::bail!("{}: expected a contiguous tensor", self.0)
            };
            let from = self.3.clone();
            match (storage, self.2) {
                (CpuStorage::BF16(to), CpuStorage::BF16(addend)) => {
                    add_half(self.1, &addend[from], &mut to[start..end])
                }
                (CpuStorage::F16(to), CpuStorage::F16(addend)) => {
                    add_half(self.1, &addend[from], &mut to[start..end])
                }
                _ => candle_core::bail!("{}: element types differ", self.0),
            }
            .map_err(candle_core::Error::wrap)
        }
    }

    let addend = cast(context, addend, accumulator.dtype())?.contiguous()?;
    let (storage, layout) = addend.storage_and_layout();
    match (&*storage, layout.contiguous_offsets()) {
        (Storage::Cpu(cpu), Some((start, end))) => {
            Ok(accumulator.inplace_op1(&Add(op, context, cpu, start..end))?)
        }
        _ => Err(super::unsupported_device(op, addend.device())),
    }
}

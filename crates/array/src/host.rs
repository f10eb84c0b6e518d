//! Access to a flat tensor's host memory, for reductions in place.

use candle_core::{CpuStorage, DType, Storage, Tensor};

use crate::storage::with_slice_mut;
use crate::{ArrayError, Result};

/// The elements of a contiguous CPU tensor.
#[derive(Debug)]
pub enum HostSliceMut<'a> {
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// 64-bit floats.
    F64(&'a mut [f64]),
}

/// Runs `f` on the elements of a contiguous CPU tensor under its write lock. Every view of its storage sees the
/// change.
///
/// # Errors
/// If the tensor is not contiguous, not on the CPU, or of another element type.
pub fn with_host_slice_mut<R>(tensor: &Tensor, f: impl FnOnce(HostSliceMut<'_>) -> R) -> Result<R> {
    const OP: &str = "host access";
    match tensor.dtype() {
        DType::F32 => with_slice_mut::<f32, _>(OP, tensor, |values| Ok(f(HostSliceMut::F32(values)))),
        DType::F64 => with_slice_mut::<f64, _>(OP, tensor, |values| Ok(f(HostSliceMut::F64(values)))),
        other => Err(ArrayError::dtype(OP, other)),
    }
}

/// Runs `f` on the bytes of a contiguous CPU tensor's elements, in this machine's byte order, under its read lock.
///
/// # Errors
/// If the tensor is not contiguous, not on the CPU, or of another element type than f32, f64, bf16, f16 and i64.
pub fn with_host_bytes<R>(tensor: &Tensor, f: impl FnOnce(&[u8]) -> R) -> Result<R> {
    const OP: &str = "host bytes";
    let (storage, layout) = tensor.storage_and_layout();
    let Some((start, end)) = layout.contiguous_offsets() else {
        return Err(ArrayError::shape(OP, "expected a contiguous tensor"));
    };
    match &*storage {
        Storage::Cpu(CpuStorage::F32(values)) => Ok(f(bytemuck::cast_slice(&values[start..end]))),
        Storage::Cpu(CpuStorage::F64(values)) => Ok(f(bytemuck::cast_slice(&values[start..end]))),
        Storage::Cpu(CpuStorage::BF16(values)) => Ok(f(bytemuck::cast_slice(&values[start..end]))),
        Storage::Cpu(CpuStorage::F16(values)) => Ok(f(bytemuck::cast_slice(&values[start..end]))),
        Storage::Cpu(CpuStorage::I64(values)) => Ok(f(bytemuck::cast_slice(&values[start..end]))),
        Storage::Cpu(_) => Err(ArrayError::dtype(OP, tensor.dtype())),
        _ => Err(ArrayError::NotOnHost { op: OP, backend: "candle" }),
    }
}

/// Allocates a flat CPU tensor of `len` elements of unspecified value. The caller must write every element before
/// reading one. This saves filling with zeros.
///
/// # Errors
/// If the element type is not f32 or f64.
pub fn unwritten_flat(len: usize, dtype: DType) -> Result<Tensor> {
    crate::storage::dispatch!("unwritten memory", dtype, T => {
        crate::storage::tensor_from(crate::storage::unwritten::<T>(len), len)
    })
}

/// Copies the elements of one CPU tensor into a contiguous one of the same length. Every view of its storage sees
/// them.
///
/// # Errors
/// If the numbers of elements or the types differ, or either is not on the CPU.
pub fn copy_host(target: &Tensor, source: &Tensor) -> Result<()> {
    crate::storage::copy_in_place(target, source)
}

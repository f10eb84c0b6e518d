//! Access to candle's CPU storage as plain slices, without copies where the elements have the type of the arithmetic.
//!
//! The kernels work on slices; candle tensors own their elements behind a lock. [`Contiguous`] holds the read lock as
//! long as a kernel needs the slice. [`with_slice_mut`] runs a closure under the write lock. A tensor on another
//! device is an error, never a hidden transfer.

use std::cell::RefCell;

use candle_core::{CpuStorage, DType, Device, InplaceOp1, Layout, Storage, StorageRef, Tensor, WithDType};
use phalanx_kernels::Context;

use half::widened;

pub use half::{cast, wide};

pub(crate) use half::{RoundedOperand, is_half, meet, met, operand, stored, with_bf16_slice};
pub(crate) use rows::{Output, RowKernel, SummingRowKernel, by_rows, by_rows_with_sums};
pub(crate) use unwritten::{AnyBits, unwritten};

use crate::{ArrayError, Result};

mod half;
mod rows;
mod unwritten;

/// An element type that the CPU kernels and the tape compute in.
pub(crate) trait Scalar: phalanx_kernels::Float + WithDType + AnyBits {
    /// The elements, if the storage is of this type.
    fn of(storage: &CpuStorage) -> Option<&[Self]>;
    /// The elements for writing, if the storage is of this type.
    fn of_mut(storage: &mut CpuStorage) -> Option<&mut [Self]>;
    /// The slice, if this type is f32.
    fn of_singles(values: &[f32]) -> Option<&[Self]>;
}

macro_rules! scalar {
    ($type:ty, $variant:ident, $of_singles:expr) => {
        impl Scalar for $type {
            fn of(storage: &CpuStorage) -> Option<&[Self]> {
                match storage {
                    CpuStorage::$variant(values) => Some(values),
                    _ => None,
                }
            }
            fn of_mut(storage: &mut CpuStorage) -> Option<&mut [Self]> {
                match storage {
                    CpuStorage::$variant(values) => Some(values),
                    _ => None,
                }
            }
            fn of_singles(values: &[f32]) -> Option<&[Self]> {
                $of_singles(values)
            }
        }
    };
}
scalar!(f32, F32, Some);
scalar!(f64, F64, |_| None);

/// Runs `$body` with `$t` as the type of the arithmetic for elements of `$dtype`: f32 for those of 16 bits. Other
/// types are an error of `$op`.
macro_rules! dispatch {
    ($op:expr, $dtype:expr, $t:ident => $body:expr) => {
        match $dtype {
            candle_core::DType::F32 | candle_core::DType::BF16 | candle_core::DType::F16 => {
                type $t = f32;
                $body
            }
            candle_core::DType::F64 => {
                type $t = f64;
                $body
            }
            other => Err($crate::ArrayError::dtype($op, other)),
        }
    };
}
pub(crate) use dispatch;

/// A contiguous CPU tensor's elements: under its read lock, or widened to f32 if they have 16 bits.
pub(crate) struct Contiguous<'a> {
    op: &'static str,
    elements: Elements<'a>,
}

enum Elements<'a> {
    Locked { storage: StorageRef<'a>, range: std::ops::Range<usize> },
    Wide(Vec<f32>),
}

impl<'a> Contiguous<'a> {
    /// Locks `tensor` for reading, or widens it on the context's threads. The tensor must be contiguous and on the
    /// CPU.
    pub(crate) fn by(op: &'static str, context: &Context, tensor: &'a Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        let Some((start, end)) = layout.contiguous_offsets() else {
            return Err(ArrayError::shape(op, "expected a contiguous tensor"));
        };
        let Storage::Cpu(cpu) = &*storage else {
            return Err(unsupported_device(op, tensor.device()));
        };
        let elements = match cpu {
            CpuStorage::BF16(values) => Elements::Wide(widened(context, &values[start..end])?),
            CpuStorage::F16(values) => Elements::Wide(widened(context, &values[start..end])?),
            _ => Elements::Locked { storage, range: start..end },
        };
        Ok(Self { op, elements })
    }

    /// Locks a tensor of elements without 16 bits for reading: buckets, buffers, and their addends.
    pub(crate) fn locked(op: &'static str, tensor: &'a Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        match (&*storage, layout.contiguous_offsets()) {
            (_, None) => Err(ArrayError::shape(op, "expected a contiguous tensor")),
            (Storage::Cpu(_), Some((start, end))) => {
                Ok(Self { op, elements: Elements::Locked { storage, range: start..end } })
            }
            _ => Err(unsupported_device(op, tensor.device())),
        }
    }

    /// The elements.
    pub(crate) fn slice<T: Scalar>(&self) -> Result<&[T]> {
        match &self.elements {
            Elements::Wide(values) => T::of_singles(values).ok_or(DType::F32),
            Elements::Locked { storage, range } => match &**storage {
                Storage::Cpu(cpu) => T::of(cpu).map(|values| &values[range.clone()]).ok_or(storage.dtype()),
                _ => return Err(ArrayError::Unsupported { op: self.op, what: "this device".into() }),
            },
        }
        .map_err(|dtype| ArrayError::dtype(self.op, dtype))
    }
}

/// A contiguous CPU tensor's elements of exactly type `I` under its read lock: indices, masks.
pub(crate) struct TypedElements<'a, I> {
    op: &'static str,
    storage: StorageRef<'a>,
    range: std::ops::Range<usize>,
    elements: std::marker::PhantomData<I>,
}

/// Indices of rows, classes, maxima.
pub(crate) type Indices<'a> = TypedElements<'a, u32>;

/// A mask.
pub(crate) type Bytes<'a> = TypedElements<'a, u8>;

impl<'a, I: WithDType> TypedElements<'a, I> {
    /// Locks `tensor` for reading.
    pub(crate) fn of(op: &'static str, tensor: &'a Tensor) -> Result<Self> {
        let (storage, layout) = tensor.storage_and_layout();
        let Some((start, end)) = layout.contiguous_offsets() else {
            return Err(ArrayError::shape(op, "expected a contiguous tensor"));
        };
        Ok(Self { op, storage, range: start..end, elements: std::marker::PhantomData })
    }

    /// The elements.
    pub(crate) fn slice(&self) -> Result<&[I]> {
        match &*self.storage {
            Storage::Cpu(cpu) => match I::cpu_storage_as_slice(cpu) {
                Ok(values) => Ok(&values[self.range.clone()]),
                Err(_) => Err(ArrayError::dtype(self.op, self.storage.dtype())),
            },
            _ => Err(ArrayError::Unsupported { op: self.op, what: "this device".into() }),
        }
    }
}

/// Returns the error for a device without an implementation of `op`.
pub(crate) fn unsupported_device(op: &'static str, device: &Device) -> ArrayError {
    ArrayError::Unsupported { op, what: format!("device {:?}", device.location()) }
}

/// Runs `f` on the elements of a contiguous CPU tensor under its write lock.
///
/// Every view of the same storage sees the change. Do not hold a [`Contiguous`] of the same storage.
pub(crate) fn with_slice_mut<T: Scalar, R>(
    op: &'static str,
    tensor: &Tensor,
    f: impl FnOnce(&mut [T]) -> Result<R>,
) -> Result<R> {
    struct Run<F, R>(&'static str, RefCell<(Option<F>, Option<Result<R>>)>, std::marker::PhantomData<()>);

    struct SliceOp<'r, T, F, R>(&'r Run<F, R>, std::marker::PhantomData<T>);

    impl<T: Scalar, R, F: FnOnce(&mut [T]) -> Result<R>> InplaceOp1 for SliceOp<'_, T, F, R> {
        fn name(&self) -> &'static str {
            self.0.0
        }
        fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
            let mut slot = self.0.1.borrow_mut();
            let run = slot.0.take();
            slot.1 = Some(match (layout.contiguous_offsets(), T::of_mut(storage), run) {
                (Some((start, end)), Some(values), Some(run)) => run(&mut values[start..end]),
                (None, ..) => Err(ArrayError::shape(self.0.0, "expected a contiguous tensor")),
                _ => Err(ArrayError::dtype(self.0.0, T::DTYPE)),
            });
            Ok(())
        }
    }

    if !tensor.device().is_cpu() {
        return Err(unsupported_device(op, tensor.device()));
    }
    let run = Run(op, RefCell::new((Some(f), None)), std::marker::PhantomData);
    tensor.inplace_op1(&SliceOp::<T, _, R>(&run, std::marker::PhantomData))?;
    run.1
        .into_inner()
        .1
        .unwrap_or_else(|| Err(ArrayError::shape(op, "candle did not run the in-place operation")))
}

/// Makes a CPU tensor of the elements, without a copy.
pub(crate) fn tensor_from<T: Scalar>(values: Vec<T>, shape: impl Into<candle_core::Shape>) -> Result<Tensor> {
    Ok(Tensor::from_vec(values, shape.into(), &Device::Cpu)?)
}

const ADD: &str = "accumulate gradient";

/// Computes `accumulator += addend`, in place. Both must have equally many elements of the same type.
pub(crate) fn add_in_place(accumulator: &Tensor, addend: &Tensor) -> Result<()> {
    if accumulator.elem_count() != addend.elem_count() {
        return Err(ArrayError::unequal(ADD, accumulator.shape(), addend.shape()));
    }
    let addend = addend.contiguous()?;
    let addend = Contiguous::locked(ADD, &addend)?;
    dispatch!(ADD, accumulator.dtype(), T => {
        let from = addend.slice::<T>()?;
        with_slice_mut::<T, _>(ADD, accumulator, |to| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
            Ok(())
        })
    })
}

/// Computes `accumulator += addend`, in place, for elements of any type. Those of 16 bits are added in f32, and each
/// sum is rounded once.
pub(crate) fn accumulate(context: &Context, accumulator: &Tensor, addend: &Tensor) -> Result<()> {
    if is_half(accumulator.dtype()) && accumulator.elem_count() == addend.elem_count() {
        return half::add_in_place(context, ADD, accumulator, addend);
    }
    add_in_place(accumulator, addend)
}

/// Sets every element to zero, in place.
pub(crate) fn zero_in_place(tensor: &Tensor) -> Result<()> {
    const OP: &str = "zero";
    dispatch!(OP, tensor.dtype(), T => with_slice_mut::<T, _>(OP, tensor, |values| {
        values.fill(T::default());
        Ok(())
    }))
}

/// Copies `source`'s elements into `target`, converting the element type if needed.
pub(crate) fn copy_in_place(target: &Tensor, source: &Tensor) -> Result<()> {
    const OP: &str = "copy";
    if target.elem_count() != source.elem_count() {
        return Err(ArrayError::unequal(OP, target.shape(), source.shape()));
    }
    let source = source.to_device(&Device::Cpu)?.to_dtype(target.dtype())?.contiguous()?;
    let source = Contiguous::locked(OP, &source)?;
    dispatch!(OP, target.dtype(), T => {
        let from = source.slice::<T>()?;
        with_slice_mut::<T, _>(OP, target, |to| {
            to.copy_from_slice(from);
            Ok(())
        })
    })
}

/// Returns the size of `count` elements of `dtype` in bytes.
pub(crate) fn bytes_of(count: usize, dtype: DType) -> usize {
    count * dtype.size_in_bytes()
}

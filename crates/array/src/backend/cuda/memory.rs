//! A GPU's memory.

use std::sync::PoisonError;

use candle_core::{DType, Device, Shape, Tensor};
use half::{bf16, f16};
use phalanx_cuda::memory::Pinned;
use phalanx_cuda::{Element, ElementType, Gpu, GpuError, Slice, Stream, kernels};

use super::array::Order;
use super::{Cuda, element_type};
use crate::backend::{Array, Download, Memory, Transfers, Upload};
use crate::storage::TypedElements;
use crate::{ArrayError, Result};

/// The minimum length of page-locked memory: a page.
const SMALLEST: usize = 1024;

impl Cuda {
    fn download<T: Element + candle_core::WithDType>(&self, slice: &Slice, shape: &Shape) -> Result<Tensor> {
        Ok(Tensor::from_vec(self.gpu().download::<T>(slice)?, shape.clone(), &Device::Cpu)?)
    }

    fn upload<T: Element + candle_core::WithDType>(&self, tensor: &Tensor) -> Result<Array> {
        let read = TypedElements::<T>::of("copy to a GPU", tensor)?;
        Ok(self.array(self.gpu().upload(read.slice()?)?, tensor.shape().clone()))
    }
}

impl Cuda {
    /// Returns page-locked memory for at least `len` numbers. Reuses memory if possible, because allocating it stops
    /// the device.
    fn page_locked(&self, len: usize) -> Result<Pinned<f32>> {
        let mut kept = self.0.page_locked.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = kept.iter().position(|memory| memory.values().len() >= len);
        match fits {
            Some(at) => Ok(kept.remove(at)),
            None => Ok(Pinned::new(self.gpu().device(), len.next_power_of_two().max(SMALLEST))?),
        }
    }

    /// Begins to copy the numbers of a slice to the host on a stream.
    fn arriving(&self, numbers: &Slice, shape: &Shape, stream: Stream) -> Result<Download> {
        let coming = self.page_locked(numbers.len())?.download_from(numbers, stream)?;
        let (this, shape) = (self.clone(), shape.clone());
        Ok(Download::pending(move || {
            let memory = coming.finish()?;
            let numbers = memory.values()[..shape.elem_count()].to_vec();
            this.keep_page_locked(memory);
            Ok(Tensor::from_vec(numbers, shape, &Device::Cpu)?)
        }))
    }

    /// Keeps page-locked memory for reuse, sorted by size, so that scalars do not take the memory of logits.
    fn keep_page_locked(&self, memory: Pinned<f32>) {
        let mut kept = self.0.page_locked.lock().unwrap_or_else(PoisonError::into_inner);
        let place = kept.partition_point(|other| other.values().len() <= memory.values().len());
        kept.insert(place, memory);
    }
}

impl Cuda {
    /// Writes the elements of an array to all copies of a target by `write`, which gets the source first.
    fn write_to(
        &self,
        op: &'static str,
        to: &Array,
        from: &Array,
        write: impl Fn(&Gpu, &Slice, &Slice) -> Result<(), GpuError>,
    ) -> Result<()> {
        let target = self.open(op, to)?;
        match target.physical() {
            (slice, Order::RowMajor) => Ok(write(self.gpu(), self.slice(op, from)?, slice)?),
            (slice, Order::ChannelsLast) if from.rank() == 4 => {
                write(self.gpu(), &self.last(op, from)?, slice)?;
                match target.copy_in_rows() {
                    Some(rows) => Ok(write(self.gpu(), self.slice(op, from)?, rows)?),
                    None => Ok(()),
                }
            }
            (_, Order::ChannelsLast) => Err(ArrayError::unequal(op, to.shape(), from.shape())),
        }
    }
}

impl Transfers for Cuda {
    fn to_host(&self, array: &Array) -> Result<Tensor> {
        let slice = self.slice("copy to the host", array)?;
        let shape = array.shape();
        match slice.dtype() {
            ElementType::F32 => self.download::<f32>(slice, shape),
            ElementType::F64 => self.download::<f64>(slice, shape),
            ElementType::Bf16 => self.download::<bf16>(slice, shape),
            ElementType::F16 => self.download::<f16>(slice, shape),
            ElementType::U8 => self.download::<u8>(slice, shape),
            ElementType::U32 => self.download::<u32>(slice, shape),
            ElementType::I64 => self.download::<i64>(slice, shape),
        }
    }

    fn begin_snapshot(&self, array: &Array) -> Result<Download> {
        const OP: &str = "numbers for the host";
        let slice = self.slice(OP, array)?;
        let numbers = match slice.dtype() {
            ElementType::F32 => slice.clone(),
            ElementType::F64 | ElementType::Bf16 | ElementType::F16 => {
                kernels::convert(self.gpu(), slice, ElementType::F32)?
            }
            ElementType::U8 | ElementType::U32 | ElementType::I64 => {
                return Err(ArrayError::dtype(OP, array.dtype()));
            }
        };
        self.arriving(&numbers, array.shape(), Stream::Compute)
    }

    fn begin_download(&self, array: &Array) -> Result<Download> {
        const OP: &str = "move to the host";
        let slice = self.slice(OP, array)?;
        if slice.dtype() != ElementType::F32 {
            return Err(ArrayError::dtype(OP, array.dtype()));
        }
        self.gpu().device().wait(Stream::Copies, Stream::Compute)?;
        self.arriving(slice, array.shape(), Stream::Copies)
    }

    fn begin_upload(&self, to: &Array, elements: &Tensor) -> Result<Upload> {
        const OP: &str = "move in";
        let (slice, elements) = (self.slice(OP, to)?, &elements.contiguous()?);
        let event = match elements.dtype() {
            DType::F32 => self.gpu().upload_async(TypedElements::<f32>::of(OP, elements)?.slice()?, slice)?,
            DType::F64 => self.gpu().upload_async(TypedElements::<f64>::of(OP, elements)?.slice()?, slice)?,
            other => return Err(ArrayError::dtype(OP, other)),
        };
        Ok(Upload::pending(move || Ok(event.make_wait(Stream::Compute)?)))
    }

    fn from_host(&self, tensor: &Tensor) -> Result<Array> {
        let tensor = &tensor.contiguous()?;
        match tensor.dtype() {
            DType::F32 => self.upload::<f32>(tensor),
            DType::F64 => self.upload::<f64>(tensor),
            DType::BF16 => self.upload::<bf16>(tensor),
            DType::F16 => self.upload::<f16>(tensor),
            DType::U8 => self.upload::<u8>(tensor),
            DType::U32 => self.upload::<u32>(tensor),
            DType::I64 => self.upload::<i64>(tensor),
            other => Err(ArrayError::dtype("copy to a GPU", other)),
        }
    }
}

impl Memory for Cuda {
    fn unwritten(&self, shape: &Shape, dtype: DType) -> Result<Array> {
        let slice = self.gpu().unwritten(element_type("memory", dtype)?, shape.elem_count())?;
        Ok(self.array(slice, shape.clone()))
    }

    fn full(&self, value: f64, shape: &Shape, dtype: DType) -> Result<Array> {
        let slice = self.gpu().unwritten(element_type("full", dtype)?, shape.elem_count())?;
        kernels::fill(self.gpu(), &slice, value)?;
        Ok(self.array(slice, shape.clone()))
    }

    fn branch(&self, number: u64) -> Result<()> {
        Ok(self.gpu().branch(number)?)
    }

    fn zero(&self, to: &Array) -> Result<()> {
        let to = self.open("zero", to)?;
        to.physical().0.zero_on(Stream::Compute)?;
        to.copy_in_rows().map_or(Ok(()), |rows| Ok(rows.zero_on(Stream::Compute)?))
    }

    fn copy(&self, to: &Array, from: &Array) -> Result<()> {
        const OP: &str = "copy";
        if to.elem_count() != from.elem_count() {
            return Err(ArrayError::unequal(OP, to.shape(), from.shape()));
        }
        self.write_to(OP, to, from, kernels::convert_to)
    }

    fn accumulate(&self, to: &Array, addend: &Array) -> Result<()> {
        const OP: &str = "accumulate";
        if to.elem_count() != addend.elem_count() {
            return Err(ArrayError::unequal(OP, to.shape(), addend.shape()));
        }
        self.write_to(OP, to, addend, |gpu, from, to| kernels::accumulate(gpu, to, from))
    }

    fn cast(&self, array: &Array, dtype: DType) -> Result<Array> {
        const OP: &str = "convert";
        let from = self.open(OP, array)?.physical().0;
        let slice = kernels::convert(self.gpu(), from, element_type(OP, dtype)?)?;
        self.array_like(OP, array, slice)
    }

    fn duplicate(&self, array: &Array) -> Result<Array> {
        const OP: &str = "duplicate";
        let from = self.open(OP, array)?.physical().0;
        let to = self.gpu().unwritten(from.dtype(), from.len())?;
        to.copy_from_on(from, Stream::Compute)?;
        self.array_like(OP, array, to)
    }
}

//! The back end of NVIDIA GPUs: arrays in a GPU's memory, and the kernels and libraries of `phalanx-cuda`. One file a
//! family.
//!
//! Everything but codecs runs on the GPU's compute stream. Only [`Transfers::to_host`](super::Transfers::to_host)
//! waits.
//!
//! Elements are in row-major order, with one exception. Images from a convolution on tensor cores are channels-last,
//! in the order N, H, W, C, and norms, pooling and elementwise functions keep that order. A reader that needs
//! row-major order gets a copy, which is cached with the array.

mod array;
mod attention;
mod batch_norms;
mod codecs;
mod convolutions;
mod elementwise;
mod gated;
mod images;
mod layerwise;
mod lookups;
mod losses;
mod low_rank;
mod memory;
mod norms;
mod pooling;
mod products;
mod random;
mod rotary;
mod shapes;
mod updates;

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Shape};
use phalanx_cuda::blas::Blas;
use phalanx_cuda::dnn::Dnn;
use phalanx_cuda::memory::Pinned;
use phalanx_cuda::{ElementType, Gpu, GpuError, Options, Slice, TensorLayout};

pub use array::CudaArray;
use array::Order;
pub use phalanx_cuda::GraphReplay;
pub use phalanx_cuda::Options as CudaOptions;
pub use phalanx_cuda::memory::LibrarySlice;

use super::{Array, ArrayBackend, DeviceCodecs};
use crate::{ArrayError, Precision, Result};

/// The name for messages.
const NAME: &str = "a GPU";

/// A GPU as a back end. Clones are handles.
///
/// A model computes on it through a [`ComputeDevice`](super::ComputeDevice): `ComputeDevice::of(Arc::new(Cuda::new(0,
/// &Options::default())?))`.
#[derive(Debug, Clone)]
pub struct Cuda(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    blas: Blas,
    /// Opened at the first convolution: other networks need no cuDNN.
    dnn: Mutex<Option<Arc<Dnn>>>,
    /// Page-locked host memory for downloads, sorted by size.
    page_locked: Mutex<Vec<Pinned<f32>>>,
    gpu: Gpu,
}

impl Cuda {
    /// Opens GPU `index`, from 0.
    ///
    /// # Errors
    /// [`ArrayError::Gpu`] if there is no driver, no such GPU, or no cuBLASLt.
    pub fn new(index: usize, options: &Options) -> Result<Self> {
        let gpu = Gpu::new(index, options)?;
        Ok(Self(Arc::new(Inner {
            blas: Blas::new(&gpu)?,
            dnn: Mutex::default(),
            page_locked: Mutex::default(),
            gpu,
        })))
    }

    /// The GPU, with its streams and its memory accounts.
    pub fn gpu(&self) -> &Gpu {
        &self.0.gpu
    }

    fn blas(&self) -> &Blas {
        &self.0.blas
    }

    fn dnn(&self) -> Result<Arc<Dnn>> {
        let mut dnn = self.0.dnn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(dnn) = dnn.as_ref() {
            return Ok(dnn.clone());
        }
        let opened = Arc::new(Dnn::new(&self.0.gpu)?);
        *dnn = Some(opened.clone());
        Ok(opened)
    }

    /// Returns an array of this back end.
    fn open<'a>(&self, op: &'static str, array: &'a Array) -> Result<&'a CudaArray> {
        array.device(op, NAME)
    }

    /// Returns the elements of an array of this back end.
    fn slice<'a>(&self, op: &'static str, array: &'a Array) -> Result<&'a Slice> {
        self.open(op, array)?.slice()
    }

    /// Returns the elements of images in the order N, H, W, C.
    fn last(&self, op: &'static str, array: &Array) -> Result<Slice> {
        let array = self.open(op, array)?;
        match array.physical() {
            (slice, Order::ChannelsLast) => Ok(slice.clone()),
            (slice, Order::RowMajor) => {
                Ok(phalanx_cuda::kernels::permute(self.gpu(), slice, array.dims(), &[0, 2, 3, 1])?)
            }
        }
    }

    /// True if an array's elements are in the order N, H, W, C.
    fn is_last(&self, op: &'static str, array: &Array) -> Result<bool> {
        Ok(self.open(op, array)?.physical().1 == Order::ChannelsLast)
    }

    /// Returns the elements of images in memory order, and that order.
    fn laid(&self, op: &'static str, array: &Array) -> Result<(TensorLayout, Slice)> {
        match self.is_last(op, array)? {
            true => Ok((TensorLayout::ChannelsLast, self.last(op, array)?)),
            false => Ok((TensorLayout::ChannelsFirst, self.slice(op, array)?.clone())),
        }
    }

    /// Returns the elements of images in a given order.
    fn laid_as(&self, op: &'static str, layout: TensorLayout, array: &Array) -> Result<Slice> {
        match layout {
            TensorLayout::ChannelsLast => self.last(op, array),
            TensorLayout::ChannelsFirst => Ok(self.slice(op, array)?.clone()),
        }
    }

    fn last_if(&self, op: &'static str, array: Option<&Array>) -> Result<Option<Slice>> {
        array.map(|array| self.last(op, array)).transpose()
    }

    fn slice_if<'a>(&self, op: &'static str, array: Option<&'a Array>) -> Result<Option<&'a Slice>> {
        array.map(|array| self.slice(op, array)).transpose()
    }

    /// Makes an array of computed elements.
    fn array(&self, slice: Slice, shape: impl Into<Shape>) -> Array {
        Array::of_device(CudaArray::new(self.clone(), slice, shape.into()))
    }

    /// Makes an array of images from elements in the order N, H, W, C. The shape is still [N, C, H, W].
    fn array_last(&self, slice: Slice, shape: impl Into<Shape>) -> Array {
        Array::of_device(CudaArray::channels_last(self.clone(), slice, shape.into()))
    }

    /// Makes an array of images from elements in a given order. The shape is [N, C, H, W] in both.
    fn array_laid(&self, layout: TensorLayout, slice: Slice, shape: impl Into<Shape>) -> Array {
        match layout {
            TensorLayout::ChannelsLast => self.array_last(slice, shape),
            TensorLayout::ChannelsFirst => self.array(slice, shape),
        }
    }

    /// Makes an array like another one, in shape and order.
    fn array_like(&self, op: &'static str, like: &Array, slice: Slice) -> Result<Array> {
        match self.is_last(op, like)? {
            true => Ok(self.array_last(slice, like.shape().clone())),
            false => Ok(self.array(slice, like.shape().clone())),
        }
    }

    /// Returns an operand of a product: elements of the type that `precision` multiplies.
    fn operand(&self, op: &'static str, precision: Precision, array: &Array) -> Result<Slice> {
        let slice = self.slice(op, array)?;
        let dtype = match slice.dtype() {
            ElementType::F64 => ElementType::F64,
            _ => element_type(op, precision.dtype())?,
        };
        Ok(phalanx_cuda::kernels::convert(self.gpu(), slice, dtype)?)
    }
}

impl ArrayBackend for Cuda {
    fn name(&self) -> &'static str {
        NAME
    }

    fn codecs(&self) -> Option<&dyn DeviceCodecs> {
        Some(self)
    }
}

/// Converts candle's element type to the GPU's.
fn element_type(op: &'static str, dtype: DType) -> Result<ElementType> {
    match dtype {
        DType::F32 => Ok(ElementType::F32),
        DType::F64 => Ok(ElementType::F64),
        DType::BF16 => Ok(ElementType::Bf16),
        DType::F16 => Ok(ElementType::F16),
        DType::U8 => Ok(ElementType::U8),
        DType::U32 => Ok(ElementType::U32),
        DType::I64 => Ok(ElementType::I64),
        other => Err(ArrayError::dtype(op, other)),
    }
}

/// Converts the GPU's element type to candle's.
fn dtype_of(dtype: ElementType) -> DType {
    match dtype {
        ElementType::F32 => DType::F32,
        ElementType::F64 => DType::F64,
        ElementType::Bf16 => DType::BF16,
        ElementType::F16 => DType::F16,
        ElementType::U8 => DType::U8,
        ElementType::U32 => DType::U32,
        ElementType::I64 => DType::I64,
    }
}

/// Returns the error for sizes that a GPU's library does not support.
fn argument(function: &'static str, problem: String) -> ArrayError {
    GpuError::argument(function, problem).into()
}

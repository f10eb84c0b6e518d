//! The back end of NVIDIA GPUs: arrays in the memory of one, and the kernels and libraries of `phalanx-cuda`. A file a family.
//!
//! Everything but codecs is issued on the GPU's computing stream and nothing waits but [`Memory::to_host`](super::Memory::to_host).
//!
//! Elements lie in row-major order, but those of images that a convolution by tensor cores made: they lie channels-last, in the
//! order N, H, W, C, and so does what norms, pooling and elementwise functions make of them. Whoever needs them in row-major
//! order gets a copy, which is kept with the array.

mod array;
mod batch_norms;
mod codecs;
mod convolutions;
mod elementwise;
mod images;
mod lookups;
mod losses;
mod low_rank;
mod memory;
mod norms;
mod pooling;
mod products;
mod random;
mod shapes;
mod updates;

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Shape};
use phalanx_cuda::blas::Blas;
use phalanx_cuda::dnn::Dnn;
use phalanx_cuda::memory::Pinned;
use phalanx_cuda::{ElementType, Gpu, GpuError, Layout, Options, Slice};

pub use array::CudaArray;
use array::Order;
pub use phalanx_cuda::Options as CudaOptions;
pub use phalanx_cuda::Replay;
pub use phalanx_cuda::memory::Lent;

use super::{Array, ArrayBackend, DeviceCodecs};
use crate::{Precision, Result, TensorError};

/// What messages call this back end.
const NAME: &str = "a GPU";

/// A GPU as a back end. Clones are handles.
///
/// A [`Place`](super::Place) makes it that of a model: `Place::device(Arc::new(Cuda::new(0, &Options::default())?))`.
#[derive(Debug, Clone)]
pub struct Cuda(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    blas: Blas,
    /// Opened at the first convolution: a network without any needs no cuDNN.
    dnn: Mutex<Option<Arc<Dnn>>>,
    /// Memory of the host for numbers that are read later, the smallest first.
    page_locked: Mutex<Vec<Pinned<f32>>>,
    gpu: Gpu,
}

impl Cuda {
    /// GPU `index`, from 0.
    ///
    /// # Errors
    /// [`TensorError::Gpu`] if there is no driver, no such GPU, or no cuBLASLt.
    pub fn new(index: usize, options: &Options) -> Result<Self> {
        let gpu = Gpu::new(index, options)?;
        Ok(Self(Arc::new(Inner {
            blas: Blas::new(&gpu)?,
            dnn: Mutex::default(),
            page_locked: Mutex::default(),
            gpu,
        })))
    }

    /// The GPU, with its streams and its memory's accounts.
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

    /// An array of this back end.
    fn open<'a>(&self, op: &'static str, array: &'a Array) -> Result<&'a CudaArray> {
        array.device(op, NAME)
    }

    /// The elements of an array of this back end.
    fn slice<'a>(&self, op: &'static str, array: &'a Array) -> Result<&'a Slice> {
        self.open(op, array)?.slice()
    }

    /// The elements of images in the order N, H, W, C.
    fn last(&self, op: &'static str, array: &Array) -> Result<Slice> {
        let array = self.open(op, array)?;
        match array.physical() {
            (slice, Order::ChannelsLast) => Ok(slice.clone()),
            (slice, Order::RowMajor) => {
                Ok(phalanx_cuda::kernels::permute(self.gpu(), slice, array.dims(), &[0, 2, 3, 1])?)
            }
        }
    }

    /// Whether an array's elements lie in the order N, H, W, C.
    fn is_last(&self, op: &'static str, array: &Array) -> Result<bool> {
        Ok(self.open(op, array)?.physical().1 == Order::ChannelsLast)
    }

    /// The elements of images as they lie.
    fn laid(&self, op: &'static str, array: &Array) -> Result<(Layout, Slice)> {
        match self.is_last(op, array)? {
            true => Ok((Layout::ChannelsLast, self.last(op, array)?)),
            false => Ok((Layout::ChannelsFirst, self.slice(op, array)?.clone())),
        }
    }

    /// The elements of images in an order.
    fn laid_as(&self, op: &'static str, layout: Layout, array: &Array) -> Result<Slice> {
        match layout {
            Layout::ChannelsLast => self.last(op, array),
            Layout::ChannelsFirst => Ok(self.slice(op, array)?.clone()),
        }
    }

    fn last_if(&self, op: &'static str, array: Option<&Array>) -> Result<Option<Slice>> {
        array.map(|array| self.last(op, array)).transpose()
    }

    fn slice_if<'a>(&self, op: &'static str, array: Option<&'a Array>) -> Result<Option<&'a Slice>> {
        array.map(|array| self.slice(op, array)).transpose()
    }

    /// An array of elements that were computed.
    fn array(&self, slice: Slice, shape: impl Into<Shape>) -> Array {
        Array::of_device(CudaArray::new(self.clone(), slice, shape.into()))
    }

    /// An array of images whose elements were computed in the order N, H, W, C. The shape is [N, C, H, W] all the same.
    fn array_last(&self, slice: Slice, shape: impl Into<Shape>) -> Array {
        Array::of_device(CudaArray::channels_last(self.clone(), slice, shape.into()))
    }

    /// An array of images whose elements were computed in an order. The shape is [N, C, H, W] in both.
    fn array_laid(&self, layout: Layout, slice: Slice, shape: impl Into<Shape>) -> Array {
        match layout {
            Layout::ChannelsLast => self.array_last(slice, shape),
            Layout::ChannelsFirst => self.array(slice, shape),
        }
    }

    /// An array like another one, in shape and order.
    fn array_like(&self, op: &'static str, like: &Array, slice: Slice) -> Result<Array> {
        match self.is_last(op, like)? {
            true => Ok(self.array_last(slice, like.shape().clone())),
            false => Ok(self.array(slice, like.shape().clone())),
        }
    }

    /// An operand of a product: elements of the type that `precision` multiplies.
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

/// candle's element type as the GPU's.
fn element_type(op: &'static str, dtype: DType) -> Result<ElementType> {
    match dtype {
        DType::F32 => Ok(ElementType::F32),
        DType::F64 => Ok(ElementType::F64),
        DType::BF16 => Ok(ElementType::Bf16),
        DType::F16 => Ok(ElementType::F16),
        DType::U8 => Ok(ElementType::U8),
        DType::U32 => Ok(ElementType::U32),
        DType::I64 => Ok(ElementType::I64),
        other => Err(TensorError::dtype(op, other)),
    }
}

/// The GPU's element type as candle's.
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

/// The error for sizes that a GPU's library does not take.
fn argument(function: &'static str, problem: String) -> TensorError {
    GpuError::argument(function, problem).into()
}

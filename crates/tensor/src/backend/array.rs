//! Arrays: what values, parameters and gradients hold, on the host or on a device.

use std::any::Any;
use std::sync::Arc;

use candle_core::{DType, Shape, Tensor};

use super::{ArrayBackend, Arriving, DeviceCodecs, Sent};
use crate::{Context, Result, TensorError, storage};

/// An n-dimensional array: candle's tensor on the CPU, or an array of another back end. Clones are handles of the same
/// memory.
///
/// Host memory is read with [`Array::tensor`]. An array of another back end is never copied there unasked: that is what
/// [`Array::to_host`] and [`super::Memory::from_host`] are for, and nothing else does it.
#[derive(Debug, Clone)]
pub struct Array(Repr);

#[derive(Debug, Clone)]
enum Repr {
    Host(Tensor),
    Device(Arc<dyn DeviceArray>),
}

/// An array of a back end other than the CPU's.
///
/// Its elements count as lying one after the other in row-major order, whatever the back end does with them.
pub trait DeviceArray: std::fmt::Debug + Send + Sync + Any {
    /// The shape.
    fn shape(&self) -> &Shape;

    /// The element type.
    fn dtype(&self) -> DType;

    /// The back end that it belongs to.
    fn backend(&self) -> &dyn ArrayBackend;

    /// Elements `start..start + shape.elem_count()` under another shape, in the same memory: what is written to one is
    /// seen in the other.
    ///
    /// # Errors
    /// If there are not so many elements.
    fn view(&self, start: usize, shape: &Shape) -> Result<Array>;
}

impl Array {
    /// An array of a back end other than the CPU's.
    pub fn of_device(array: impl DeviceArray) -> Self {
        Self(Repr::Device(Arc::new(array)))
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        match &self.0 {
            Repr::Host(tensor) => tensor.shape(),
            Repr::Device(array) => array.shape(),
        }
    }

    /// The shape's sizes.
    pub fn dims(&self) -> &[usize] {
        self.shape().dims()
    }

    /// How many dimensions it has.
    pub fn rank(&self) -> usize {
        self.dims().len()
    }

    /// How many elements it has.
    pub fn elem_count(&self) -> usize {
        self.shape().elem_count()
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        match &self.0 {
            Repr::Host(tensor) => tensor.dtype(),
            Repr::Device(array) => array.dtype(),
        }
    }

    /// Whether it is a tensor of the CPU.
    pub fn is_host(&self) -> bool {
        matches!(self.0, Repr::Host(_))
    }

    /// What tells the memory of a tensor of the CPU from that of others, as long as it is there, and how many bytes the tensor's
    /// elements have; `None` on a device.
    pub(crate) fn host_memory(&self) -> Option<(usize, usize)> {
        let Repr::Host(tensor) = &self.0 else { return None };
        let (storage, _) = tensor.storage_and_layout();
        let place = std::ptr::from_ref::<candle_core::Storage>(&storage).addr();
        Some((place, tensor.elem_count() * tensor.dtype().size_in_bytes()))
    }

    /// The back end that computes with this array: its own, or for a tensor of the CPU `context`.
    pub fn backend<'a>(&'a self, context: &'a Context) -> &'a dyn ArrayBackend {
        match &self.0 {
            Repr::Host(_) => context,
            Repr::Device(array) => array.backend(),
        }
    }

    /// The back end of the device that this array lies on; nothing on the host.
    pub fn device_backend(&self) -> Option<&dyn ArrayBackend> {
        match &self.0 {
            Repr::Host(_) => None,
            Repr::Device(array) => Some(array.backend()),
        }
    }

    /// What encodes the elements where they lie, if they lie on a device that can.
    pub fn codecs(&self) -> Option<&dyn DeviceCodecs> {
        match &self.0 {
            Repr::Host(_) => None,
            Repr::Device(array) => array.backend().codecs(),
        }
    }

    /// The tensor of the CPU, for `op`, which reads its elements there.
    ///
    /// # Errors
    /// [`TensorError::NotOnHost`] naming `op`, if the array is one of another back end.
    pub fn host(&self, op: &'static str) -> Result<&Tensor> {
        match &self.0 {
            Repr::Host(tensor) => Ok(tensor),
            Repr::Device(array) => Err(TensorError::NotOnHost { op, backend: array.backend().name() }),
        }
    }

    /// The tensor of the CPU.
    ///
    /// # Errors
    /// [`TensorError::NotOnHost`], if the array is one of another back end; [`Array::to_host`] copies it.
    pub fn tensor(&self) -> Result<Tensor> {
        self.host("`tensor`").cloned()
    }

    /// The elements on the host: the tensor itself, or a copy of what lies on a device, for which this waits.
    ///
    /// # Errors
    /// The back end's.
    pub fn to_host(&self) -> Result<Tensor> {
        match &self.0 {
            Repr::Host(tensor) => Ok(tensor.clone()),
            Repr::Device(array) => array.backend().to_host(self),
        }
    }

    /// Begins to copy the elements of a floating-point array to the host, as f32, and does not wait for them. What is written to
    /// the array later does not change them.
    ///
    /// # Errors
    /// The back end's, also for elements that are no floating-point numbers.
    pub fn begin_numbers(&self) -> Result<Arriving> {
        match &self.0 {
            Repr::Host(tensor) if tensor.dtype().is_float() => {
                Ok(Arriving::here(tensor.to_dtype(DType::F32)?.force_contiguous()?))
            }
            Repr::Host(tensor) => Err(TensorError::dtype("begin_numbers", tensor.dtype())),
            Repr::Device(array) => array.backend().begin_numbers(self),
        }
    }

    /// Begins to copy the elements of an array of f32 to the host beside what is computed, if they lie elsewhere. Nobody writes to
    /// them any more.
    ///
    /// # Errors
    /// The back end's.
    pub fn begin_moving_out(&self) -> Result<Arriving> {
        match &self.0 {
            Repr::Host(tensor) => Ok(Arriving::here(tensor.clone())),
            Repr::Device(array) => array.backend().begin_moving_out(self),
        }
    }

    /// Begins to overwrite the elements by those of the host, as many of the same type, beside what is computed. Nobody uses them
    /// before [`Sent::arrive`].
    ///
    /// # Errors
    /// If the numbers of elements or their types differ; and the back end's.
    pub fn begin_moving_in(&self, elements: &Tensor) -> Result<Sent> {
        match &self.0 {
            Repr::Host(tensor) => {
                storage::copy_in_place(tensor, elements)?;
                Ok(Sent::there())
            }
            Repr::Device(array) => array.backend().begin_moving_in(self, elements),
        }
    }

    /// Elements of the host where this array lies: the tensor itself, or a copy of it on this array's device.
    ///
    /// # Errors
    /// The back end's.
    pub fn alongside(&self, tensor: &Tensor) -> Result<Self> {
        match &self.0 {
            Repr::Host(_) => Ok(tensor.into()),
            Repr::Device(array) => array.backend().from_host(tensor),
        }
    }

    /// The array as its back end knows it, for that back end's `op`.
    ///
    /// # Errors
    /// [`TensorError::OtherBackend`] naming `op`, if it is not a `D`.
    pub fn device<D: DeviceArray>(&self, op: &'static str, expected: &'static str) -> Result<&D> {
        let found = match &self.0 {
            Repr::Host(_) => "the CPU",
            Repr::Device(array) => {
                let any: &dyn Any = array.as_ref();
                match any.downcast_ref() {
                    Some(array) => return Ok(array),
                    None => array.backend().name(),
                }
            }
        };
        Err(TensorError::OtherBackend { op, expected, found })
    }

    /// Overwrites the elements by those of `source`, which has as many in the same place, converting their type.
    ///
    /// # Errors
    /// If the numbers of elements differ, or the places.
    pub fn copy_from(&self, source: &Self) -> Result<()> {
        match &self.0 {
            Repr::Host(tensor) => storage::copy_in_place(tensor, source.host("copy")?),
            Repr::Device(array) => array.backend().copy(self, source),
        }
    }

    /// A copy in memory of its own.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn duplicate(&self) -> Result<Self> {
        match &self.0 {
            // candle's copy of a view would keep all that the view is a part of.
            Repr::Host(tensor) => Ok(tensor.force_contiguous()?.into()),
            Repr::Device(array) => array.backend().duplicate(self),
        }
    }

    /// Sets every element to zero.
    ///
    /// # Errors
    /// If the element type is not supported.
    pub fn zero(&self) -> Result<()> {
        match &self.0 {
            Repr::Host(tensor) => storage::zero_in_place(tensor),
            Repr::Device(array) => array.backend().zero(self),
        }
    }

    /// The number that an array of one holds, for which this waits if it lies on a device.
    ///
    /// # Errors
    /// If it is not one number, and the back end's.
    pub fn number(&self) -> Result<f64> {
        let tensor = self.to_host()?;
        if tensor.elem_count() != 1 {
            return Err(TensorError::shape("number", format!("{:?} is not one number", self.shape())));
        }
        Ok(tensor.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?[0])
    }

    /// The array with its elements one after the other: itself, or a copy of a tensor that is a view across them.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn contiguous(&self) -> Result<Self> {
        match &self.0 {
            Repr::Host(tensor) => Ok(Self(Repr::Host(tensor.contiguous()?))),
            Repr::Device(_) => Ok(self.clone()),
        }
    }

    /// Whether its elements lie one after the other.
    pub fn is_contiguous(&self) -> bool {
        match &self.0 {
            Repr::Host(tensor) => tensor.is_contiguous(),
            Repr::Device(_) => true,
        }
    }

    /// All elements in row-major order under another shape, in the same memory if they lie one after the other.
    ///
    /// # Errors
    /// If the numbers of elements differ.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        match &self.0 {
            Repr::Host(tensor) => Ok(Self(Repr::Host(tensor.reshape(shape)?))),
            Repr::Device(array) if shape.elem_count() == array.shape().elem_count() => array.view(0, &shape),
            Repr::Device(array) => Err(TensorError::unequal("reshape", array.shape(), &shape)),
        }
    }

    /// Elements `start..` of a flat array under a shape, in the same memory: a parameter in its buffer.
    ///
    /// # Errors
    /// If there are not so many elements, or the array is not flat.
    pub fn view(&self, start: usize, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        match &self.0 {
            Repr::Host(tensor) => {
                Ok(Self(Repr::Host(tensor.narrow(0, start, shape.elem_count())?.reshape(shape)?)))
            }
            Repr::Device(array) => array.view(start, &shape),
        }
    }
}

impl From<Tensor> for Array {
    fn from(tensor: Tensor) -> Self {
        Self(Repr::Host(tensor))
    }
}

impl From<&Tensor> for Array {
    fn from(tensor: &Tensor) -> Self {
        Self(Repr::Host(tensor.clone()))
    }
}

impl From<&Self> for Array {
    fn from(array: &Self) -> Self {
        array.clone()
    }
}

//! Arrays of values, parameters and gradients, on the host or on a device.

use std::any::Any;
use std::sync::Arc;

use candle_core::{DType, Shape, Tensor};

use super::{ArrayBackend, Download, Upload};
use crate::{ArrayError, Context, Result, storage};

/// An n-dimensional array: candle's tensor on the CPU, or an array of another back end. Clones are handles of the
/// same memory.
///
/// [`Array::tensor`] reads host memory. Only [`Array::to_host`] and [`super::Transfers::from_host`] copy between the
/// host and a device; no other function does so implicitly.
#[derive(Debug, Clone)]
pub struct Array(Repr);

#[derive(Debug, Clone)]
enum Repr {
    Host(Tensor),
    Device(Arc<dyn DeviceArray>),
}

/// An array of a back end other than the CPU's.
///
/// It counts as contiguous in row-major order, whichever layout the back end uses.
pub trait DeviceArray: std::fmt::Debug + Send + Sync + Any {
    /// The shape.
    fn shape(&self) -> &Shape;

    /// The element type.
    fn dtype(&self) -> DType;

    /// The back end of the array.
    fn backend(&self) -> &dyn ArrayBackend;

    /// Views elements `start..start + shape.elem_count()` under another shape, in the same memory.
    ///
    /// # Errors
    /// If the array has fewer elements.
    fn view(&self, start: usize, shape: &Shape) -> Result<Array>;

    /// An identifier of the storage, as long as it exists, if it counts as memory of the host's activations
    /// (`phalanx_tensor::take_peak_recorded_bytes`).
    fn storage_id(&self) -> Option<usize> {
        None
    }
}

impl Array {
    /// Wraps an array of a back end other than the CPU's.
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

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.dims().len()
    }

    /// The number of elements.
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

    /// True for a tensor of the CPU.
    pub fn is_host(&self) -> bool {
        matches!(self.0, Repr::Host(_))
    }

    /// An identifier of the storage of a CPU tensor or of an outline, valid as long as the storage exists, and the size of the
    /// elements in bytes. `None` on other devices.
    pub fn host_memory(&self) -> Option<(usize, usize)> {
        let id = match &self.0 {
            Repr::Host(tensor) => {
                std::ptr::from_ref::<candle_core::Storage>(&tensor.storage_and_layout().0).addr()
            }
            Repr::Device(array) => array.storage_id()?,
        };
        Some((id, storage::bytes_of(self.elem_count(), self.dtype())))
    }

    /// The back end that computes with this array: its own, or `context` for a tensor of the CPU.
    pub fn backend<'a>(&'a self, context: &'a Context) -> &'a dyn ArrayBackend {
        match &self.0 {
            Repr::Host(_) => context,
            Repr::Device(array) => array.backend(),
        }
    }

    /// True if the array has numbers, false for an outline ([`super::Outlines`]).
    pub fn has_numbers(&self) -> bool {
        self.device_backend().is_none_or(ArrayBackend::has_numbers)
    }

    /// The back end that computes with several arrays: that of the first one, or of an outline, so that the result is one, too.
    pub fn backend_of<'a>(
        context: &'a Context,
        arrays: impl IntoIterator<Item = &'a Self> + Clone,
    ) -> &'a dyn ArrayBackend {
        let outline = arrays.clone().into_iter().find(|array| !array.has_numbers());
        outline.or_else(|| arrays.into_iter().next()).map_or(context, |array| array.backend(context))
    }

    /// The back end of the array's device; `None` on the host.
    pub fn device_backend(&self) -> Option<&dyn ArrayBackend> {
        match &self.0 {
            Repr::Host(_) => None,
            Repr::Device(array) => Some(array.backend()),
        }
    }

    /// Returns the CPU tensor to the host op `op`.
    ///
    /// # Errors
    /// [`ArrayError::NotOnHost`] naming `op`, if the array is one of another back end.
    pub fn host(&self, op: &'static str) -> Result<&Tensor> {
        match &self.0 {
            Repr::Host(tensor) => Ok(tensor),
            Repr::Device(array) => Err(ArrayError::NotOnHost { op, backend: array.backend().name() }),
        }
    }

    /// Returns the CPU tensor.
    ///
    /// # Errors
    /// [`ArrayError::NotOnHost`], if the array is one of another back end; [`Array::to_host`] copies it.
    pub fn tensor(&self) -> Result<Tensor> {
        self.host("`tensor`").cloned()
    }

    /// Returns the elements on the host: the tensor itself, or a copy from a device, for which this waits.
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn to_host(&self) -> Result<Tensor> {
        match &self.0 {
            Repr::Host(tensor) => Ok(tensor.clone()),
            Repr::Device(array) => array.backend().to_host(self),
        }
    }

    /// Begins to copy the elements of a floating-point array to the host, as f32, without waiting. Later writes to
    /// the array do not change the copy.
    ///
    /// # Errors
    /// Errors of the back end, also for elements that are not floating-point numbers.
    pub fn begin_snapshot(&self) -> Result<Download> {
        match &self.0 {
            Repr::Host(tensor) if tensor.dtype().is_float() => {
                Ok(Download::ready(tensor.to_dtype(DType::F32)?.force_contiguous()?))
            }
            Repr::Host(tensor) => Err(ArrayError::dtype("begin_snapshot", tensor.dtype())),
            Repr::Device(array) => array.backend().begin_snapshot(self),
        }
    }

    /// Begins to copy the elements of an f32 array to the host while the device computes. The caller must not write
    /// to the array any more.
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn begin_download(&self) -> Result<Download> {
        match &self.0 {
            Repr::Host(tensor) => Ok(Download::ready(tensor.clone())),
            Repr::Device(array) => array.backend().begin_download(self),
        }
    }

    /// Begins to overwrite the elements with as many of the same type from the host, while the device computes. The
    /// caller must not use the array before [`Upload::wait`].
    ///
    /// # Errors
    /// If the numbers of elements or their types differ; and errors of the back end.
    pub fn begin_upload(&self, elements: &Tensor) -> Result<Upload> {
        match &self.0 {
            Repr::Host(tensor) => {
                storage::copy_in_place(tensor, elements)?;
                Ok(Upload::ready())
            }
            Repr::Device(array) => array.backend().begin_upload(self, elements),
        }
    }

    /// Puts elements of the host on this array's device: returns the tensor itself, or a copy on the device.
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn alongside(&self, tensor: &Tensor) -> Result<Self> {
        match &self.0 {
            Repr::Host(_) => Ok(tensor.into()),
            Repr::Device(array) => array.backend().from_host(tensor),
        }
    }

    /// Returns the array as the type of its back end, for that back end's `op`.
    ///
    /// # Errors
    /// [`ArrayError::OtherBackend`] naming `op`, if it is not a `D`.
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
        Err(ArrayError::OtherBackend { op, expected, found })
    }

    /// Copies the elements of `source`, of the same length and device, converted to the element type.
    ///
    /// # Errors
    /// If the numbers of elements differ, or the devices.
    pub fn copy_from(&self, source: &Self) -> Result<()> {
        match &self.0 {
            Repr::Host(tensor) => storage::copy_in_place(tensor, source.host("copy")?),
            Repr::Device(array) => array.backend().copy(self, source),
        }
    }

    /// Copies the array to memory of its own.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn duplicate(&self) -> Result<Self> {
        match &self.0 {
            // candle's copy of a view would keep the whole storage.
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

    /// Returns the value of an array of one element. Waits for a device.
    ///
    /// # Errors
    /// If there is not exactly one element; and errors of the back end.
    pub fn number(&self) -> Result<f64> {
        let tensor = self.to_host()?;
        if tensor.elem_count() != 1 {
            return Err(ArrayError::shape("number", format!("{:?} is not one number", self.shape())));
        }
        Ok(tensor.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>()?[0])
    }

    /// Returns the array itself if it is contiguous, else a contiguous copy.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn contiguous(&self) -> Result<Self> {
        match &self.0 {
            Repr::Host(tensor) => Ok(Self(Repr::Host(tensor.contiguous()?))),
            Repr::Device(_) => Ok(self.clone()),
        }
    }

    /// True if the elements are contiguous.
    pub fn is_contiguous(&self) -> bool {
        match &self.0 {
            Repr::Host(tensor) => tensor.is_contiguous(),
            Repr::Device(_) => true,
        }
    }

    /// Views all elements in row-major order under another shape; copies them if they are not contiguous.
    ///
    /// # Errors
    /// If the numbers of elements differ.
    pub fn reshape(&self, shape: impl Into<Shape>) -> Result<Self> {
        let shape = shape.into();
        match &self.0 {
            Repr::Host(tensor) => Ok(Self(Repr::Host(tensor.reshape(shape)?))),
            Repr::Device(array) if shape.elem_count() == array.shape().elem_count() => array.view(0, &shape),
            Repr::Device(array) => Err(ArrayError::unequal("reshape", array.shape(), &shape)),
        }
    }

    /// Views elements `start..` of a flat array under a shape, in the same memory: a parameter in its bucket.
    ///
    /// # Errors
    /// If there are fewer elements, or the array is not flat.
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

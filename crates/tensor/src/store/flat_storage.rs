//! Flat memory: contiguous elements, of which parameters, shards and gradients are ranges.

use std::ops::Range;

use candle_core::{DType, Shape, Tensor};

use crate::backend::{Array, ComputeDevice, Download, Upload};
use crate::host::{HostSliceMut, with_host_slice_mut};
use crate::{Result, TensorError};

/// Contiguous elements of one type, on the host or on a device. Clones and ranges ([`FlatStorage::narrow`]) share the
/// memory; the last one frees it.
///
/// Only this type depends on the kind of memory. Its users request ranges, views in a shape, the elements on the host,
/// or copies.
#[derive(Debug, Clone)]
pub struct FlatStorage(Array);

impl FlatStorage {
    /// Allocates memory of unspecified contents. The caller must write every element before reading one.
    ///
    /// # Errors
    /// If the element type is not f32 or f64, or memory cannot be allocated.
    pub fn unwritten(len: usize, dtype: DType, device: &ComputeDevice) -> Result<Self> {
        Ok(Self(device.unwritten_flat(len, dtype)?))
    }

    /// Allocates memory of unspecified contents on the same device and of the same type. The caller must write every
    /// element before reading one.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn unwritten_like(&self, len: usize) -> Result<Self> {
        match self.0.device_backend() {
            Some(backend) => Ok(Self(backend.unwritten(&len.into(), self.dtype())?)),
            None => Self::unwritten(len, self.dtype(), &ComputeDevice::host()),
        }
    }

    /// Allocates memory of zeros.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn zeros(len: usize, dtype: DType, device: &ComputeDevice) -> Result<Self> {
        Ok(Self(device.full(0.0, len, dtype)?))
    }

    /// Wraps an array of one dimension without copying its elements.
    ///
    /// # Errors
    /// If it has another number of dimensions, or is not contiguous.
    pub fn new(flat: impl Into<Array>) -> Result<Self> {
        let flat = flat.into();
        if flat.rank() != 1 || !flat.is_contiguous() {
            let problem = format!("expected contiguous elements in one dimension, not {:?}", flat.shape());
            return Err(TensorError::shape("flat storage", problem));
        }
        Ok(Self(flat))
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.0.elem_count()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    /// The size of the elements in bytes.
    pub fn bytes(&self) -> usize {
        self.len() * self.dtype().size_in_bytes()
    }

    /// Returns elements `range`, in the same memory.
    ///
    /// # Errors
    /// If the range is not inside.
    pub fn narrow(&self, range: Range<usize>) -> Result<Self> {
        Ok(Self(self.0.view(range.start, range.len())?))
    }

    /// Returns elements `range` as an array of `shape`, in the same memory.
    ///
    /// # Errors
    /// If the range is not inside, or the shape has another number of elements.
    pub fn view(&self, range: Range<usize>, shape: &Shape) -> Result<Array> {
        if range.len() != shape.elem_count() {
            return Err(TensorError::unequal("flat storage", &Shape::from(range.len()), shape));
        }
        Ok(self.0.view(range.start, shape.clone())?)
    }

    /// All elements as an array of one dimension, in the same memory.
    pub fn array(&self) -> &Array {
        &self.0
    }

    /// Returns all elements as a tensor of one dimension, in the same memory.
    ///
    /// # Errors
    /// [`ArrayError::NotOnHost`](crate::ArrayError::NotOnHost) if the memory is on a device.
    pub fn tensor(&self) -> Result<Tensor> {
        Ok(self.0.host("`tensor` of flat memory").cloned()?)
    }

    /// Returns all elements as a tensor of one dimension: the memory itself, or a copy of device memory.
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn to_host(&self) -> Result<Tensor> {
        Ok(self.0.to_host()?)
    }

    /// Returns a tensor on the host to write all elements to: the memory itself, or a staging buffer for
    /// [`FlatStorage::take_staged`].
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn staging(&self) -> Result<Tensor> {
        match self.0.is_host() {
            true => self.tensor(),
            false => Ok(Tensor::zeros(self.len(), self.dtype(), &candle_core::Device::Cpu)?),
        }
    }

    /// Copies the elements written to [`FlatStorage::staging`].
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn take_staged(&self, staged: &Tensor) -> Result<()> {
        if self.0.is_host() { Ok(()) } else { self.put(staged) }
    }

    /// Copies the elements of a tensor of the same length, converted to the element type.
    ///
    /// # Errors
    /// If it has another number of elements.
    pub fn put(&self, elements: &Tensor) -> Result<()> {
        Ok(self.0.copy_from(&self.0.alongside(elements)?)?)
    }

    /// Runs `f` on the elements, mutable on the host. All clones and ranges see the change.
    ///
    /// # Errors
    /// If the memory is not the host's, or the element type is not f32 or f64.
    pub fn with_slice_mut<R>(&self, f: impl FnOnce(HostSliceMut<'_>) -> R) -> Result<R> {
        Ok(with_host_slice_mut(self.0.host("host access")?, f)?)
    }

    /// Lends a GPU's memory to a library; `None` for memory of the host.
    ///
    /// # Errors
    /// If the back end is not a GPU.
    #[cfg(feature = "cuda")]
    pub fn lend(&self) -> Result<Option<crate::backend::LibrarySlice>> {
        if self.0.is_host() {
            return Ok(None);
        }
        let array: &crate::backend::CudaArray = self.0.device("lend", "a GPU")?;
        Ok(Some(array.slice()?.for_library()))
    }

    /// Lends a GPU's memory to a library, after the upload of [`FlatStorage::begin_upload_from`].
    ///
    /// # Errors
    /// If the back end is not a GPU.
    #[cfg(feature = "cuda")]
    pub fn lend_moving_in(&self) -> Result<Option<crate::backend::LibrarySlice>> {
        Ok(self.lend()?.map(|lent| lent.on_stream(phalanx_cuda::Stream::Copies)).transpose()?)
    }

    /// Lends a GPU's memory to a library, in the order of the work of [`DeviceCodecs`](crate::backend::DeviceCodecs).
    ///
    /// # Errors
    /// If the back end is not a GPU.
    #[cfg(feature = "cuda")]
    pub fn lend_to_codecs(&self) -> Result<Option<crate::backend::LibrarySlice>> {
        Ok(self.lend()?.map(|lent| lent.on_stream(phalanx_cuda::Stream::Communication)).transpose()?)
    }

    /// Overwrites the elements with those of `source`.
    ///
    /// # Errors
    /// If `source` has another number of elements, or is on another device.
    pub fn copy_from(&self, source: &Self) -> Result<()> {
        Ok(self.0.copy_from(&source.0)?)
    }

    /// Adds the elements of `addend`, as many of the same type on the same device. The host adds on the calling
    /// thread.
    ///
    /// # Errors
    /// If their number, type or device differs.
    pub fn add(&self, addend: &Self) -> Result<()> {
        fn each<T: Copy + std::ops::AddAssign>(to: &mut [T], from: &[T]) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
        }
        if (self.len(), self.dtype()) != (addend.len(), addend.dtype()) {
            let of = |flat: &Self| format!("{} elements of {}", flat.len(), flat.dtype().as_str());
            return Err(TensorError::shape("add", format!("{} to {}", of(addend), of(self))));
        }
        if let Some(backend) = self.0.device_backend() {
            return if self.is_empty() { Ok(()) } else { Ok(backend.accumulate(&self.0, &addend.0)?) };
        }
        self.with_slice_mut(|to| {
            addend.with_slice_mut(|from| match (to, from) {
                (HostSliceMut::F32(to), HostSliceMut::F32(from)) => each(to, from),
                (HostSliceMut::F64(to), HostSliceMut::F64(from)) => each(to, from),
                _ => {}
            })
        })?
    }

    /// Overwrites the elements with those of `source`, on any device.
    ///
    /// # Errors
    /// If `source` has another number of elements; and errors of the back end.
    pub fn fetch(&self, source: &Self) -> Result<()> {
        match self.0.is_host() == source.0.is_host() {
            true => self.copy_from(source),
            false => self.put(&source.to_host()?),
        }
    }

    /// Begins to overwrite the elements with those of `source` on the host, while the device computes. The caller
    /// must not use them before [`Upload::wait`].
    ///
    /// # Errors
    /// If `source` has another number or type of elements, or is on a device; and errors of the back end.
    pub fn begin_upload_from(&self, source: &Self) -> Result<Upload> {
        if source.len() != self.len() {
            let shape = Shape::from(self.len());
            return Err(TensorError::unequal("fetch", &shape, &Shape::from(source.len())));
        }
        Ok(self.0.begin_upload(source.0.host("fetch")?)?)
    }

    /// Begins to copy the elements to the host while the device computes. The caller must not write to them any more.
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn begin_download(&self) -> Result<Download> {
        match self.dtype() {
            DType::F32 => Ok(self.0.begin_download()?),
            _ => Ok(Download::ready(self.to_host()?)),
        }
    }

    /// Copies the elements to memory of their own.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn copy(&self) -> Result<Self> {
        Ok(Self(self.0.duplicate()?))
    }

    /// Sets elements `range` to zero.
    pub(super) fn zero(&self, range: Range<usize>) -> Result<()> {
        Ok(self.narrow(range)?.0.zero()?)
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn ranges_share_memory_and_copies_do_not() {
        let whole = FlatStorage::zeros(6, DType::F32, &ComputeDevice::host()).expect("small");
        let part = whole.narrow(2..5).expect("inside");
        let copy = part.copy().expect("small");
        let ones = Tensor::ones(3, DType::F32, &Device::Cpu).map(|ones| FlatStorage(ones.into()));
        part.copy_from(&ones.expect("small")).expect("three elements");
        let values = |flat: &FlatStorage| flat.tensor().expect("of the host").to_vec1::<f32>().expect("f32");
        assert_eq!(values(&whole), [0.0, 0.0, 1.0, 1.0, 1.0, 0.0]);
        assert_eq!((values(&copy), copy.bytes()), (vec![0.0; 3], 12));
        part.add(&copy).expect("as many");
        part.add(&whole.narrow(2..5).expect("inside").copy().expect("small")).expect("as many");
        assert_eq!(values(&whole), [0.0, 0.0, 2.0, 2.0, 2.0, 0.0]);
        let problem = part.add(&whole).expect_err("more").to_string();
        assert!(problem.contains("6 elements of f32 to 3 elements of f32"), "{problem}");
        assert!(whole.narrow(5..7).is_err());
        let square = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).expect("small");
        assert!(FlatStorage::new(square).is_err());
    }
}

//! Flat memory: elements in a row, of which parameters, shards and gradients are ranges.

use std::ops::Range;

use candle_core::{DType, Shape, Tensor};

use crate::backend::{Array, Arriving, Place, Sent};
use crate::host::{HostSliceMut, with_host_slice_mut};
use crate::{Result, TensorError, storage};

/// Elements of one type in a row, on the host or on a device. Clones and ranges ([`FlatStorage::narrow`]) share the memory; it
/// is freed with the last.
///
/// This is the only place that knows what the memory is made of: everybody else asks for ranges, for views in a shape, for
/// the elements on the host, or for copies.
#[derive(Debug, Clone)]
pub struct FlatStorage(Array);

impl FlatStorage {
    /// Memory of unspecified content, for whoever overwrites all of it before anybody reads any.
    ///
    /// # Errors
    /// If the element type is not f32 or f64, or the memory cannot be had.
    pub fn unwritten(len: usize, dtype: DType, place: &Place) -> Result<Self> {
        Ok(Self(place.unwritten_flat(len, dtype)?))
    }

    /// Memory of unspecified content beside these elements and of their type, for whoever overwrites all of it before anybody reads any.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn room_beside(&self, len: usize) -> Result<Self> {
        match self.0.device_backend() {
            Some(backend) => Ok(Self(backend.unwritten(&len.into(), self.dtype())?)),
            None => Self::unwritten(len, self.dtype(), &Place::host()),
        }
    }

    /// Memory of zeros.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn zeros(len: usize, dtype: DType, place: &Place) -> Result<Self> {
        Ok(Self(place.full(0.0, len, dtype)?))
    }

    /// Takes an array of one dimension over, without copying its elements.
    ///
    /// # Errors
    /// If it has another number of dimensions, or its elements do not follow each other.
    pub fn new(flat: impl Into<Array>) -> Result<Self> {
        let flat = flat.into();
        if flat.rank() != 1 || !flat.is_contiguous() {
            let problem = format!("expected contiguous elements in one dimension, not {:?}", flat.shape());
            return Err(TensorError::shape("flat storage", problem));
        }
        Ok(Self(flat))
    }

    /// How many elements it has.
    pub fn len(&self) -> usize {
        self.0.elem_count()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.0.dtype()
    }

    /// How many bytes the elements take.
    pub fn bytes(&self) -> usize {
        storage::bytes_of(self.len(), self.dtype())
    }

    /// Elements `range`, in the same memory.
    ///
    /// # Errors
    /// If the range does not lie inside.
    pub fn narrow(&self, range: Range<usize>) -> Result<Self> {
        Ok(Self(self.0.view(range.start, range.len())?))
    }

    /// Elements `range` as an array of `shape`, in the same memory.
    ///
    /// # Errors
    /// If the range does not lie inside, or the shape has another number of elements.
    pub fn view(&self, range: Range<usize>, shape: &Shape) -> Result<Array> {
        if range.len() != shape.elem_count() {
            return Err(TensorError::unequal("flat storage", &Shape::from(range.len()), shape));
        }
        self.0.view(range.start, shape.clone())
    }

    /// All elements as an array of one dimension, in the same memory.
    pub fn array(&self) -> &Array {
        &self.0
    }

    /// All elements as a tensor of one dimension, in the same memory.
    ///
    /// # Errors
    /// [`TensorError::NotOnHost`] if the memory is a device's.
    pub fn tensor(&self) -> Result<Tensor> {
        self.0.host("`tensor` of flat memory").cloned()
    }

    /// All elements as a tensor of one dimension: the memory itself, or a copy of a device's.
    ///
    /// # Errors
    /// The back end's.
    pub fn to_host(&self) -> Result<Tensor> {
        self.0.to_host()
    }

    /// A tensor to write all elements to on the host: the memory itself, or room to be given to [`FlatStorage::take_staged`].
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn staging(&self) -> Result<Tensor> {
        match self.0.is_host() {
            true => self.tensor(),
            false => Ok(Tensor::zeros(self.len(), self.dtype(), &candle_core::Device::Cpu)?),
        }
    }

    /// Takes what was written to [`FlatStorage::staging`].
    ///
    /// # Errors
    /// The back end's.
    pub fn take_staged(&self, staged: &Tensor) -> Result<()> {
        if self.0.is_host() { Ok(()) } else { self.put(staged) }
    }

    /// Overwrites the elements by those of a tensor of as many, converted to their type.
    ///
    /// # Errors
    /// If it has another number of elements.
    pub fn put(&self, elements: &Tensor) -> Result<()> {
        self.0.copy_from(&self.0.alongside(elements)?)
    }

    /// Runs `f` on the elements, open for writing on the host; all clones and ranges see the change.
    ///
    /// # Errors
    /// If the memory is not the host's, or the element type is not f32 or f64.
    pub fn with_slice_mut<R>(&self, f: impl FnOnce(HostSliceMut<'_>) -> R) -> Result<R> {
        with_host_slice_mut(self.0.host("host access")?, f)
    }

    /// The elements as libraries take a GPU's memory; `None` if they lie on the host.
    ///
    /// # Errors
    /// If the memory is that of a back end that is no GPU.
    #[cfg(feature = "cuda")]
    pub fn lend(&self) -> Result<Option<crate::backend::Lent>> {
        if self.0.is_host() {
            return Ok(None);
        }
        let array: &crate::backend::CudaArray = self.0.device("lend", "a GPU")?;
        Ok(Some(array.slice()?.lend()))
    }

    /// The elements as libraries take a GPU's memory that [`FlatStorage::begin_fetch`] is filling: after that is done.
    ///
    /// # Errors
    /// If the memory is that of a back end that is no GPU.
    #[cfg(feature = "cuda")]
    pub fn lend_moving_in(&self) -> Result<Option<crate::backend::Lent>> {
        Ok(self.lend()?.map(|lent| lent.between(phalanx_cuda::Stream::Copies)).transpose()?)
    }

    /// The elements as libraries take a GPU's memory that [`DeviceCodecs`](crate::backend::DeviceCodecs) use: after what those were
    /// given, and before what they are given next.
    ///
    /// # Errors
    /// If the memory is that of a back end that is no GPU.
    #[cfg(feature = "cuda")]
    pub fn lend_to_codecs(&self) -> Result<Option<crate::backend::Lent>> {
        Ok(self.lend()?.map(|lent| lent.between(phalanx_cuda::Stream::Communication)).transpose()?)
    }

    /// Overwrites the elements by those of `source`.
    ///
    /// # Errors
    /// If `source` has another number of elements, or lies elsewhere.
    pub fn copy_from(&self, source: &Self) -> Result<()> {
        self.0.copy_from(&source.0)
    }

    /// Adds the elements of `addend`, which lie beside these and are as many and of their type, on the calling thread or by the device.
    ///
    /// # Errors
    /// If they are of another number or type, or lie elsewhere.
    pub fn add(&self, addend: &Self) -> Result<()> {
        fn each<T: Copy + std::ops::AddAssign>(to: &mut [T], from: &[T]) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += *from);
        }
        if (self.len(), self.dtype()) != (addend.len(), addend.dtype()) {
            let of = |flat: &Self| format!("{} elements of {}", flat.len(), flat.dtype().as_str());
            return Err(TensorError::shape("add", format!("{} to {}", of(addend), of(self))));
        }
        if let Some(backend) = self.0.device_backend() {
            return if self.is_empty() { Ok(()) } else { backend.accumulate(&self.0, &addend.0) };
        }
        self.with_slice_mut(|to| {
            addend.with_slice_mut(|from| match (to, from) {
                (HostSliceMut::F32(to), HostSliceMut::F32(from)) => each(to, from),
                (HostSliceMut::F64(to), HostSliceMut::F64(from)) => each(to, from),
                _ => {}
            })
        })?
    }

    /// Overwrites the elements by those of `source`, which may lie on the other side of the bus.
    ///
    /// # Errors
    /// If `source` has another number of elements; and the back end's.
    pub fn fetch(&self, source: &Self) -> Result<()> {
        match self.0.is_host() == source.0.is_host() {
            true => self.copy_from(source),
            false => self.put(&source.to_host()?),
        }
    }

    /// Begins to overwrite the elements by those of `source`, which lies on the host, beside what is computed. Nobody uses them before
    /// [`Sent::arrive`].
    ///
    /// # Errors
    /// If `source` has another number or type of elements, or lies on a device; and the back end's.
    pub fn begin_fetch(&self, source: &Self) -> Result<Sent> {
        if source.len() != self.len() {
            let shape = Shape::from(self.len());
            return Err(TensorError::unequal("fetch", &shape, &Shape::from(source.len())));
        }
        self.0.begin_moving_in(source.0.host("fetch")?)
    }

    /// Begins to copy the elements to the host beside what is computed, if they lie elsewhere. Nobody writes to them any more.
    ///
    /// # Errors
    /// The back end's.
    pub fn begin_moving_out(&self) -> Result<Arriving> {
        match self.dtype() {
            DType::F32 => self.0.begin_moving_out(),
            _ => Ok(Arriving::here(self.to_host()?)),
        }
    }

    /// A copy in memory of its own.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn copy(&self) -> Result<Self> {
        Ok(Self(self.0.duplicate()?))
    }

    /// Makes elements `range` zero.
    pub(super) fn zero(&self, range: Range<usize>) -> Result<()> {
        self.narrow(range)?.0.zero()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn ranges_share_memory_and_copies_do_not() {
        let whole = FlatStorage::zeros(6, DType::F32, &Place::host()).expect("small");
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

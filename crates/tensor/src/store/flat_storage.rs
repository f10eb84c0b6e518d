//! Flat memory: elements in a row, of which parameters, shards and gradients are ranges.

use std::ops::Range;

use candle_core::{DType, Device, Shape, Tensor};

use crate::backend::Array;
use crate::host::{HostSliceMut, copy_host, unwritten_flat, with_host_slice_mut};
use crate::{Result, TensorError, storage};

/// Elements of one type in a row. Clones and ranges ([`FlatStorage::narrow`]) share the memory; it is freed with the last.
///
/// This is the only place that knows what the memory is made of: everybody else asks for ranges, for views in a shape, for
/// the elements on the host, or for copies.
#[derive(Debug, Clone)]
pub struct FlatStorage(Tensor);

impl FlatStorage {
    /// Memory of unspecified content, for whoever overwrites all of it before anybody reads any.
    ///
    /// # Errors
    /// If the element type is not f32 or f64, or the memory cannot be had.
    pub fn unwritten(len: usize, dtype: DType, device: &Device) -> Result<Self> {
        if device.is_cpu() { Ok(Self(unwritten_flat(len, dtype)?)) } else { Self::zeros(len, dtype, device) }
    }

    /// Memory of zeros.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn zeros(len: usize, dtype: DType, device: &Device) -> Result<Self> {
        Ok(Self(Tensor::zeros(len, dtype, device)?))
    }

    /// Takes a tensor of one dimension over, without copying its elements.
    ///
    /// # Errors
    /// If it has another number of dimensions, or its elements do not follow each other.
    pub fn from_tensor(flat: Tensor) -> Result<Self> {
        if flat.dims().len() != 1 || !flat.is_contiguous() {
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
        Ok(Self(self.0.narrow(0, range.start, range.len())?))
    }

    /// Elements `range` as a tensor of `shape`, in the same memory.
    ///
    /// # Errors
    /// If the range does not lie inside, or the shape has another number of elements.
    pub fn view(&self, range: Range<usize>, shape: &Shape) -> Result<Tensor> {
        Ok(self.0.narrow(0, range.start, range.len())?.reshape(shape)?)
    }

    /// All elements as a tensor of one dimension, in the same memory.
    pub fn tensor(&self) -> &Tensor {
        &self.0
    }

    /// All elements as an array of one dimension, in the same memory.
    pub fn array(&self) -> Array {
        self.0.clone().into()
    }

    /// Runs `f` on the elements, open for writing on the host; all clones and ranges see the change.
    ///
    /// # Errors
    /// If the memory is not the host's, or the element type is not f32 or f64.
    pub fn with_slice_mut<R>(&self, f: impl FnOnce(HostSliceMut<'_>) -> R) -> Result<R> {
        with_host_slice_mut(&self.0, f)
    }

    /// Overwrites the elements by those of `source`.
    ///
    /// # Errors
    /// If `source` has another number of elements, or either is not on the host.
    pub fn copy_from(&self, source: &Self) -> Result<()> {
        copy_host(&self.0, &source.0)
    }

    /// A copy in memory of its own.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn copy(&self) -> Result<Self> {
        // candle's copy of a view would keep all that the view is a part of.
        Ok(Self(self.0.force_contiguous()?))
    }

    /// Makes elements `range` zero.
    pub(super) fn zero(&self, range: Range<usize>) -> Result<()> {
        storage::zero_in_place(&self.narrow(range)?.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_share_memory_and_copies_do_not() {
        let whole = FlatStorage::zeros(6, DType::F32, &Device::Cpu).expect("small");
        let part = whole.narrow(2..5).expect("inside");
        let copy = part.copy().expect("small");
        let ones = Tensor::ones(3, DType::F32, &Device::Cpu).map(FlatStorage);
        part.copy_from(&ones.expect("small")).expect("three elements");
        let values = |flat: &FlatStorage| flat.tensor().to_vec1::<f32>().expect("f32");
        assert_eq!(values(&whole), [0.0, 0.0, 1.0, 1.0, 1.0, 0.0]);
        assert_eq!((values(&copy), copy.bytes()), (vec![0.0; 3], 12));
        assert!(whole.narrow(5..7).is_err());
        let square = Tensor::zeros((2, 3), DType::F32, &Device::Cpu).expect("small");
        assert!(FlatStorage::from_tensor(square).is_err());
    }
}

//! Indices as arguments of ops: labels, token ids, positions.

use candle_core::{DType, Tensor};

use crate::backend::{Array, ArrayBackend};
use crate::{Result, TensorError};

/// Labels or ids: numbers of the host, which are copied to the op's device, or an array that is there already.
///
/// `into()` makes them from slices and vectors of u32, from tensors, and from arrays.
#[derive(Debug, Clone)]
pub struct Indices<'a>(Source<'a>);

#[derive(Debug, Clone)]
enum Source<'a> {
    Slice(&'a [u32]),
    Array(Array),
}

impl Indices<'_> {
    /// The number of indices.
    pub fn len(&self) -> usize {
        match &self.0 {
            Source::Slice(slice) => slice.len(),
            Source::Array(array) => array.elem_count(),
        }
    }

    /// True if there are no indices.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sizes of their dimensions.
    pub fn dims(&self) -> Vec<usize> {
        match &self.0 {
            Source::Slice(slice) => vec![slice.len()],
            Source::Array(array) => array.dims().to_vec(),
        }
    }

    /// Returns an array of u32 for `backend`.
    ///
    /// # Errors
    /// If they cannot be converted to u32.
    pub(crate) fn on(&self, op: &'static str, backend: &dyn ArrayBackend) -> Result<Array> {
        match &self.0 {
            Source::Slice(slice) => {
                Ok(backend.from_host(&Tensor::from_slice(slice, slice.len(), &candle_core::Device::Cpu)?)?)
            }
            Source::Array(array) if array.is_host() => {
                Ok(backend.from_host(&array.host(op)?.to_dtype(DType::U32)?.contiguous()?)?)
            }
            Source::Array(array) if array.dtype() == DType::U32 => Ok(array.clone()),
            Source::Array(array) => Err(TensorError::dtype(op, array.dtype())),
        }
    }
}

impl<'a> From<&'a [u32]> for Indices<'a> {
    fn from(slice: &'a [u32]) -> Self {
        Self(Source::Slice(slice))
    }
}

impl<'a> From<&'a Vec<u32>> for Indices<'a> {
    fn from(slice: &'a Vec<u32>) -> Self {
        Self(Source::Slice(slice))
    }
}

impl<'a, const N: usize> From<&'a [u32; N]> for Indices<'a> {
    fn from(slice: &'a [u32; N]) -> Self {
        Self(Source::Slice(slice))
    }
}

impl From<&Tensor> for Indices<'_> {
    fn from(tensor: &Tensor) -> Self {
        Self(Source::Array(tensor.into()))
    }
}

impl From<&Array> for Indices<'_> {
    fn from(array: &Array) -> Self {
        Self(Source::Array(array.clone()))
    }
}

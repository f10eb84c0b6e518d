//! Places: where arrays are made.

use std::sync::Arc;

use candle_core::{DType, Shape, Tensor};

use super::{Array, ArrayBackend};
use crate::{Context, Result, host};

/// Where arrays are made that no other array says it for: on the host, which is what nobody needs to name, or on the device of
/// another back end. Clones are handles.
#[derive(Debug, Clone, Default)]
pub struct Place(Option<Arc<dyn ArrayBackend>>);

/// What memory is for, as a device's accounts count it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    /// Weights, whole or sharded.
    Parameters,
    /// Their gradients.
    Gradients,
    /// What optimizers and averages keep.
    Optimizer,
    /// Samples that stay for all of a training.
    #[cfg(feature = "cuda")]
    Data,
}

/// Runs `make`, whose arrays count as `kind` where a back end counts; outside of any they count as activations.
pub(crate) fn counted_as<R>(kind: MemoryKind, make: impl FnOnce() -> R) -> R {
    #[cfg(feature = "cuda")]
    {
        use phalanx_cuda::Kind;
        let kind = match kind {
            MemoryKind::Parameters => Kind::Parameters,
            MemoryKind::Gradients => Kind::Gradients,
            MemoryKind::Optimizer => Kind::Optimizer,
            MemoryKind::Data => Kind::Data,
        };
        phalanx_cuda::memory::counted_as(kind, make)
    }
    #[cfg(not(feature = "cuda"))]
    {
        let _ = kind;
        make()
    }
}

impl Place {
    /// The host.
    pub fn host() -> Self {
        Self(None)
    }

    /// The device of a back end.
    pub fn device(backend: Arc<dyn ArrayBackend>) -> Self {
        Self(Some(backend))
    }

    /// Whether it is the host.
    pub fn is_host(&self) -> bool {
        self.0.is_none()
    }

    /// The back end that computes there: on the host `context`.
    pub fn backend<'a>(&'a self, context: &'a Context) -> &'a dyn ArrayBackend {
        match &self.0 {
            Some(backend) => backend.as_ref(),
            None => context,
        }
    }

    /// Elements of the host, there: the tensor itself, or a copy of it on the device.
    ///
    /// # Errors
    /// The back end's.
    pub fn put(&self, tensor: &Tensor) -> Result<Array> {
        match &self.0 {
            Some(backend) => backend.from_host(tensor),
            None => Ok(tensor.into()),
        }
    }

    /// Flat memory of unspecified content, for whoever overwrites all of it before anybody reads any.
    ///
    /// # Errors
    /// If the element type is not f32 or f64, or the memory cannot be had.
    pub fn unwritten_flat(&self, len: usize, dtype: DType) -> Result<Array> {
        match &self.0 {
            Some(backend) => backend.unwritten(&Shape::from(len), dtype),
            None => Ok(host::unwritten_flat(len, dtype)?.into()),
        }
    }

    /// An array whose elements are all `value`.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn full(&self, value: f64, shape: impl Into<Shape>, dtype: DType) -> Result<Array> {
        let shape = shape.into();
        match &self.0 {
            Some(backend) => backend.full(value, &shape, dtype),
            None if value == 0.0 => Ok(Tensor::zeros(shape, dtype, &candle_core::Device::Cpu)?.into()),
            None => Ok(Tensor::full(value, shape, &candle_core::Device::Cpu)?.to_dtype(dtype)?.into()),
        }
    }
}

//! The device that new arrays are made on.

use std::sync::Arc;

use candle_core::{DType, Shape, Tensor};

use super::{Array, ArrayBackend};
use crate::{Context, Result, host};

/// The host, or the device of another back end. It decides where arrays are made that do not follow another array.
/// Clones are handles.
#[derive(Debug, Clone, Default)]
pub struct ComputeDevice(Option<Arc<dyn ArrayBackend>>);

impl ComputeDevice {
    /// The host.
    pub fn host() -> Self {
        Self(None)
    }

    /// The device of a back end.
    pub fn of(backend: Arc<dyn ArrayBackend>) -> Self {
        Self(Some(backend))
    }

    /// True for the host.
    pub fn is_host(&self) -> bool {
        self.0.is_none()
    }

    /// False if arrays there have shapes and no numbers ([`super::Outlines`]).
    pub fn has_numbers(&self) -> bool {
        self.0.as_ref().is_none_or(|backend| backend.has_numbers())
    }

    /// The back end that computes there; on the host `context`.
    pub fn backend<'a>(&'a self, context: &'a Context) -> &'a dyn ArrayBackend {
        match &self.0 {
            Some(backend) => backend.as_ref(),
            None => context,
        }
    }

    /// Puts a tensor of the host there: returns the tensor itself, or a copy on the device.
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn put(&self, tensor: &Tensor) -> Result<Array> {
        match &self.0 {
            Some(backend) => backend.from_host(tensor),
            None => Ok(tensor.into()),
        }
    }

    /// Allocates flat memory of unspecified contents. The caller must write every element before reading one.
    ///
    /// # Errors
    /// If the element type is not f32 or f64, or memory cannot be allocated.
    pub fn unwritten_flat(&self, len: usize, dtype: DType) -> Result<Array> {
        match &self.0 {
            Some(backend) => backend.unwritten(&Shape::from(len), dtype),
            None => Ok(host::unwritten_flat(len, dtype)?.into()),
        }
    }

    /// Makes an array whose elements are all `value`.
    ///
    /// # Errors
    /// If memory cannot be allocated.
    pub fn full(&self, value: f64, shape: impl Into<Shape>, dtype: DType) -> Result<Array> {
        let shape = shape.into();
        match &self.0 {
            Some(backend) => backend.full(value, &shape, dtype),
            None if value == 0.0 => Ok(Tensor::zeros(shape, dtype, &candle_core::Device::Cpu)?.into()),
            None => Ok(Tensor::full(value, shape, &candle_core::Device::Cpu)?.to_dtype(dtype)?.into()),
        }
    }
}

//! Buffers: arrays of a model's state that are not learned, such as running statistics.

use std::sync::{Arc, PoisonError, RwLock};

use candle_core::{Shape, Tensor};

use crate::backend::Array;
use crate::{Result, TensorError};

/// A named array that is saved with the model and not updated by an optimizer. Clones are handles.
#[derive(Debug, Clone)]
pub struct Buffer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    value: RwLock<Array>,
    is_shared: bool,
}

impl Buffer {
    pub(super) fn new(name: String, value: Array, is_shared: bool) -> Self {
        Self(Arc::new(Inner { name, value: RwLock::new(value), is_shared }))
    }

    /// The name in the reference state dict.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// True if every rank with samples of a step updates it identically ([`super::Scope::shared_buffer`]).
    pub fn is_shared(&self) -> bool {
        self.0.is_shared
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.array().shape().clone()
    }

    /// The current value.
    pub fn array(&self) -> Array {
        self.0.value.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the current value on the host, copied if it is on a device.
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn to_host(&self) -> Result<Tensor> {
        self.array().to_host()
    }

    /// Replaces the value with a tensor, converted to the buffer's element type and copied to its device.
    ///
    /// # Errors
    /// If the shape differs.
    pub fn set(&self, value: &Tensor) -> Result<()> {
        let current = self.array();
        let value = value.to_dtype(current.dtype())?;
        self.set_array(current.alongside(&value)?)
    }

    /// Replaces the value with another array of the element type.
    ///
    /// # Errors
    /// If the shape or the element type differs.
    pub fn set_array(&self, value: Array) -> Result<()> {
        const OP: &str = "set buffer";
        let mut current = self.0.value.write().unwrap_or_else(PoisonError::into_inner);
        if current.shape() != value.shape() {
            return Err(TensorError::unequal(OP, current.shape(), value.shape()));
        }
        if current.dtype() != value.dtype() {
            return Err(TensorError::dtype(OP, value.dtype()));
        }
        *current = value;
        Ok(())
    }
}

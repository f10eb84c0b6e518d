//! Buffers: tensors that belong to a model's state but are not learned, such as running statistics.

use std::sync::{Arc, PoisonError, RwLock};

use candle_core::{Shape, Tensor};

use crate::{Result, TensorError};

/// A named tensor that is saved with the model and never seen by an optimizer. Clones are handles.
#[derive(Debug, Clone)]
pub struct Buffer(Arc<(String, RwLock<Tensor>)>);

impl Buffer {
    pub(super) fn new(name: String, value: Tensor) -> Self {
        Self(Arc::new((name, RwLock::new(value))))
    }

    /// The name in the reference state dict.
    pub fn name(&self) -> &str {
        &self.0.0
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.tensor().shape().clone()
    }

    /// The current value.
    pub fn tensor(&self) -> Tensor {
        self.0.1.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the value.
    ///
    /// # Errors
    /// If the shape differs.
    pub fn set(&self, value: &Tensor) -> Result<()> {
        let mut current = self.0.1.write().unwrap_or_else(PoisonError::into_inner);
        if current.shape() != value.shape() {
            return Err(TensorError::unequal("set buffer", current.shape(), value.shape()));
        }
        *current = value.to_dtype(current.dtype())?.to_device(current.device())?;
        Ok(())
    }
}

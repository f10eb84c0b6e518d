//! Buffers: arrays of a model's state that are not learned, such as running statistics.

use std::sync::{Arc, PoisonError, RwLock};

use candle_core::{Shape, Tensor};

use super::Portion;
use crate::backend::Array;
use crate::{Result, TensorError};

/// The part of a buffer that a rank has.
#[derive(Debug, Default)]
pub(super) struct BufferPart {
    /// None if it is all.
    pub(super) portion: Option<Arc<Portion>>,
    /// The stages of a pipeline that hold it, if it is several.
    pub(super) stages: Arc<[usize]>,
}

/// A named array that is saved with the model and not updated by an optimizer. Clones are handles.
#[derive(Debug, Clone)]
pub struct Buffer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    value: RwLock<Array>,
    /// The portion that this rank has; none if it has the whole buffer.
    portion: Option<Arc<Portion>>,
    is_shared: bool,
    /// The stages of a pipeline that hold it, if it is several.
    stages: Arc<[usize]>,
}

impl Buffer {
    /// Makes a buffer that `part` of it is here.
    pub(super) fn new(name: String, value: Array, part: BufferPart, is_shared: bool) -> Self {
        let BufferPart { portion, stages } = part;
        Self(Arc::new(Inner { name, value: RwLock::new(value), portion, is_shared, stages }))
    }

    /// The stages of a pipeline that hold it, if there are several: the values are equal, and the first one saves them.
    pub fn stages(&self) -> &[usize] {
        &self.0.stages
    }

    /// The name in the reference state dict.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// True if every rank with samples of a step updates it identically ([`super::Scope::shared_buffer`]).
    pub fn is_shared(&self) -> bool {
        self.0.is_shared
    }

    /// The shape of what this rank has.
    pub fn shape(&self) -> Shape {
        self.array().shape().clone()
    }

    /// The portion that this rank has where layers are cut over ranks; `None` if it has the whole buffer.
    pub fn portion(&self) -> Option<&Arc<Portion>> {
        self.0.portion.as_ref()
    }

    /// The shape of the whole buffer.
    pub fn whole_shape(&self) -> Shape {
        self.portion().map_or_else(|| self.shape(), |portion| portion.whole().clone())
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
        Ok(self.array().to_host()?)
    }

    /// Replaces the value with a tensor, converted to the buffer's element type and copied to its device. Of a whole buffer the portion
    /// is cut out.
    ///
    /// # Errors
    /// If the shape differs.
    pub fn set(&self, value: &Tensor) -> Result<()> {
        let current = self.array();
        let value = value.to_dtype(current.dtype())?;
        let value = match self.portion().filter(|portion| portion.whole() == value.shape()) {
            Some(portion) => portion.cut(&value)?,
            None => value,
        };
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

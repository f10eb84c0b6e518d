//! Arrays without numbers: a pass over them finds shapes, types, memory and placements, and computes nothing.
//!
//! A model on the device [`Outlines::device`] runs as on any other device. Shapes that do not match are errors, memory is counted, and an
//! `OutlineGroup` of `phalanx-tensor` plays the other ranks, so that one process checks the layers of any rank of any mesh. An array
//! that was copied from the host keeps its numbers until it is written to, such as labels and settings; reading any other is an error.

mod accounts;
mod array;
mod attention;
mod batch_norms;
mod convolutions;
mod elementwise;
mod gated;
mod images;
mod layerwise;
mod lookups;
mod losses;
mod memory;
mod norms;
mod pooling;
mod products;
mod random;
mod rotary;
mod shapes;
mod updates;

pub use accounts::OutlineUsage;
pub use array::OutlineArray;

use std::sync::Arc;

use candle_core::{DType, Shape};

use self::accounts::Accounts;
use super::{Array, ArrayBackend, ComputeDevice};
use crate::{ArrayError, Result};

/// The back end of arrays without numbers. Clones share the account of memory.
#[derive(Debug, Clone, Default)]
pub struct Outlines(Arc<Accounts>);

impl Outlines {
    /// The name in errors.
    pub const NAME: &str = "an outline";

    /// Makes a back end with an account of its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// The device on which new arrays have no numbers.
    pub fn device(&self) -> ComputeDevice {
        ComputeDevice::of(Arc::new(self.clone()))
    }

    /// The memory that arrays would have now, and had at most.
    pub fn usage(&self) -> OutlineUsage {
        self.0.usage()
    }

    /// Answers reads of numbers with zeros from now on, or with an error again: to find out what a computation does after it has read
    /// some.
    pub fn assume_zeros(&self, assumes: bool) {
        self.0.assume_zeros(assumes);
    }

    /// Makes an array of a shape and type.
    pub fn of(&self, shape: &Shape, dtype: DType) -> Array {
        self.array(shape.clone(), dtype)
    }

    /// Makes an array in memory of its own.
    fn array(&self, shape: impl Into<Shape>, dtype: DType) -> Array {
        let shape = shape.into();
        let memory = self.0.hold(crate::storage::bytes_of(shape.elem_count(), dtype));
        Array::of_device(OutlineArray::new(self.clone(), memory, shape, dtype))
    }

    /// Makes an array of the shape of another one.
    fn like(&self, array: &Array, dtype: DType) -> Array {
        self.array(array.shape().clone(), dtype)
    }
}

impl ArrayBackend for Outlines {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn has_numbers(&self) -> bool {
        false
    }
}

/// Refuses an array that does not have this number of elements.
fn expect_len(op: &'static str, array: &Array, len: usize) -> Result<()> {
    match array.elem_count() == len {
        true => Ok(()),
        false => Err(ArrayError::shape(op, format!("{:?} has not {len} elements", array.shape()))),
    }
}

/// Refuses arrays of unequal numbers of elements.
fn expect_equal(op: &'static str, array: &Array, others: &[&Array]) -> Result<()> {
    others.iter().try_for_each(|other| expect_len(op, other, array.elem_count()))
}

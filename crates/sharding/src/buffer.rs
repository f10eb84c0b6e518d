//! Flat tensors as buffers that the communication thread works on in place.

use std::ops::Range;

use candle_core::Tensor;
use phalanx_collectives::{BoxError, DType, FlatBuffer, SliceMut};
use phalanx_tensor::host::{HostSliceMut, copy_host, with_host_slice_mut};

/// A contiguous CPU tensor. Clones of a tensor share their storage, so nothing is copied in or out.
#[derive(Debug)]
pub(crate) struct TensorBuffer(pub(crate) Tensor);

impl FlatBuffer for TensorBuffer {
    fn dtype(&self) -> DType {
        // Units are f32 or f64; any other type fails when the slice is opened, with its name.
        if self.0.dtype() == candle_core::DType::F64 { DType::F64 } else { DType::F32 }
    }

    fn len(&self) -> usize {
        self.0.elem_count()
    }

    fn with_slice_mut(&mut self, f: &mut dyn FnMut(SliceMut<'_>)) -> Result<(), BoxError> {
        with_host_slice_mut(&self.0, |slice| match slice {
            HostSliceMut::F32(values) => f(SliceMut::F32(values)),
            HostSliceMut::F64(values) => f(SliceMut::F64(values)),
        })?;
        Ok(())
    }
}

/// A tensor whose elements `range` are moved to or from `part`, beside the operation and on its thread.
#[derive(Debug)]
pub(crate) struct PartBuffer {
    pub(crate) whole: Tensor,
    pub(crate) part: Tensor,
    pub(crate) range: Range<usize>,
    pub(crate) way: Way,
}

/// When the part is copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Into the whole before the operation: what this rank gives to a gather.
    Before,
    /// Out of the whole after the operation: what this rank gets of a reduction.
    After,
}

impl FlatBuffer for PartBuffer {
    fn dtype(&self) -> DType {
        if self.whole.dtype() == candle_core::DType::F64 { DType::F64 } else { DType::F32 }
    }

    fn len(&self) -> usize {
        self.whole.elem_count()
    }

    fn with_slice_mut(&mut self, f: &mut dyn FnMut(SliceMut<'_>)) -> Result<(), BoxError> {
        let place = self.whole.narrow(0, self.range.start, self.range.len())?;
        if self.way == Way::Before {
            copy_host(&place, &self.part)?;
        }
        with_host_slice_mut(&self.whole, |slice| match slice {
            HostSliceMut::F32(values) => f(SliceMut::F32(values)),
            HostSliceMut::F64(values) => f(SliceMut::F64(values)),
        })?;
        if self.way == Way::After {
            copy_host(&self.part, &place)?;
        }
        Ok(())
    }
}

//! Flat tensors as buffers that the communication thread works on in place.

use candle_core::Tensor;
use phalanx_collectives::{BoxError, DType, FlatBuffer, SliceMut};
use phalanx_tensor::host::{HostSliceMut, with_host_slice_mut};

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

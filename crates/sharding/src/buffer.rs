//! Flat memory as a buffer that the communication thread works on in place.

use phalanx_collectives::{BoxError, DType, FlatBuffer, SliceMut};
use phalanx_tensor::FlatStorage;
use phalanx_tensor::host::HostSliceMut;

/// Flat memory. Clones share it, so nothing is copied in or out.
#[derive(Debug)]
pub(crate) struct InPlace(pub(crate) FlatStorage);

impl FlatBuffer for InPlace {
    fn dtype(&self) -> DType {
        // Parameters are f32 or f64; any other type fails when the slice is opened, with its name.
        if self.0.dtype() == candle_core::DType::F64 { DType::F64 } else { DType::F32 }
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn with_slice_mut(&mut self, f: &mut dyn FnMut(SliceMut<'_>)) -> Result<(), BoxError> {
        self.0.with_slice_mut(|slice| match slice {
            HostSliceMut::F32(values) => f(SliceMut::F32(values)),
            HostSliceMut::F64(values) => f(SliceMut::F64(values)),
        })?;
        Ok(())
    }
}

//! Flat memory as a buffer that operations between ranks work on in place.

use phalanx_collectives::{BoxError, DType, DeviceMut, FlatBuffer, SliceMut};
use phalanx_tensor::host::HostSliceMut;
use phalanx_tensor::{Array, FlatStorage, Result, TensorError};

/// Flat memory, of the host or of a GPU. Clones of it share it, so nothing is copied in or out.
#[derive(Debug)]
pub struct InPlace {
    flat: FlatStorage,
    dtype: DType,
    /// As collectives know it, if it lies on a GPU.
    #[cfg(feature = "cuda")]
    lent: Option<Box<phalanx_tensor::backend::LibrarySlice>>,
}

impl InPlace {
    /// # Errors
    /// If the element type is not one that travels.
    pub fn new(flat: FlatStorage) -> Result<Self> {
        let dtype = match flat.dtype() {
            candle_core::DType::F32 => DType::F32,
            candle_core::DType::F64 => DType::F64,
            candle_core::DType::BF16 => DType::BF16,
            candle_core::DType::F16 => DType::F16,
            candle_core::DType::U8 => DType::U8,
            other => {
                let what = format!("elements of {}; floating-point numbers and bytes travel", other.as_str());
                return Err(TensorError::unsupported("an operation between ranks", what));
            }
        };
        Ok(Self {
            #[cfg(feature = "cuda")]
            lent: flat.lend()?.map(Box::new),
            flat,
            dtype,
        })
    }

    /// Memory that is being filled from the host ([`FlatStorage::begin_upload_from`]): operations on it begin when that is done, and what
    /// is computed does not wait.
    ///
    /// # Errors
    /// If the element type is not one that travels.
    pub fn moving_in(flat: FlatStorage) -> Result<Self> {
        #[cfg(feature = "cuda")]
        let lent = flat.lend_moving_in()?.map(Box::new);
        Ok(Self {
            #[cfg(feature = "cuda")]
            lent,
            ..Self::new(flat)?
        })
    }

    /// Memory that a device's codecs use: operations on it come after what those were given, and before what they are given next.
    ///
    /// # Errors
    /// If the element type is not one that travels.
    pub fn of_codecs(flat: FlatStorage) -> Result<Self> {
        #[cfg(feature = "cuda")]
        let lent = flat.lend_to_codecs()?.map(Box::new);
        Ok(Self {
            #[cfg(feature = "cuda")]
            lent,
            ..Self::new(flat)?
        })
    }

    /// The memory.
    pub fn flat(&self) -> &FlatStorage {
        &self.flat
    }

    /// The elements of an array, one after the other.
    ///
    /// # Errors
    /// If they do not lie so, or their type is not one that travels.
    pub fn of(array: &Array) -> Result<Self> {
        Self::new(FlatStorage::new(array.reshape(array.elem_count())?)?)
    }
}

impl FlatBuffer for InPlace {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn len(&self) -> usize {
        self.flat.len()
    }

    fn with_slice_mut(&mut self, f: &mut dyn FnMut(SliceMut<'_>)) -> std::result::Result<(), BoxError> {
        self.flat.with_slice_mut(|slice| match slice {
            HostSliceMut::F32(values) => f(SliceMut::F32(values)),
            HostSliceMut::F64(values) => f(SliceMut::F64(values)),
        })?;
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn device(&mut self) -> Option<DeviceMut<'_>> {
        let lent = self.lent.as_mut()?;
        let compute = lent.compute().clone();
        let issue = lent.flush_hook();
        Some(DeviceMut::of_bytes(lent.bytes(), self.dtype, &compute).issuing(issue))
    }

    #[cfg(not(feature = "cuda"))]
    fn device(&mut self) -> Option<DeviceMut<'_>> {
        None
    }
}

/// Opens flat memory of f32.
///
/// # Errors
/// If it is a device's, or of another element type.
pub fn with_singles<R>(flat: &FlatStorage, f: impl FnOnce(&mut [f32]) -> R) -> Result<R> {
    let opened = flat.with_slice_mut(|slice| match slice {
        HostSliceMut::F32(values) => Some(f(values)),
        HostSliceMut::F64(_) => None,
    })?;
    let what = || "elements other than f32".to_owned();
    opened.ok_or_else(|| TensorError::unsupported("flat memory", what()))
}

//! Buffers for the communication thread.

mod coalesced;
#[cfg(feature = "nccl")]
mod device;
#[cfg(not(feature = "nccl"))]
mod no_device;

pub use coalesced::Coalesced;
#[cfg(feature = "nccl")]
pub use device::DeviceMut;
#[cfg(not(feature = "nccl"))]
pub use no_device::DeviceMut;

use crate::dtype::{DType, Element};
use crate::error::BoxError;
use crate::shared::Region;

/// A buffer's elements, open for writing.
#[derive(Debug)]
pub enum SliceMut<'a> {
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// 64-bit floats.
    F64(&'a mut [f64]),
    /// 16-bit floats.
    F16(&'a mut [half::f16]),
    /// bf16 floats.
    BF16(&'a mut [half::bf16]),
    /// 32-bit integers.
    I32(&'a mut [i32]),
    /// 64-bit integers.
    I64(&'a mut [i64]),
    /// Bytes.
    U8(&'a mut [u8]),
}

/// Runs the same code on a [`SliceMut`] of any type.
macro_rules! on_slice {
    ($slice:expr, |$values:ident| $run:expr) => {
        match $slice {
            $crate::SliceMut::F32($values) => $run,
            $crate::SliceMut::F64($values) => $run,
            $crate::SliceMut::F16($values) => $run,
            $crate::SliceMut::BF16($values) => $run,
            $crate::SliceMut::I32($values) => $run,
            $crate::SliceMut::I64($values) => $run,
            $crate::SliceMut::U8($values) => $run,
        }
    };
}
pub(crate) use on_slice;

impl SliceMut<'_> {
    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F64(_) => DType::F64,
            Self::F16(_) => DType::F16,
            Self::BF16(_) => DType::BF16,
            Self::I32(_) => DType::I32,
            Self::I64(_) => DType::I64,
            Self::U8(_) => DType::U8,
        }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        on_slice!(self, |values| values.len())
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reborrows this slice for a shorter time.
    pub fn reborrow(&mut self) -> SliceMut<'_> {
        on_slice!(self, |values| slice_mut(values))
    }

    /// Returns the elements as a slice of their type.
    pub(crate) fn typed<T: Element>(&mut self) -> &mut [T] {
        on_slice!(self, |values| bytemuck::cast_slice_mut(values))
    }
}

/// Flat typed memory that may be reduced on another thread. It need not be a `Vec`: it can be a tensor's storage behind a lock,
/// memory shared between processes, or GPU memory.
pub trait FlatBuffer: Send + 'static {
    /// Returns the element type.
    fn dtype(&self) -> DType;

    /// Returns the number of elements.
    fn len(&self) -> usize;

    /// True if there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Opens the elements for writing while `f` runs.
    ///
    /// # Errors
    /// If the memory cannot be reached from the host.
    fn with_slice_mut(&mut self, f: &mut dyn FnMut(SliceMut<'_>)) -> Result<(), BoxError>;

    /// Returns the elements in GPU memory, if the buffer is there. Operations then work on them in place, and never open them on
    /// the host. Only a communicator over NCCL can.
    fn device(&mut self) -> Option<DeviceMut<'_>> {
        None
    }

    /// Returns the buffer's place in memory that all ranks map; only for buffers that a communicator allocates.
    #[doc(hidden)]
    fn region(&self) -> Option<&Region> {
        None
    }

    /// Called when an operation on the buffer has failed.
    #[doc(hidden)]
    fn withdraw(&mut self) {}
}

/// Opens a slice of a known type as [`SliceMut`].
pub(crate) fn slice_mut<T: Element>(values: &mut [T]) -> SliceMut<'_> {
    // The casts are between equal types, so they neither fail nor copy.
    match T::DTYPE {
        DType::F32 => SliceMut::F32(bytemuck::cast_slice_mut(values)),
        DType::F64 => SliceMut::F64(bytemuck::cast_slice_mut(values)),
        DType::F16 => SliceMut::F16(bytemuck::cast_slice_mut(values)),
        DType::BF16 => SliceMut::BF16(bytemuck::cast_slice_mut(values)),
        DType::I32 => SliceMut::I32(bytemuck::cast_slice_mut(values)),
        DType::I64 => SliceMut::I64(bytemuck::cast_slice_mut(values)),
        DType::U8 => SliceMut::U8(bytemuck::cast_slice_mut(values)),
    }
}

/// Containers of contiguous elements are buffers.
macro_rules! flat {
    ([$($generics:tt)*] $type:ty) => {
        impl<$($generics)*> FlatBuffer for $type {
            fn dtype(&self) -> DType {
                T::DTYPE
            }

            fn len(&self) -> usize {
                <[T]>::len(self)
            }

            fn with_slice_mut(&mut self, f: &mut dyn FnMut(SliceMut<'_>)) -> Result<(), BoxError> {
                f(slice_mut(&mut self[..]));
                Ok(())
            }
        }
    };
}

impl<B: FlatBuffer + ?Sized> FlatBuffer for Box<B> {
    fn dtype(&self) -> DType {
        (**self).dtype()
    }

    fn len(&self) -> usize {
        (**self).len()
    }

    fn with_slice_mut(&mut self, f: &mut dyn FnMut(SliceMut<'_>)) -> Result<(), BoxError> {
        (**self).with_slice_mut(f)
    }

    fn device(&mut self) -> Option<DeviceMut<'_>> {
        (**self).device()
    }

    fn region(&self) -> Option<&Region> {
        (**self).region()
    }

    fn withdraw(&mut self) {
        (**self).withdraw();
    }
}

flat!([T: Element] Vec<T>);
flat!([T: Element] [T]);
flat!([T: Element, const N: usize] [T; N]);

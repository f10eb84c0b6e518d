//! Device memory on its way to NCCL: which buffers may go there, and which part of them.

use std::marker::PhantomData;
use std::ops::Range;

use cudarc::driver::{
    CudaSlice, CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceRepr, SyncOnDrop,
};
use cudarc::nccl::NcclType;

use crate::dtype::{DType, Element};

/// A type of elements that GPUs and NCCL know: all that [`Element`] has.
pub trait DeviceElement: Element + DeviceRepr + NcclType {}

impl<T: Element + DeviceRepr + NcclType> DeviceElement for T {}

mod sealed {
    pub trait Sealed {}
}

impl<T> sealed::Sealed for CudaSlice<T> {}
impl<T> sealed::Sealed for CudaView<'_, T> {}
impl<T> sealed::Sealed for CudaViewMut<'_, T> {}

/// Device memory that an operation can read: a [`CudaSlice`] or a view of one.
// Sealed, because whoever implements `DevicePtr` could give any address.
pub trait DeviceSource<T>: DevicePtr<T> + sealed::Sealed {}

impl<T> DeviceSource<T> for CudaSlice<T> {}
impl<T> DeviceSource<T> for CudaView<'_, T> {}
impl<T> DeviceSource<T> for CudaViewMut<'_, T> {}

/// Device memory that an operation can write: a [`CudaSlice`] or a mutable view of one.
pub trait DeviceTarget<T>: DeviceSource<T> + DevicePtrMut<T> {}

impl<T> DeviceTarget<T> for CudaSlice<T> {}
impl<T> DeviceTarget<T> for CudaViewMut<'_, T> {}

/// Elements in device memory, to be read.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Span<'a> {
    address: u64,
    len: usize,
    dtype: DType,
    memory: PhantomData<&'a [u8]>,
}

/// Elements in device memory, to be written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct SpanMut<'a>(Span<'a>);

impl Span<'_> {
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn dtype(&self) -> DType {
        self.dtype
    }

    /// Some of the elements; panics where a slice would.
    pub(super) fn part(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} elements", self.len);
        let address = self.address + (range.start * self.dtype.size()) as u64;
        Self { address, len: range.len(), ..self }
    }
}

impl<'a> SpanMut<'a> {
    /// This memory, to be read: operations in place do both.
    pub(super) fn read(self) -> Span<'a> {
        self.0
    }

    pub(super) fn len(&self) -> usize {
        self.0.len
    }

    pub(super) fn part(self, range: Range<usize>) -> Self {
        Self(self.0.part(range))
    }

    /// Bytes as elements of another type; what does not fill one is left out.
    pub(super) fn of_type(self, dtype: DType) -> Self {
        let bytes = self.0.len * self.0.dtype.size();
        Self(Span { len: bytes / dtype.size(), dtype, ..self.0 })
    }
}

/// A buffer's elements for a reader on `stream`, which waits for whatever writes them elsewhere. What comes along notes the
/// end of the reading when it is dropped, after the operation was issued.
pub(super) fn lend<'a, T: DeviceElement>(
    buffer: &'a impl DeviceSource<T>,
    stream: &'a CudaStream,
) -> (Span<'a>, SyncOnDrop<'a>) {
    let (address, noted) = buffer.device_ptr(stream);
    (Span { address, len: buffer.len(), dtype: T::DTYPE, memory: PhantomData }, noted)
}

/// Lends a buffer to operations on a stream, to be written.
pub(super) fn lend_mut<'a, T: DeviceElement>(
    buffer: &'a mut impl DeviceTarget<T>,
    stream: &'a CudaStream,
) -> (SpanMut<'a>, SyncOnDrop<'a>) {
    let len = buffer.len();
    let (address, noted) = buffer.device_ptr_mut(stream);
    (SpanMut(Span { address, len, dtype: T::DTYPE, memory: PhantomData }), noted)
}

#[cfg(test)]
impl SpanMut<'static> {
    /// Memory that is not there, for tests of what is called with it.
    pub(super) fn imagined(address: u64, len: usize, dtype: DType) -> Self {
        Self(Span { address, len, dtype, memory: PhantomData })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_where_their_elements_are() {
        let all = SpanMut::imagined(1000, 10, DType::F32);
        let part = all.part(3..7).read();
        assert_eq!((part.address(), part.len(), part.dtype()), (1012, 4, DType::F32));
        let empty = all.part(10..10);
        assert_eq!((empty.read().address(), empty.len()), (1040, 0));
        let bytes = SpanMut::imagined(0, 19, DType::U8).of_type(DType::F64);
        assert_eq!((bytes.len(), bytes.read().dtype()), (2, DType::F64));
    }

    #[test]
    #[should_panic(expected = "of 10 elements")]
    fn a_part_lies_inside() {
        let _ = SpanMut::imagined(0, 10, DType::U8).part(3..11);
    }
}

//! Spans of device memory for NCCL.

use std::marker::PhantomData;
use std::ops::Range;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut, SyncOnDrop};

use crate::buffer::DeviceMut;
use crate::dtype::DType;

/// Elements in device memory, for reading.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Span<'a> {
    address: u64,
    len: usize,
    dtype: DType,
    memory: PhantomData<&'a [u8]>,
}

/// Elements in device memory, for writing.
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

    /// Returns some of the elements; panics like a slice.
    pub(super) fn part(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.len, "{range:?} of {} elements", self.len);
        let address = self.address + (range.start * self.dtype.size()) as u64;
        Self { address, len: range.len(), ..self }
    }
}

impl<'a> SpanMut<'a> {
    /// Returns this memory for reading: operations in place do both.
    pub(super) fn read(self) -> Span<'a> {
        self.0
    }

    pub(super) fn len(&self) -> usize {
        self.0.len
    }

    pub(super) fn part(self, range: Range<usize>) -> Self {
        Self(self.0.part(range))
    }

    /// Converts bytes to elements of another type; an incomplete last element is left out.
    pub(super) fn of_type(self, dtype: DType) -> Self {
        let bytes = self.0.len * self.0.dtype.size();
        Self(Span { len: bytes / dtype.size(), dtype, ..self.0 })
    }
}

/// Returns a buffer's elements for operations on `stream`. Dropping the guard after they were issued records their end, if cudarc
/// tracks it.
pub(super) fn lend<'a>(
    buffer: &'a mut DeviceMut<'_>,
    stream: &'a CudaStream,
) -> (SpanMut<'a>, SyncOnDrop<'a>) {
    let (len, dtype) = (buffer.len(), buffer.dtype());
    let (address, noted) = buffer.lend(stream);
    (SpanMut(Span { address, len, dtype, memory: PhantomData }), noted)
}

/// Returns bytes for operations on `stream`.
pub(super) fn lend_bytes<'a>(
    buffer: &'a mut CudaSlice<u8>,
    stream: &'a CudaStream,
) -> (SpanMut<'a>, SyncOnDrop<'a>) {
    let len = buffer.len();
    let (address, noted) = buffer.device_ptr_mut(stream);
    (SpanMut(Span { address, len, dtype: DType::U8, memory: PhantomData }), noted)
}

#[cfg(test)]
impl SpanMut<'static> {
    /// Memory that does not exist, for tests of callers.
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

//! Elements in device memory.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::CudaStream;

use super::accounts::Kind;
use super::block::Block;
use super::uses::{issue, issue_repeatable};
use crate::device::{Device, Stream, Work};
use crate::{Element, ElementType, GpuError, Result};

/// Work that its slices describe completely.
const PLAIN: Work<'static> = Work::Fixed(&|_| ());

/// Contiguous elements in device memory. Clones and views are handles of the same memory. It is freed when the last of them is
/// dropped and all streams have finished the work that uses it.
///
/// As with all device memory, concurrent writes through two handles are not prevented: order them by streams.
#[derive(Debug, Clone)]
pub struct Slice {
    block: Arc<Block>,
    /// The first byte.
    start: usize,
    len: usize,
    dtype: ElementType,
}

impl Slice {
    pub(super) fn whole(block: Arc<Block>, dtype: ElementType, len: usize) -> Self {
        Self { block, start: 0, len, dtype }
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the element type.
    pub fn dtype(&self) -> ElementType {
        self.dtype
    }

    /// Returns the size in bytes.
    pub fn bytes(&self) -> usize {
        self.len * self.dtype.size()
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        self.block.device()
    }

    /// Returns the same memory as bytes.
    pub(super) fn as_bytes(&self) -> Self {
        Self { len: self.bytes(), dtype: ElementType::U8, ..self.clone() }
    }

    /// Returns the purpose of the allocation.
    pub fn kind(&self) -> Kind {
        self.block.kind()
    }

    /// Returns true if both are in the same allocation.
    pub fn same_memory(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.block, &other.block)
    }

    /// Returns a view of a range of the elements, in the same memory.
    ///
    /// # Errors
    /// If the range exceeds the slice.
    pub fn view(&self, range: Range<usize>) -> Result<Self> {
        if range.start > range.end || range.end > self.len {
            let problem = format!("elements {range:?} of a slice of {}", self.len);
            return Err(GpuError::argument("view", problem));
        }
        let start = self.start + range.start * self.dtype.size();
        Ok(Self { block: self.block.clone(), start, len: range.len(), dtype: self.dtype })
    }

    pub(super) fn block(&self) -> &Arc<Block> {
        &self.block
    }

    pub(super) fn range(&self) -> Range<usize> {
        self.start..self.start + self.bytes()
    }

    /// Returns the address of the first element, for libraries and kernels.
    pub(crate) fn address(&self) -> u64 {
        self.block.memory().address(&self.range())
    }

    /// Sets every bit to zero, on a stream.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn zero_on(&self, stream: Stream) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let zero = |stream: &CudaStream| self.block.memory().zero(&self.range(), stream);
        match stream {
            Stream::Compute => issue_repeatable(self.device(), "zero", &[self], &PLAIN, zero),
            _ => issue(self.device(), stream, "zero", &[self], zero),
        }
    }

    /// Copies all elements of `from`, on a stream.
    ///
    /// # Errors
    /// If lengths, types or devices differ.
    pub fn copy_from_on(&self, from: &Self, stream: Stream) -> Result<()> {
        if (self.len, self.dtype) != (from.len, from.dtype) {
            let problem =
                format!("{} elements of {} copied to {} of {}", from.len, from.dtype, self.len, self.dtype);
            return Err(GpuError::argument("copy", problem));
        }
        if self.is_empty() {
            return Ok(());
        }
        let copy = |stream: &CudaStream| {
            self.block.memory().copy(&self.range(), from.block.memory(), from.start, stream)
        };
        match stream {
            Stream::Compute => issue_repeatable(self.device(), "copy", &[self, from], &PLAIN, copy),
            _ => issue(self.device(), stream, "copy", &[self, from], copy),
        }
    }

    /// Copies host elements to this slice, on a stream. They have been read when this returns.
    ///
    /// # Errors
    /// If lengths or types differ; [`GpuError::Capture`] while a graph is captured.
    pub fn upload_on<T: Element>(&self, from: &[T], stream: Stream) -> Result<()> {
        self.holds::<T>("upload", from.len())?;
        self.device().refuse_host_wait("a copy from the host", stream)?;
        issue(self.device(), stream, "upload", &[self], |stream| {
            self.block.memory().upload(&self.range(), bytemuck::cast_slice(from), stream)
        })
    }

    /// Copies the elements to the host in the order of a stream, and waits for them.
    ///
    /// # Errors
    /// If the type differs, or work that was issued before has failed; [`GpuError::Capture`] while a graph is captured.
    pub fn download_on<T: Element>(&self, stream: Stream) -> Result<Vec<T>> {
        self.holds::<T>("download", self.len)?;
        let mut values = vec![T::zeroed(); self.len];
        let to = bytemuck::cast_slice_mut(&mut values);
        self.device().refuse_host_wait("a download", stream)?;
        issue(self.device(), stream, "download", &[self], |stream| {
            self.block.memory().download(&self.range(), to, stream)
        })?;
        Ok(values)
    }

    pub(crate) fn holds<T: Element>(&self, function: &'static str, len: usize) -> Result<()> {
        if (self.len, self.dtype) == (len, T::TYPE) {
            return Ok(());
        }
        let problem = format!("{len} elements of {} for {} of {}", T::TYPE, self.len, self.dtype);
        Err(GpuError::argument(function, problem))
    }
}

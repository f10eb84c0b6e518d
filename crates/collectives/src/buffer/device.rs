//! Buffers in GPU memory.

use std::sync::Arc;

use cudarc::driver::{
    CudaContext, CudaSlice, CudaStream, CudaViewMut, DevicePtrMut, DeviceSlice, SyncOnDrop,
};

use super::{FlatBuffer, SliceMut};
use crate::dtype::{DType, Element};
use crate::error::BoxError;

/// GPU memory that an operation reads and writes.
// Private, because other implementations could return any address.
trait Memory {
    fn bytes(&self) -> usize;

    fn context(&self) -> &Arc<CudaContext>;

    fn lend<'s>(&'s mut self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>);
}

impl<T> Memory for CudaViewMut<'_, T> {
    fn bytes(&self) -> usize {
        self.len() * size_of::<T>()
    }

    fn context(&self) -> &Arc<CudaContext> {
        self.stream().context()
    }

    fn lend<'s>(&'s mut self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        self.device_ptr_mut(stream)
    }
}

/// A buffer's elements in GPU memory, and the stream that computes on them.
///
/// An operation begins after the work that was given to the stream before. Work given to it after
/// [`Handle::wait`](crate::Handle::wait), or after an operation without a handle, begins when the operation is over. The host waits
/// for neither.
pub struct DeviceMut<'a> {
    memory: Box<dyn Memory + 'a>,
    dtype: DType,
    compute: Arc<CudaStream>,
    issue: Option<Arc<dyn Fn() + Send + Sync>>,
}

impl std::fmt::Debug for DeviceMut<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceMut({} {} on GPU {})", self.len(), self.dtype.name(), self.gpu())
    }
}

impl<'a> DeviceMut<'a> {
    /// Wraps elements of a type that cudarc knows.
    pub fn new<T: Element>(memory: CudaViewMut<'a, T>, compute: &Arc<CudaStream>) -> Self {
        Self { memory: Box::new(memory), dtype: T::DTYPE, compute: compute.clone(), issue: None }
    }

    /// Wraps bytes as elements of `dtype`; an incomplete last element does not count.
    pub fn of_bytes(memory: CudaViewMut<'a, u8>, dtype: DType, compute: &Arc<CudaStream>) -> Self {
        Self { memory: Box::new(memory), dtype, compute: compute.clone(), issue: None }
    }

    /// Sets a function that submits work which the stream's user holds back. The thread that waits for an operation calls it before
    /// the stream waits too.
    #[must_use]
    pub fn issuing(self, issue: impl Fn() + Send + Sync + 'static) -> Self {
        Self { issue: Some(Arc::new(issue)), ..self }
    }

    #[cfg(feature = "nccl")]
    pub(crate) fn issue(&self) -> Option<Arc<dyn Fn() + Send + Sync>> {
        self.issue.clone()
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.memory.bytes() / self.dtype.size()
    }

    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the GPU's number, as the driver counts.
    pub fn gpu(&self) -> usize {
        self.memory.context().ordinal()
    }

    /// Returns the contexts of the memory and of the stream.
    pub(crate) fn contexts(&self) -> [&Arc<CudaContext>; 2] {
        [self.memory.context(), self.compute.context()]
    }

    /// Returns the stream that computes.
    pub(crate) fn compute(&self) -> &Arc<CudaStream> {
        &self.compute
    }

    /// Returns the address, for work on `stream`. Dropping the guard after the work was issued records its end, if cudarc tracks
    /// it.
    pub(crate) fn lend<'s>(&'s mut self, stream: &'s CudaStream) -> (u64, SyncOnDrop<'s>) {
        self.memory.lend(stream)
    }
}

/// Memory of cudarc, with the stream that it belongs to.
impl<T: Element> FlatBuffer for CudaSlice<T> {
    fn dtype(&self) -> DType {
        T::DTYPE
    }

    fn len(&self) -> usize {
        Self::len(self)
    }

    fn with_slice_mut(&mut self, _: &mut dyn FnMut(SliceMut<'_>)) -> Result<(), BoxError> {
        Err(format!("lies in the memory of GPU {}, where the host cannot open it", self.context().ordinal())
            .into())
    }

    fn device(&mut self) -> Option<DeviceMut<'_>> {
        let compute = self.stream().clone();
        Some(DeviceMut::new(self.as_view_mut(), &compute))
    }
}

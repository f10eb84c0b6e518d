//! Giving streams work that uses slices, so that memory outlives all that uses it, on whatever stream.

use cudarc::driver::CudaStream;

use super::slice::Slice;
use crate::device::{Device, Stream};
use crate::{GpuError, Result};

/// Gives a stream work that uses slices. Another stream than the computing one waits before for the slices' allocations, and
/// their memory is not freed before that stream is done; while a graph is captured the graph keeps it.
///
/// # Errors
/// [`GpuError::Argument`] if a slice is another GPU's; [`GpuError::Capture`] if another thread captures the stream; those of
/// `work`.
pub(crate) fn issue<R>(
    device: &Device,
    stream: Stream,
    action: &str,
    slices: &[&Slice],
    work: impl FnOnce(&CudaStream) -> Result<R>,
) -> Result<R> {
    issue_timed(device, stream, action, slices, work).map(|(result, _)| result)
}

/// [`issue`], with the time at which the stream is when the work is done.
pub(crate) fn issue_timed<R>(
    device: &Device,
    stream: Stream,
    action: &str,
    slices: &[&Slice],
    work: impl FnOnce(&CudaStream) -> Result<R>,
) -> Result<(R, u64)> {
    if slices.iter().any(|slice| !slice.device().is(device)) {
        return Err(GpuError::argument(action, "a slice of another GPU"));
    }
    let captured = device.admit(action, stream)?;
    for slice in slices {
        slice.block().enter(stream)?;
    }
    let (result, time) = device.counted(stream, || work(device.stream(stream)));
    // Some of the work may have been given even if there is an error.
    for slice in slices {
        slice.block().used(stream, time);
    }
    if captured {
        let capture = device.capture();
        for block in slices.iter().map(|slice| slice.block()).filter(|block| block.lender() != capture) {
            device.keep_in_capture(block);
        }
    }
    Ok((result?, time))
}

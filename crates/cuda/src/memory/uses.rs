//! Giving streams work that uses slices, so that memory outlives all that uses it, on whatever stream.

use std::hash::{DefaultHasher, Hash as _};

use cudarc::driver::CudaStream;

use super::slice::Slice;
use crate::device::{Device, Stream, Turn, Work};
use crate::driver::Kept;
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
    of_device(device, action, slices)?;
    device.flush()?;
    give(device, stream, action, slices, work)
}

/// Gives the computing stream work that uses slices, as [`issue`] does; in a replay it becomes part of a graph, or is part of one
/// already and is not issued again. `what` says which work it is, but for the slices.
///
/// # Errors
/// Those of [`issue`], and [`GpuError::Replay`] if other work was recorded in its place.
pub(crate) fn issue_repeatable(
    device: &Device,
    action: &str,
    slices: &[&Slice],
    what: &Work<'_>,
    work: impl FnOnce(&CudaStream) -> Result<()>,
) -> Result<()> {
    of_device(device, action, slices)?;
    let hash = |hasher: &mut DefaultHasher| {
        action.hash(hasher);
        for slice in slices {
            (slice.address(), slice.bytes(), slice.dtype()).hash(hasher);
        }
        if let Work::Fixed(rest) = what {
            rest(hasher);
        }
    };
    let what = match what {
        Work::Kernel(call) => &Work::Kernel(*call),
        Work::Fixed(_) => &Work::Fixed(&hash),
    };
    let hold = |held: &mut Vec<Kept>| {
        let others =
            slices.iter().map(|slice| slice.block()).filter(|block| block.lender() != device.scope());
        held.extend(others.map(|block| block.clone() as Kept));
    };
    let turn = device.turn(action, what, &hold)?;
    if turn == Turn::Known {
        return Ok(());
    }
    give(device, Stream::Compute, action, slices, work)?;
    match turn {
        Turn::Record => device.recorded(action, what),
        Turn::Issue | Turn::Known => Ok(()),
    }
}

fn of_device(device: &Device, action: &str, slices: &[&Slice]) -> Result<()> {
    match slices.iter().all(|slice| slice.device().is(device)) {
        true => Ok(()),
        false => Err(GpuError::argument(action, "a slice of another GPU")),
    }
}

fn give<R>(
    device: &Device,
    stream: Stream,
    action: &str,
    slices: &[&Slice],
    work: impl FnOnce(&CudaStream) -> Result<R>,
) -> Result<(R, u64)> {
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
        let scope = device.scope();
        for block in slices.iter().map(|slice| slice.block()).filter(|block| block.lender() != scope) {
            device.keep_in_capture(block);
        }
    }
    Ok((result?, time))
}

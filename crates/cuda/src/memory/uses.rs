//! Issuing of work that uses slices, on any stream, so that the memory outlives the work.

use std::hash::{DefaultHasher, Hash as _};

use cudarc::driver::CudaStream;

use super::slice::Slice;
use crate::device::{Device, ReplayAction, Stream, Work};
use crate::driver::KeepAlive;
use crate::{GpuError, Result};

/// Issues work that uses slices on a stream. A stream other than the compute stream first waits for the slices' allocations, and
/// their memory is not freed before that stream is done. A captured graph keeps the memory.
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

/// Works as [`issue`], and also returns the time of the stream after the work.
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

/// Issues work that uses slices on the compute stream, as [`issue`] does. In a replay it becomes part of a graph, or is part of
/// one already and is not issued again. `what` identifies the work, except for its slices.
///
/// # Errors
/// The errors of [`issue`], and [`GpuError::Replay`] if other work was recorded in its place.
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
    let hold = |held: &mut Vec<KeepAlive>| {
        let others = slices.iter().map(|slice| slice.block()).filter(|block| block.scope() != device.scope());
        held.extend(others.map(|block| block.clone() as KeepAlive));
    };
    let treatment = device.action_for(action, what, &hold)?;
    if treatment == ReplayAction::Skip {
        return Ok(());
    }
    give(device, Stream::Compute, action, slices, work)?;
    match treatment {
        ReplayAction::Record => device.record(action, what),
        ReplayAction::Issue | ReplayAction::Skip => Ok(()),
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
    // Some of the work may have been issued even if there is an error.
    for slice in slices {
        slice.block().used(stream, time);
    }
    if captured {
        let scope = device.scope();
        for block in slices.iter().map(|slice| slice.block()).filter(|block| block.scope() != scope) {
            device.keep_for_graph(block);
        }
    }
    Ok((result?, time))
}

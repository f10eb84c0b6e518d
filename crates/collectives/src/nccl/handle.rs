//! Operations under way on a GPU.

use std::sync::Arc;

use cudarc::driver::{CudaEvent, CudaStream};

use super::channel::Channel;
use crate::error::Result;

/// An operation of a [`super::DeviceCommunicator`] that was issued. Dropping it does not stop the operation.
///
/// Until one of [`DeviceHandle::wait`] and [`DeviceHandle::synchronize`], the content of the operation's buffers is
/// unspecified. What cudarc does with them meanwhile waits by itself, freeing them too; kernels that are launched with
/// their bare addresses do not.
#[derive(Debug)]
#[must_use = "what reads the result must wait for it"]
pub struct DeviceHandle {
    event: CudaEvent,
    channel: Arc<Channel>,
    operation: &'static str,
}

impl DeviceHandle {
    /// Everything that the channel was given so far.
    pub(super) fn after(channel: &Arc<Channel>, operation: &'static str) -> Result<Self> {
        Ok(Self { event: channel.record(operation)?, channel: channel.clone(), operation })
    }

    /// Makes a stream wait for the operation. The host does not wait, and so learns nothing of a failure: after one, the
    /// stream goes on with whatever is in the buffers, and the next operation of the communicator is an error.
    ///
    /// # Errors
    /// [`crate::CommError::Nccl`] if the driver fails.
    pub fn wait(&self, compute: &CudaStream) -> Result<()> {
        compute.wait(&self.event).map_err(|error| self.channel.driver(self.operation, error))
    }

    /// Whether the operation has ended well, without waiting.
    ///
    /// # Errors
    /// Those of [`DeviceHandle::synchronize`].
    pub fn is_done(&self) -> Result<bool> {
        self.channel.has_reached(&self.event, self.operation)
    }

    /// Waits on the host until the operation has ended.
    ///
    /// # Errors
    /// [`crate::CommError::PeerLost`] or [`crate::CommError::Aborted`] if the world broke meanwhile, also if that was after
    /// this operation; [`crate::CommError::Nccl`] if NCCL or the driver failed, or time is up.
    pub fn synchronize(&self) -> Result<()> {
        self.channel.finish(&self.event, self.operation)
    }
}

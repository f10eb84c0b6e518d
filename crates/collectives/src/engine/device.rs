//! Operations on buffers in the memory of a GPU, as a communicator sees them.
//!
//! They are issued on their caller's thread, in the order of the caller's program, and run when the GPU comes to them. Whether
//! all ranks have issued the same is found out beside, by [`Engine::agree`](super::Engine::agree) on the communication thread.

use std::ops::Range;
use std::sync::Arc;

use crate::buffer::DeviceMut;
use crate::error::Result;
use crate::operation::Tag;

/// Where a rank's part of the whole is.
pub(crate) enum Part<'a> {
    /// In the whole, as this crate cuts it.
    Chunk,
    /// In the whole, which has these parts, one a rank.
    Lengths(&'a [Range<usize>]),
    /// In a buffer of its own.
    Apart(DeviceMut<'a>),
}

/// What operations on a GPU are issued to.
pub(crate) trait DeviceQueue: Send + Sync {
    /// Whether the operation can be issued.
    ///
    /// # Errors
    /// [`CommError::Argument`](crate::CommError::Argument) if not; nothing is harmed.
    fn check(&self, tag: Tag, whole: &DeviceMut<'_>, part: &Part<'_>) -> Result<()>;

    /// Issues an operation that [`DeviceQueue::check`] has let pass, after what the computing streams were given. Operations that
    /// were issued before are done before.
    fn issue(
        self: Arc<Self>,
        tag: Tag,
        whole: DeviceMut<'_>,
        part: Part<'_>,
    ) -> Result<Box<dyn DeviceOperation>>;
}

/// An operation that was issued. Its buffers may not be freed before [`DeviceOperation::hand_over`].
pub(crate) trait DeviceOperation: Send {
    /// Bytes that leave this rank and that come to it.
    fn moved(&self) -> (u64, u64);

    /// Whether the GPU is done with it, well or not.
    fn is_done(&self) -> bool;

    /// Makes the computing streams wait for it. The host does not.
    ///
    /// # Errors
    /// That of the world, as far as it is known now.
    fn hand_over(&self) -> Result<()>;
}

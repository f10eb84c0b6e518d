//! Copies between a device and the host that run while the device computes.

use candle_core::Tensor;

use crate::Result;

/// A copy of elements to the host, which may not be finished yet.
#[must_use = "a copy that is never waited for was made for nothing"]
pub struct Download(DownloadState);

enum DownloadState {
    Ready(Tensor),
    Pending(Box<dyn FnOnce() -> Result<Tensor> + Send + Sync>),
}

impl Download {
    /// Elements that are on the host already.
    pub fn ready(elements: Tensor) -> Self {
        Self(DownloadState::Ready(elements))
    }

    /// Elements that `wait` waits for and returns.
    pub fn pending(wait: impl FnOnce() -> Result<Tensor> + Send + Sync + 'static) -> Self {
        Self(DownloadState::Pending(Box::new(wait)))
    }

    /// True if the elements were on the host from the start, so that [`Download::wait`] returns at once.
    pub fn is_ready(&self) -> bool {
        matches!(self.0, DownloadState::Ready(_))
    }

    /// Waits for the elements and returns them.
    ///
    /// # Errors
    /// Errors of the back end, also of work that was queued before the copy.
    pub fn wait(self) -> Result<Tensor> {
        match self.0 {
            DownloadState::Ready(elements) => Ok(elements),
            DownloadState::Pending(wait) => wait(),
        }
    }
}

impl std::fmt::Debug for Download {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.is_ready() { "ready" } else { "pending" };
        f.debug_tuple("Download").field(&state).finish()
    }
}

/// A copy of elements from the host to a device, which may not be finished yet.
#[must_use = "the device may use the elements only after `wait`"]
pub struct Upload(Option<Box<dyn FnOnce() -> Result<()> + Send>>);

impl Upload {
    /// A copy that is finished.
    pub fn ready() -> Self {
        Self(None)
    }

    /// A copy that device work queued after `order` waits for.
    pub fn pending(order: impl FnOnce() -> Result<()> + Send + 'static) -> Self {
        Self(Some(Box::new(order)))
    }

    /// Makes device work that is queued from now on wait for the copy. The host does not wait.
    ///
    /// # Errors
    /// Errors of the back end.
    pub fn wait(self) -> Result<()> {
        self.0.map_or(Ok(()), |order| order())
    }
}

impl std::fmt::Debug for Upload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.0.is_none() { "ready" } else { "pending" };
        f.debug_tuple("Upload").field(&state).finish()
    }
}

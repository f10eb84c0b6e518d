//! The work of a device's codecs on one sum, and the memory that it uses.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::DType;
use phalanx_tensor::backend::{DeviceCodecs, Upload};
use phalanx_tensor::{FlatStorage, Result, TensorError};

/// The stream on which a device's codecs run, concurrently with the stream that computes. Clones are handles of the same stream.
#[derive(Debug, Clone)]
pub struct CodecStream(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Memory on the device, which gives access to the device's codecs.
    of: FlatStorage,
    /// Memory that the work uses. It is kept, since freeing it earlier would wait for the work.
    held: Mutex<Vec<FlatStorage>>,
}

/// Work that a device runs. Computation sees the results after [`PendingWork::arrive`].
#[derive(Debug)]
pub struct PendingWork {
    done: Upload,
    _held: Vec<FlatStorage>,
}

impl CodecStream {
    /// Begins a stream whose work runs after all computation issued so far.
    ///
    /// # Errors
    /// [`phalanx_tensor::ArrayError::Unsupported`] if the memory is on the host, or the device has no codecs.
    pub fn begin(of: &FlatStorage) -> Result<Self> {
        let this = Self(Arc::new(Inner { of: of.clone(), held: Mutex::default() }));
        this.codecs()?.begin()?;
        Ok(this)
    }

    /// Returns the device's codecs.
    pub(crate) fn codecs(&self) -> Result<&dyn DeviceCodecs> {
        let what = || "memory of the host, or of a device that has no codecs".to_owned();
        let codecs = self.0.of.array().codecs();
        codecs.ok_or_else(|| TensorError::unsupported("a codec of a device", what()))
    }

    /// Allocates elements of unspecified value and keeps them until the work is done.
    pub(crate) fn room(&self, len: usize, dtype: DType) -> Result<FlatStorage> {
        Ok(self.hold(FlatStorage::new(self.codecs()?.room(len, dtype)?)?))
    }

    /// Keeps memory until the work is done.
    pub(crate) fn hold(&self, memory: FlatStorage) -> FlatStorage {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner).push(memory.clone());
        memory
    }

    /// Ends the stream and returns its work, with the memory that it uses.
    pub fn end(&self) -> Result<PendingWork> {
        let done = self.codecs()?.done()?;
        let held = std::mem::take(&mut *self.0.held.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(PendingWork { done, _held: held })
    }
}

impl PendingWork {
    /// Returns finished work, for codecs on the host.
    pub fn over() -> Self {
        Self { done: Upload::ready(), _held: Vec::new() }
    }

    /// Makes later computation wait for the work. The host does not wait.
    pub fn arrive(self) -> Result<()> {
        Ok(self.done.wait()?)
    }
}

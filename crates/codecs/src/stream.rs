//! A device's codecs at work on one sum: what they are given, and what they need until it is there.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::DType;
use phalanx_tensor::backend::{DeviceCodecs, Upload};
use phalanx_tensor::{FlatStorage, Result, TensorError};

/// The stream on which a device's codecs work while the device computes. Clones are handles of the same work.
#[derive(Debug, Clone)]
pub struct CodecStream(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// On the device.
    of: FlatStorage,
    /// Memory that is used until the work is done: freed before, it would have to be waited for.
    held: Mutex<Vec<FlatStorage>>,
}

/// Work that a device was given, on its way: what is computed finds it once it was told to arrive.
#[derive(Debug)]
pub struct PendingWork {
    done: Upload,
    _held: Vec<FlatStorage>,
}

impl CodecStream {
    /// Begins work after what was computed until now.
    ///
    /// # Errors
    /// [`TensorError::Unsupported`] if the memory is not that of a device which has codecs.
    pub fn begin(of: &FlatStorage) -> Result<Self> {
        let this = Self(Arc::new(Inner { of: of.clone(), held: Mutex::default() }));
        this.codecs()?.begin()?;
        Ok(this)
    }

    /// Returns the device's codecs.
    pub(crate) fn codecs(&self) -> Result<&dyn DeviceCodecs> {
        let what = || "memory of the host, or of a device that has no codecs".to_owned();
        let codecs = self.0.of.array().codecs();
        codecs.ok_or_else(|| TensorError::Unsupported { op: "a codec of a device", what: what() })
    }

    /// Elements of unspecified value, which are there until the work is done.
    pub(crate) fn room(&self, len: usize, dtype: DType) -> Result<FlatStorage> {
        Ok(self.hold(FlatStorage::new(self.codecs()?.room(len, dtype)?)?))
    }

    /// Keeps memory until the work is done.
    pub(crate) fn hold(&self, memory: FlatStorage) -> FlatStorage {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner).push(memory.clone());
        memory
    }

    /// All that was given.
    pub fn end(&self) -> Result<PendingWork> {
        let done = self.codecs()?.done()?;
        let held = std::mem::take(&mut *self.0.held.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(PendingWork { done, _held: held })
    }
}

impl PendingWork {
    /// Work of the host, which is over.
    pub fn over() -> Self {
        Self { done: Upload::ready(), _held: Vec::new() }
    }

    /// Makes later computation wait for the work. The host does not wait.
    pub fn arrive(self) -> Result<()> {
        self.done.wait()
    }
}

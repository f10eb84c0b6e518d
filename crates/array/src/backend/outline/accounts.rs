//! The account of the memory that arrays would have.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::backend::accounts::{MemoryKind, counted_kind};

/// Bytes of arrays, by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutlineUsage {
    /// Weights, whole or sharded.
    pub parameters: usize,
    /// Their gradients.
    pub gradients: usize,
    /// Everything else now: what is kept for backward, results on their way, and buffers.
    pub activations: usize,
    /// The most of everything else at a time.
    pub peak_activations: usize,
}

/// An account of memory.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    usage: Mutex<OutlineUsage>,
    /// True while reading answers with zeros.
    assumes_zeros: AtomicBool,
}

impl Accounts {
    fn lock(&self) -> MutexGuard<'_, OutlineUsage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn assume_zeros(&self, assumes: bool) {
        self.assumes_zeros.store(assumes, Ordering::Relaxed);
    }

    pub(super) fn assumes_zeros(&self) -> bool {
        self.assumes_zeros.load(Ordering::Relaxed)
    }

    pub(super) fn usage(&self) -> OutlineUsage {
        *self.lock()
    }

    /// Counts memory until it is dropped.
    pub(super) fn hold(self: &Arc<Self>, bytes: usize) -> Arc<OutlineMemory> {
        let kind = counted_kind();
        self.lock().add(kind, bytes);
        Arc::new(OutlineMemory { bytes, kind, is_written: AtomicBool::new(false), accounts: self.clone() })
    }
}

impl OutlineUsage {
    /// The bytes of a purpose; those of an optimizer count as everything else.
    fn of(&mut self, kind: Option<MemoryKind>) -> &mut usize {
        match kind {
            Some(MemoryKind::Parameters) => &mut self.parameters,
            Some(MemoryKind::Gradients) => &mut self.gradients,
            _ => &mut self.activations,
        }
    }

    fn add(&mut self, kind: Option<MemoryKind>, bytes: usize) {
        *self.of(kind) += bytes;
        self.peak_activations = self.peak_activations.max(self.activations);
    }
}

/// The memory of arrays that are views of each other.
#[derive(Debug)]
pub(super) struct OutlineMemory {
    bytes: usize,
    kind: Option<MemoryKind>,
    /// True if the numbers that were copied here are others now.
    is_written: AtomicBool,
    accounts: Arc<Accounts>,
}

impl OutlineMemory {
    /// Notes that numbers have changed.
    pub(super) fn write(&self) {
        self.is_written.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_written(&self) -> bool {
        self.is_written.load(Ordering::Relaxed)
    }
}

impl Drop for OutlineMemory {
    fn drop(&mut self) {
        *self.accounts.lock().of(self.kind) -= self.bytes;
    }
}

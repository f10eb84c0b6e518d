//! Purposes of memory in a device's accounts.

use std::cell::Cell;

/// The purpose of memory in a device's accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryKind {
    /// Weights, whole or sharded.
    Parameters,
    /// Their gradients.
    Gradients,
    /// Optimizer state and averages.
    Optimizer,
    /// Samples that stay for a whole training.
    #[cfg(feature = "cuda")]
    Data,
}

thread_local! {
    static KIND: Cell<Option<MemoryKind>> = const { Cell::new(None) };
}

/// The purpose that arrays of this thread count as; none for activations.
pub(super) fn counted_kind() -> Option<MemoryKind> {
    KIND.get()
}

/// Runs `make` and counts its arrays as `kind`, on back ends with accounts. Outside of such a call arrays count as
/// activations.
pub fn counted_as<R>(kind: MemoryKind, make: impl FnOnce() -> R) -> R {
    let before = KIND.replace(Some(kind));
    let made = counted_on_devices(kind, make);
    KIND.set(before);
    made
}

#[cfg(feature = "cuda")]
fn counted_on_devices<R>(kind: MemoryKind, make: impl FnOnce() -> R) -> R {
    use phalanx_cuda::Kind;
    let kind = match kind {
        MemoryKind::Parameters => Kind::Parameters,
        MemoryKind::Gradients => Kind::Gradients,
        MemoryKind::Optimizer => Kind::Optimizer,
        MemoryKind::Data => Kind::Data,
    };
    phalanx_cuda::memory::counted_as(kind, make)
}

#[cfg(not(feature = "cuda"))]
fn counted_on_devices<R>(_: MemoryKind, make: impl FnOnce() -> R) -> R {
    make()
}

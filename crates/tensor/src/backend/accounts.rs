//! Purposes of memory in a device's accounts.

/// The purpose of memory in a device's accounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryKind {
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

/// Runs `make` and counts its arrays as `kind`, on back ends with accounts. Outside of such a call arrays count as
/// activations.
pub(crate) fn counted_as<R>(kind: MemoryKind, make: impl FnOnce() -> R) -> R {
    #[cfg(feature = "cuda")]
    {
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
    {
        let _ = kind;
        make()
    }
}

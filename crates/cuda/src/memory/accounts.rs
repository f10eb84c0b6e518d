//! Accounting of device memory: bytes in use by purpose.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of kinds.
const KINDS: usize = 6;

/// The purpose of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Weights, whole or sharded.
    Parameters,
    /// Gradients.
    Gradients,
    /// Moments and master copies.
    Optimizer,
    /// Values that forward keeps for backward, and values between operations.
    Activations,
    /// Workspace of a library call.
    Workspace,
    /// Samples that stay on the device during a training.
    Data,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Self; KINDS] =
        [Self::Parameters, Self::Gradients, Self::Optimizer, Self::Activations, Self::Workspace, Self::Data];

    /// Returns the name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Parameters => "parameters",
            Self::Gradients => "gradients",
            Self::Optimizer => "optimizer",
            Self::Activations => "activations",
            Self::Workspace => "workspace",
            Self::Data => "data",
        }
    }
}

thread_local! {
    static CURRENT: Cell<Kind> = const { Cell::new(Kind::Activations) };
}

/// Returns the kind of this thread's allocations.
pub(super) fn current() -> Kind {
    CURRENT.get()
}

/// Runs `body`, during which this thread's allocations count as `kind`. The default is activations.
pub fn counted_as<R>(kind: Kind, body: impl FnOnce() -> R) -> R {
    struct Back(Kind);
    impl Drop for Back {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _back = Back(CURRENT.replace(kind));
    body()
}

/// Bytes in use and their maxima.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUsage {
    /// Bytes in use, in the order of [`Kind::ALL`].
    pub now: [usize; KINDS],
    /// The maximum of each kind.
    pub peak: [usize; KINDS],
    /// The maximum of the sum of all kinds.
    pub peak_total: usize,
}

impl MemoryUsage {
    /// Returns the bytes of a kind.
    pub fn of(&self, kind: Kind) -> usize {
        self.now[kind as usize]
    }

    /// Returns the bytes of all kinds.
    pub fn total(&self) -> usize {
        self.now.iter().sum()
    }
}

impl std::fmt::Display for MemoryUsage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "in use:")?;
        for (at, kind) in Kind::ALL.into_iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma} {} bytes of {}", self.of(kind), kind.name())?;
        }
        Ok(())
    }
}

/// The counters.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    now: [AtomicUsize; KINDS],
    peak: [AtomicUsize; KINDS],
    total: AtomicUsize,
    peak_total: AtomicUsize,
}

impl Accounts {
    pub(super) fn add(&self, kind: Kind, bytes: usize) {
        let at = kind as usize;
        let now = self.now[at].fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak[at].fetch_max(now, Ordering::Relaxed);
        let total = self.total.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak_total.fetch_max(total, Ordering::Relaxed);
    }

    pub(super) fn remove(&self, kind: Kind, bytes: usize) {
        self.now[kind as usize].fetch_sub(bytes, Ordering::Relaxed);
        self.total.fetch_sub(bytes, Ordering::Relaxed);
    }

    pub(super) fn usage(&self) -> MemoryUsage {
        let read = |of: &[AtomicUsize; KINDS]| of.each_ref().map(|count| count.load(Ordering::Relaxed));
        MemoryUsage {
            now: read(&self.now),
            peak: read(&self.peak),
            peak_total: self.peak_total.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_and_peak_bytes() {
        let accounts = Accounts::default();
        accounts.add(Kind::Gradients, 100);
        accounts.add(Kind::Workspace, 30);
        accounts.remove(Kind::Gradients, 100);
        accounts.add(Kind::Gradients, 40);
        let held = accounts.usage();
        assert_eq!((held.of(Kind::Gradients), held.of(Kind::Workspace), held.total()), (40, 30, 70));
        assert_eq!((held.peak[Kind::Gradients as usize], held.peak_total), (100, 130));
        assert!(held.to_string().contains("40 bytes of gradients, 0 bytes of optimizer"));
    }

    #[test]
    fn a_kind_ends_with_its_scope() {
        assert_eq!(current(), Kind::Activations);
        counted_as(Kind::Parameters, || {
            counted_as(Kind::Workspace, || assert_eq!(current(), Kind::Workspace));
            assert_eq!(current(), Kind::Parameters);
        });
        assert_eq!(current(), Kind::Activations);
    }
}

//! Who holds how much: bytes of device memory by what they are for.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many kinds there are.
const KINDS: usize = 6;

/// What memory is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Weights, whole or sharded.
    Parameters,
    /// Their gradients.
    Gradients,
    /// Moments and master copies.
    Optimizer,
    /// What forward keeps for backward, and what flows between ops.
    Activations,
    /// Room that a library needs while it computes.
    Workspace,
    /// Samples that stay for all of a training.
    Data,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; KINDS] =
        [Self::Parameters, Self::Gradients, Self::Optimizer, Self::Activations, Self::Workspace, Self::Data];

    /// What messages call it.
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

/// What this thread's allocations count as now.
pub(super) fn current() -> Kind {
    CURRENT.get()
}

/// Runs `body`, in which this thread's allocations count as `kind`. Outside of any they count as activations.
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

/// Bytes of each kind that are held, and the most that ever were at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Held {
    /// By kind, in the order of [`Kind::ALL`].
    pub now: [usize; KINDS],
    /// The most of each kind.
    pub peak: [usize; KINDS],
    /// The most of all kinds together.
    pub peak_total: usize,
}

impl Held {
    /// Bytes of a kind.
    pub fn of(&self, kind: Kind) -> usize {
        self.now[kind as usize]
    }

    /// Bytes of all kinds.
    pub fn total(&self) -> usize {
        self.now.iter().sum()
    }
}

impl std::fmt::Display for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "held are")?;
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

    pub(super) fn held(&self) -> Held {
        let read = |of: &[AtomicUsize; KINDS]| of.each_ref().map(|count| count.load(Ordering::Relaxed));
        Held {
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
    fn what_is_held_and_what_was() {
        let accounts = Accounts::default();
        accounts.add(Kind::Gradients, 100);
        accounts.add(Kind::Workspace, 30);
        accounts.remove(Kind::Gradients, 100);
        accounts.add(Kind::Gradients, 40);
        let held = accounts.held();
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

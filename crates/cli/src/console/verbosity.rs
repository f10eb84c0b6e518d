//! The amount of output that the user chose.

use std::sync::atomic::{AtomicU8, Ordering};

/// The amount of output of a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Verbosity {
    /// Results, warnings and errors.
    Quiet,
    /// Progress too.
    #[default]
    Normal,
    /// Details too.
    Verbose,
}

/// The level of this process, as a number of [`LEVELS`].
static LEVEL: AtomicU8 = AtomicU8::new(1);

const LEVELS: [Verbosity; 3] = [Verbosity::Quiet, Verbosity::Normal, Verbosity::Verbose];

impl Verbosity {
    /// Makes this the verbosity of the process.
    pub fn set(self) {
        let at = LEVELS.iter().position(|level| *level == self).unwrap_or(1);
        LEVEL.store(at as u8, Ordering::Relaxed);
    }

    /// Returns the verbosity of the process.
    pub fn get() -> Self {
        LEVELS.get(usize::from(LEVEL.load(Ordering::Relaxed))).copied().unwrap_or_default()
    }

    /// Returns the option that gives a process of this program the same verbosity, if it is not the default.
    pub fn option(self) -> Option<&'static str> {
        match self {
            Self::Quiet => Some("--quiet"),
            Self::Normal => None,
            Self::Verbose => Some("--verbose"),
        }
    }
}

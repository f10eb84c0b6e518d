//! Disturbances of a training.

use std::time::Duration;

use clap::ValueEnum;

/// The kind of a disturbance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A rank is killed at a random instant.
    Kill,
    /// A rank is killed while a checkpoint is being written.
    Saving,
    /// A rank is stopped, possibly for longer than the timeout of the others.
    Stop,
    /// All connections of a rank are cut.
    Cut,
    /// The launcher is killed together with its ranks.
    Launcher,
    /// A rank joins during training.
    Join,
    /// A rank leaves during training.
    Leave,
    /// A second process resumes the run while it trains.
    Writer,
    /// Strangers connect to every port on which the launcher and the ranks listen, and stay.
    Strangers,
    /// A rank may open almost no further file or connection, while strangers connect to it.
    Descriptors,
    /// A rank can write no file beyond a size, as on a full disk.
    Full,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kills",
            Self::Saving => "kills while saving",
            Self::Stop => "stops",
            Self::Cut => "cuts",
            Self::Launcher => "killed launchers",
            Self::Join => "joins",
            Self::Leave => "leaves",
            Self::Writer => "second writers",
            Self::Strangers => "strangers",
            Self::Descriptors => "exhausted descriptors",
            Self::Full => "full disks",
        }
    }

    /// True if training must go on as if nothing had happened.
    pub(crate) fn is_harmless(self) -> bool {
        matches!(self, Self::Writer | Self::Strangers)
    }

    /// True if the event changes the world during training.
    pub(crate) fn is_of_elastic_worlds(self) -> bool {
        matches!(self, Self::Join | Self::Leave)
    }
}

/// A disturbance of one attempt.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Event {
    pub(crate) kind: Kind,
    /// The rank. After changes of the world: the index among the present ranks, modulo their number.
    pub(crate) rank: usize,
    /// The number of steps of this attempt before it; 0 is before the rendezvous.
    pub(crate) steps: u64,
    /// A further delay in milliseconds.
    pub(crate) ms: f64,
    /// The length of a stop in milliseconds.
    pub(crate) lasts_ms: f64,
    /// The amount of what is left to a rank, from 0 to 1: of descriptors, or of the size of files.
    pub(crate) left: f64,
}

impl Event {
    /// True if its delay begins after `steps` steps.
    pub(crate) fn is_due(&self, steps: u64, is_saving: impl FnOnce() -> bool) -> bool {
        steps >= self.steps && (self.kind != Kind::Saving || is_saving())
    }

    /// True if its delay counts from the start of the attempt.
    pub(crate) fn is_before_the_first_step(&self) -> bool {
        self.steps == 0 && self.kind != Kind::Saving
    }

    pub(crate) fn delay(&self) -> Duration {
        Duration::from_secs_f64(self.ms / 1e3)
    }

    /// The length of a stop.
    pub(crate) fn lasts(&self) -> Duration {
        Duration::from_secs_f64(self.lasts_ms / 1e3)
    }
}

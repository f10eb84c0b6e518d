//! The categories of time in a trace.

use serde::{Deserialize, Serialize};

/// The prefix of the targets of spans in a trace; the name of the category follows.
pub const PREFIX: &str = "phalanx_trace::";

/// The category of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Category {
    /// A whole rank: nested spans belong to it. It has no time of its own.
    Rank,
    /// A step, from its batch to its losses.
    Step,
    /// Forward, backward and updates.
    Compute,
    /// Communication between ranks.
    Communication,
    /// Enqueuing an operation on a GPU, which runs it later.
    Issuing,
    /// Checking that ranks have issued the same operations to their GPUs.
    Agreement,
    /// Waiting for other ranks, or for communication.
    Waiting,
    /// Building batches, and waiting for them.
    Data,
    /// Gradients of a bucket are complete, and their reduction is issued.
    Gradients,
    /// Evaluation and sampling.
    Evaluation,
    /// Copying and writing checkpoints, and waiting for them.
    Saving,
    /// Counters over time.
    Counter,
}

impl Category {
    /// All categories.
    pub const ALL: [Self; 12] = [
        Self::Rank,
        Self::Step,
        Self::Compute,
        Self::Communication,
        Self::Issuing,
        Self::Agreement,
        Self::Waiting,
        Self::Data,
        Self::Gradients,
        Self::Evaluation,
        Self::Saving,
        Self::Counter,
    ];

    /// Returns the name in targets and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rank => "rank",
            Self::Step => "step",
            Self::Compute => "compute",
            Self::Communication => "communication",
            Self::Issuing => "issuing",
            Self::Agreement => "agreement",
            Self::Waiting => "waiting",
            Self::Data => "data",
            Self::Gradients => "gradients",
            Self::Evaluation => "evaluation",
            Self::Saving => "saving",
            Self::Counter => "counter",
        }
    }

    /// Returns the category of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|category| category.name() == name)
    }

    /// Returns the category of a span target; `None` for other targets.
    pub fn of_target(target: &str) -> Option<Self> {
        Self::named(target.strip_prefix(PREFIX)?)
    }
}

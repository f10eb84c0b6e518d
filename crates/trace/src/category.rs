//! The categories of time in a trace.

use serde::{Deserialize, Serialize};

/// The prefix of the targets of spans in a trace; the name of the category follows.
pub const PREFIX: &str = "phalanx_trace::";

/// The category of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Category {
    /// A whole rank: what is inside belongs to it. It has no time of its own.
    Rank,
    /// A step, from its batch to its losses.
    Step,
    /// Forward, backward and updates.
    Compute,
    /// Moving bytes between ranks.
    Communication,
    /// Handing an operation to a GPU, which runs it later.
    Issuing,
    /// Finding out whether ranks have issued the same to their GPUs.
    Agreement,
    /// Waiting for other ranks, or for communication.
    Waiting,
    /// Making batches, and waiting for them.
    Data,
    /// Gradients of a bucket are complete, and their reduction is issued.
    Gradients,
    /// Evaluation, and drawing samples.
    Evaluation,
    /// Copying and writing checkpoints, and waiting for them.
    Saving,
    /// Numbers over time.
    Counter,
}

impl Category {
    /// All of them.
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

    /// Its name, in targets and in files.
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

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|category| category.name() == name)
    }

    /// Returns the category of spans with this target, if a trace has them.
    pub fn of_target(target: &str) -> Option<Self> {
        Self::named(target.strip_prefix(PREFIX)?)
    }
}

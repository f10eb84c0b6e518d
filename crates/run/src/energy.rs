//! The energy of a run: joules and their source.

use serde::{Deserialize, Serialize};

/// The source of a number of joules, the most reliable first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnergyKind {
    /// A counter of the hardware.
    Measured,
    /// A model that is named.
    Estimated,
    /// No source: the number is unknown.
    #[default]
    Absent,
}

impl std::fmt::Display for EnergyKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Measured => "measured",
            Self::Estimated => "estimated",
            Self::Absent => "absent",
        })
    }
}

/// The energy of the CPUs, or of the GPUs, in a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EnergyPart {
    /// The source of the number.
    pub kind: EnergyKind,
    /// The counter or model, or the reason why there is no number.
    pub model: String,
    /// Joules; `null` if they are absent.
    pub joules: Option<f64>,
}

/// The energy that a run took, from its start, or from where it was resumed, to its end: evaluations, samples and checkpoints
/// are part of it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EnergySummary {
    /// The energy of CPUs and their memory.
    pub cpu: EnergyPart,
    /// The energy of GPUs.
    pub gpu: EnergyPart,
    /// All joules that are known, for each sample that was trained on.
    pub joules_per_sample: Option<f64>,
    /// All joules that are known, for each second that passed.
    pub mean_watts: Option<f64>,
}

//! The energy of a run, and the source of the numbers.

use serde::{Deserialize, Serialize};

/// The source of an energy value, the most reliable first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnergyKind {
    /// A hardware counter.
    Measured,
    /// A model, which the field `model` names.
    Estimated,
    /// No source: the value is unknown.
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

/// The energy of the CPUs or of the GPUs in a run.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EnergyPart {
    /// The source of the value.
    pub kind: EnergyKind,
    /// The counter or model, or the reason why the value is absent.
    pub model: String,
    /// The energy in joules; `null` if absent.
    pub joules: Option<f64>,
}

/// The energy of a run from its start or resume to its end, including evaluations, samples and checkpoints.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EnergySummary {
    /// The energy of CPUs and their memory.
    pub cpu: EnergyPart,
    /// The energy of GPUs.
    pub gpu: EnergyPart,
    /// The known energy in joules per training sample.
    pub joules_per_sample: Option<f64>,
    /// The known energy divided by the wall time, in watts.
    pub mean_watts: Option<f64>,
}

//! The direction of a measure: smaller or larger is better.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

/// The direction in which a measure improves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Goal {
    /// Smaller is better, such as a loss.
    Min,
    /// Larger is better, such as an accuracy.
    Max,
}

/// The endings of measures that rise when a run improves.
const RISING: &[&str] = &[
    "accuracy",
    "precision",
    "recall",
    "f1",
    "score",
    "matched",
    "map",
    "iou",
    "psnr",
    "ssim",
    "per_second",
];

/// The endings of measures that fall when a run improves.
const FALLING: &[&str] = &[
    "loss",
    "l1",
    "l2",
    "mae",
    "mse",
    "error",
    "kl",
    "distance",
    "perplexity",
    "seconds",
    "_ms",
    "_to_target",
    "_mib",
    "joules",
    "watts",
    "mb_sent",
    "per_image",
    "per_byte",
];

impl Goal {
    /// Returns the direction of a measure by the ending of its name; `None` for other names.
    pub fn of(measure: &str) -> Option<Self> {
        let ends = |endings: &[&str]| endings.iter().any(|ending| measure.ends_with(ending));
        // `seconds_per_image` falls, `samples_per_second` rises.
        match (ends(RISING), ends(FALLING)) {
            (true, false) => Some(Self::Max),
            (false, true) => Some(Self::Min),
            _ => None,
        }
    }

    /// Orders two values, the better one first. Values that are not numbers are last.
    pub fn order(self, a: f64, b: f64) -> Ordering {
        self.cost(a).total_cmp(&self.cost(b))
    }

    /// Returns the value with the sign by which smaller is better. A value that is not a number is the worst one.
    pub fn cost(self, value: f64) -> f64 {
        match self {
            _ if value.is_nan() => f64::INFINITY,
            Self::Min => value,
            Self::Max => -value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_fall_and_accuracies_rise() {
        for (measure, goal) in [
            ("loss", Some(Goal::Min)),
            ("generator_loss", Some(Goal::Min)),
            ("test_l1", Some(Goal::Min)),
            ("judge_frechet_distance", Some(Goal::Min)),
            ("seconds_to_target", Some(Goal::Min)),
            ("joules_per_image", Some(Goal::Min)),
            ("test_bits_per_byte", Some(Goal::Min)),
            ("test_accuracy", Some(Goal::Max)),
            ("best_test_accuracy", Some(Goal::Max)),
            ("drawn_clip_score", Some(Goal::Max)),
            ("samples_per_second", Some(Goal::Max)),
            ("drawn_sharpness", None),
        ] {
            assert_eq!(Goal::of(measure), goal, "{measure}");
        }
        let mut values = [0.5, f64::NAN, 2.0];
        values.sort_by(|a, b| Goal::Max.order(*a, *b));
        assert_eq!(values[..2], [2.0, 0.5]);
        values.sort_by(|a, b| Goal::Min.order(*a, *b));
        assert_eq!(values[..2], [0.5, 2.0]);
    }
}

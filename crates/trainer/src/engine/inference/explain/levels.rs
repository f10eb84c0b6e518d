//! The levels of noise at which a caption counts: how much a wrong caption raises the error.

use phalanx_run::LevelErrors;

use super::attributes::CaptionAttribute;
use super::samples::HeldOut;
use crate::engine::TrainError;
use crate::engine::training::CaptionReader;

/// The number of levels.
const LEVELS: usize = 10;

/// Measures the errors of samples at each level: with their captions, without, and with one value of the caption replaced by another.
/// Empty if the model has no levels.
pub(super) fn measure(
    reader: &dyn CaptionReader,
    samples: &HeldOut,
    attributes: &[CaptionAttribute],
) -> Result<Vec<LevelErrors>, TrainError> {
    let captions = samples.captions();
    let empty = vec![String::new(); captions.len()];
    let mut levels = Vec::with_capacity(LEVELS);
    for level in (0..LEVELS).map(|at| (at as f64 + 0.5) / LEVELS as f64) {
        let Some(own) = samples.errors(reader, &captions, level)? else { return Ok(Vec::new()) };
        let none = samples.errors(reader, &empty, level)?.unwrap_or_default();
        let of = |attribute: &CaptionAttribute| -> Result<Option<f64>, TrainError> {
            if attribute.wrong.iter().all(Option::is_none) {
                return Ok(None);
            }
            let wrong = captions.iter().zip(&attribute.wrong);
            let wrong: Vec<String> =
                wrong.map(|(own, wrong)| wrong.as_ref().unwrap_or(own).clone()).collect();
            let errors = samples.errors(reader, &wrong, level)?.unwrap_or_default();
            let changed: Vec<bool> = attribute.wrong.iter().map(Option::is_some).collect();
            Ok(Some(rise(&own, &errors, &changed)))
        };
        levels.push(LevelErrors {
            level,
            error: own.iter().sum::<f64>() / own.len().max(1) as f64,
            without_caption: rise(&own, &none, &vec![true; own.len()]),
            wrong: attributes.iter().map(of).collect::<Result<_, _>>()?,
        });
    }
    Ok(levels)
}

/// Returns the rise of the errors of the samples that count, as a share of their own errors.
fn rise(own: &[f64], other: &[f64], counts: &[bool]) -> f64 {
    let sum = |errors: &[f64]| -> f64 {
        errors.iter().zip(counts).filter(|(_, counts)| **counts).map(|(error, _)| error).sum()
    };
    sum(other) / sum(own) - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rise_is_of_the_samples_whose_captions_are_changed() {
        let (own, other) = ([1.0, 2.0, 3.0], [1.5, 9.0, 3.5]);
        assert_eq!(rise(&own, &other, &[true, false, true]), 0.25);
        assert!(rise(&own, &other, &[false; 3]).is_nan());
    }
}

//! The levels of noise at which a caption counts: how much a wrong caption raises the error.

use nalgebra::{DMatrix, DVector};
use serde::Serialize;

use super::attributes::CaptionAttributes;
use super::samples::HeldOut;
use crate::engine::TrainError;
use crate::engine::training::CaptionReader;

/// The number of levels.
const LEVELS: usize = 10;

/// The number of wrong captions of each sample.
const OTHERS: usize = 3;

/// The errors at a level of noise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LevelErrors {
    /// The level, from 0 to 1: the share of the schedule's timesteps below it.
    pub level: f64,
    /// The mean error with the captions of the samples.
    pub error: f64,
    /// The rise of the error without captions, as a share of it.
    pub without_caption: f64,
    /// The rise of the error by a wrong value of each attribute, as a share of it.
    pub wrong: Vec<f64>,
    /// The rise of the error by a wrong caption whose attributes are right, as a share of it: what captions say beyond them.
    pub wrong_rest: f64,
}

/// Measures the errors of samples at each level, with their captions, without, and with captions of others. The rise of each attribute
/// is fitted by least squares to the attributes that differ, as a sum of them and of a constant. Empty if the model has no levels.
pub(super) fn measure(
    reader: &dyn CaptionReader,
    samples: &HeldOut,
    attributes: &CaptionAttributes,
) -> Result<Vec<LevelErrors>, TrainError> {
    let captions = samples.captions();
    let count = captions.len();
    let empty = vec![String::new(); count];
    let mut levels = Vec::with_capacity(LEVELS);
    for level in (0..LEVELS).map(|at| (at as f64 + 0.5) / LEVELS as f64) {
        let Some(own) = samples.errors(reader, &captions, level)? else { return Ok(Vec::new()) };
        let none = samples.errors(reader, &empty, level)?.unwrap_or_default();
        let (mut differs, mut rises) = (Vec::new(), Vec::new());
        for other in 1..=OTHERS {
            // Neighbours are as independent as any others.
            let partner = |at: usize| (at + other) % count;
            let of_others: Vec<String> = (0..count).map(|at| captions[partner(at)].clone()).collect();
            let errors = samples.errors(reader, &of_others, level)?.unwrap_or_default();
            for at in 0..count {
                let differ = |classes: &Vec<u32>| f64::from(u8::from(classes[at] != classes[partner(at)]));
                differs.extend(attributes.classes.iter().map(differ).chain([1.0]));
                rises.push(errors[at] - own[at]);
            }
        }
        let error = mean(&own);
        let mut fitted = fit(&differs, &rises, attributes.names.len() + 1);
        let rest = fitted.pop().unwrap_or_default();
        levels.push(LevelErrors {
            level,
            error,
            without_caption: mean(&none) / error - 1.0,
            wrong: fitted.into_iter().map(|rise| rise / error).collect(),
            wrong_rest: rest / error,
        });
    }
    Ok(levels)
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns the weights of `number` columns whose sums are nearest to `values`.
fn fit(rows: &[f64], values: &[f64], number: usize) -> Vec<f64> {
    let rows = DMatrix::from_row_slice(values.len(), number, rows);
    let values = DVector::from_column_slice(values);
    // Columns that never differ, or always together, get the smallest weights.
    match rows.svd(true, true).solve(&values, 1e-9) {
        Ok(weights) => weights.iter().copied().collect(),
        Err(_) => vec![f64::NAN; number],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_are_shared_among_the_attributes_that_differ() {
        let rows = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0];
        let found = fit(&rows, &[0.5, 2.5, 0.5, 2.0], 3);
        assert!((found[0] - 0.5).abs() < 1e-9 && (found[1] - 2.0).abs() < 1e-9, "{found:?}");
        assert!(found[2].abs() < 1e-9, "an attribute that never differs: {found:?}");
    }
}

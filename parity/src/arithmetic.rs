//! The condition of a quantity: its change in f64 under rounding errors of the inputs.
//!
//! Batch norm over few values, and activations with kinks, amplify rounding, so that some recorded values differ from exact
//! arithmetic by more than the usual tolerance. A quantity that misses its tolerance is therefore computed in f64 with weights and
//! inputs changed by random rounding errors of [`ROUNDING`], and its tolerance is widened to [`NOISE_FACTOR`] times the change. A
//! quantity that is well determined keeps its tolerance.

use candle_core::{DType, Device, Tensor};

use crate::{ParityError, Quantity, fill};

/// The relative rounding error that an f32 computation may make in a sum of many terms: four units in the last
/// place.
const ROUNDING: f64 = 4.0 / (1 << 24) as f64;
/// The allowed difference between two correct computations, in multiples of the change under rounding errors.
const NOISE_FACTOR: f64 = 4.0;
/// The number of random rounding errors.
const DRAWS: u64 = 3;

/// The representation of numbers.
#[derive(Clone, Copy)]
pub(super) struct Arithmetic {
    pub(super) dtype: DType,
    /// The seed of rounding errors that weights and inputs get, if any.
    errors: Option<u64>,
}

impl Arithmetic {
    pub(super) fn tensor(self, name: &str, values: Vec<f32>, dims: &[usize]) -> Result<Tensor, ParityError> {
        let tensor = match self.errors {
            None => Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(self.dtype)?,
            Some(seed) => {
                let errors = fill::sym(&format!("rounding {name}"), seed, values.len(), 1.0);
                let exact = values.iter().zip(errors);
                let changed: Vec<f64> =
                    exact.map(|(v, e)| f64::from(*v) * (1.0 + ROUNDING * f64::from(e))).collect();
                Tensor::from_vec(changed, dims, &Device::Cpu)?.to_dtype(self.dtype)?
            }
        };
        Ok(tensor)
    }
}

/// Compares measured f32 values with recorded ones. Widens a missed tolerance to the effect of rounding.
pub(super) fn compare_widened<M>(
    recorded: &M,
    measure: impl Fn(Arithmetic) -> Result<M, ParityError>,
    compare: impl Fn(&M, &M) -> Vec<Quantity>,
) -> Result<Vec<Quantity>, ParityError> {
    let mut quantities = compare(&measure(Arithmetic { dtype: DType::F32, errors: None })?, recorded);
    if quantities.iter().all(Quantity::passes) {
        return Ok(quantities);
    }
    let exact = measure(Arithmetic { dtype: DType::F64, errors: None })?;
    for seed in 0..DRAWS {
        let disturbed = measure(Arithmetic { dtype: DType::F64, errors: Some(seed) })?;
        let noises = compare(&disturbed, &exact);
        for quantity in &mut quantities {
            // The measured values may include unrecorded ones, and have another order.
            let noise = noises.iter().find(|noise| noise.name == quantity.name);
            quantity.widen(NOISE_FACTOR * noise.map_or(0.0, |noise| noise.error));
        }
    }
    Ok(quantities)
}

//! Arithmetic of strategies on flat f32 values: on the CPU for the host's memory, by the back end for a device's.

use candle_core::{DType, Device, Shape, Tensor};
use phalanx_tensor::FlatStorage;
use phalanx_tensor::backend::{AverageUpdate, BinaryOp, EmaOptions, ParamUpdate, SgdOptions};

use crate::Result;
use phalanx_codecs::buffer::with_singles;

/// Returns a copy of the values on the host. Waits if they are on a device.
///
/// # Errors
/// If the values are not f32; errors of the back end.
pub(crate) fn numbers(flat: &FlatStorage) -> Result<Vec<f32>> {
    Ok(with_singles(&on_host(flat)?, |numbers| numbers.to_vec())?)
}

/// Returns the values on the host: the memory itself, or a copy from a device, for which this waits.
///
/// # Errors
/// The back end's.
pub(crate) fn on_host(flat: &FlatStorage) -> Result<FlatStorage> {
    Ok(FlatStorage::new(flat.to_host()?)?)
}

/// Overwrites the values by host values. On a device the copy stream uploads them, and later computation waits for it.
///
/// # Errors
/// If the lengths differ; errors of the back end.
pub(crate) fn write(flat: &FlatStorage, numbers: &[f32]) -> Result<()> {
    let Some(backend) = flat.array().device_backend() else {
        return Ok(with_singles(flat, |own| own.copy_from_slice(numbers))?);
    };
    if numbers.is_empty() {
        return Ok(());
    }
    // Earlier computation may still read the old values, so the upload uses other memory.
    let arriving = FlatStorage::new(backend.unwritten(&Shape::from(numbers.len()), DType::F32)?)?;
    let numbers = FlatStorage::new(Tensor::from_slice(numbers, numbers.len(), &Device::Cpu)?)?;
    arriving.begin_upload_from(&numbers)?.wait()?;
    Ok(flat.copy_from(&arriving)?)
}

/// Multiplies the values by a factor.
///
/// # Errors
/// The back end's.
pub(crate) fn scale(flat: &FlatStorage, factor: f64) -> Result<()> {
    match flat.array().device_backend() {
        None => with_singles(flat, |own| own.iter_mut().for_each(|own| *own *= factor as f32))?,
        Some(backend) => {
            let factor = backend.full(factor, &().into(), DType::F64)?;
            backend.scale_by(flat.array(), &factor)?;
        }
    }
    Ok(())
}

/// Divides sums over `ranks` ranks to get means.
///
/// # Errors
/// The back end's.
pub(crate) fn divide(flat: &FlatStorage, ranks: usize) -> Result<()> {
    match flat.array().is_host() {
        true => Ok(with_singles(flat, |own| own.iter_mut().for_each(|own| *own /= ranks as f32))?),
        false => scale(flat, 1.0 / ranks as f64),
    }
}

/// Returns `a − b` in new memory.
///
/// # Errors
/// If they lie apart; and the back end's.
pub(crate) fn difference(a: &FlatStorage, b: &FlatStorage) -> Result<FlatStorage> {
    if let Some(backend) = a.array().device_backend() {
        return Ok(FlatStorage::new(backend.binary(BinaryOp::Sub, a.array(), b.array())?)?);
    }
    let difference = a.copy()?;
    with_singles(&difference, |own| {
        with_singles(b, |b| own.iter_mut().zip(b).for_each(|(own, b)| *own -= *b))
    })??;
    Ok(difference)
}

/// Returns the sum of the squares of `a − b`. Waits for the device.
///
/// # Errors
/// If they lie apart; and the back end's.
pub(crate) fn square_distance(a: &FlatStorage, b: &FlatStorage) -> Result<f64> {
    if let Some(backend) = a.array().device_backend() {
        return Ok(backend.sum_of_squares(difference(a, b)?.array())?.number()?);
    }
    let squares = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a - *b).powi(2)).sum();
    Ok(with_singles(a, |a| with_singles(b, |b| squares(a, b)))??)
}

/// The settings of an outer optimizer: learning rate and momentum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OuterStep {
    pub(crate) rate: f64,
    pub(crate) momentum: f64,
}

impl OuterStep {
    /// Takes one step of DiLoCo's outer optimizer with d, the sum divided by `ranks`: m ← μ·m + d, values ← values −
    /// η·(d + μ·m), which is Nesterov's momentum as PyTorch has it. The sum is overwritten.
    ///
    /// # Errors
    /// If they lie apart; and the back end's.
    pub(crate) fn take(
        self,
        values: &FlatStorage,
        momentum: &FlatStorage,
        (sum, ranks): (&FlatStorage, usize),
    ) -> Result<()> {
        if let Some(backend) = values.array().device_backend() {
            divide(sum, ranks)?;
            let Self { rate: lr, momentum: keep } = self;
            let options = SgdOptions { lr, momentum: keep, nesterov: true, weight_decay: 0.0, first: false };
            let of = ParamUpdate { weights: values.array(), grads: sum.array(), scaled: None };
            return Ok(backend.sgd_step(options, of, Some(momentum.array()))?);
        }
        let (rate, keep, ranks) = (self.rate as f32, self.momentum as f32, ranks as f32);
        let step = |values: &mut [f32], momentum: &mut [f32], sum: &[f32]| {
            for ((value, momentum), sum) in values.iter_mut().zip(momentum).zip(sum) {
                let d = *sum / ranks;
                *momentum = keep * *momentum + d;
                *value -= rate * (d + keep * *momentum);
            }
        };
        with_singles(values, |values| {
            with_singles(momentum, |momentum| with_singles(sum, |sum| step(values, momentum, sum)))
        })???;
        Ok(())
    }
}

/// Blends two buffers: own ← keep·own + (1 − keep)·other.
///
/// # Errors
/// If they lie apart; and the back end's.
pub(crate) fn blend(own: &FlatStorage, keep: f64, other: &FlatStorage) -> Result<()> {
    if keep <= 0.0 {
        return Ok(own.copy_from(other)?);
    }
    if let Some(backend) = own.array().device_backend() {
        // An old average uses the largest factor.
        let options = EmaOptions { decay: keep, updates: 1 << 52 };
        let of = AverageUpdate { average: own.array(), weights: other.array(), scaled: None };
        return Ok(backend.ema_step(options, of)?);
    }
    let keep = keep as f32;
    with_singles(own, |own| {
        with_singles(other, |other| {
            own.iter_mut().zip(other).for_each(|(own, other)| *own = keep * *own + (1.0 - keep) * *other);
        })
    })??;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat(numbers: &[f32]) -> FlatStorage {
        let tensor = Tensor::from_slice(numbers, numbers.len(), &Device::Cpu).expect("small");
        FlatStorage::new(tensor).expect("flat")
    }

    #[test]
    fn steps_of_the_outer_optimizer_are_those_of_the_formula() {
        let (values, momentum) = (flat(&[1.0, -2.0]), flat(&[0.5, 0.0]));
        let step = OuterStep { rate: 0.5, momentum: 0.5 };
        step.take(&values, &momentum, (&flat(&[4.0, -8.0]), 4)).expect("of one length");
        // d = (1, −2), m = (1.25, −2), d + μ·m = (1.625, −3).
        assert_eq!(numbers(&momentum).expect("f32"), [1.25, -2.0]);
        assert_eq!(numbers(&values).expect("f32"), [1.0 - 0.8125, -2.0 + 1.5]);
        blend(&values, 0.25, &flat(&[1.1875, 1.5])).expect("of one length");
        assert_eq!(numbers(&values).expect("f32"), [0.1875 * 0.25 + 1.1875 * 0.75, -0.5 * 0.25 + 1.5 * 0.75]);
        let distance = square_distance(&flat(&[1.0, 2.0]), &flat(&[4.0, -2.0])).expect("of one length");
        assert!((distance - 25.0).abs() < 1e-12, "{distance}");
    }
}

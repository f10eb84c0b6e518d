//! Numbers of a step, which a device may still be computing.

use candle_core::Tensor;
use phalanx_tensor::Value;

use crate::engine::error::TrainError;

/// A number that a phase measures. On the processor it is known at once; of a value on a GPU it is read later, when the GPU has
/// computed it and the host has queued the next step, so that neither waits for the other.
#[derive(Debug)]
pub struct Measure(Number);

type Wait = Box<dyn FnOnce() -> Result<f64, TrainError> + Send>;

enum Number {
    Known(f64),
    Coming(Wait),
}

impl std::fmt::Debug for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Known(number) => number.fmt(f),
            Self::Coming(_) => f.write_str("coming"),
        }
    }
}

impl Measure {
    /// The number of a scalar on the tape, such as a part of a loss.
    ///
    /// # Errors
    /// If it is no floating-point number.
    pub fn of(value: &Value) -> Result<Self, TrainError> {
        Self::read(value, |number| match number.elem_count() {
            1 => Ok(f64::from(number.flatten_all()?.to_vec1::<f32>()?[0])),
            _ => Err(TrainError::Setup(format!("a measure should be one number, not {:?}", number.shape()))),
        })
    }

    /// The number that `read` finds on the host in the elements of a value, f32 and of its shape.
    ///
    /// # Errors
    /// If the elements are no floating-point numbers; and those of `read`, if it reads them at once.
    pub fn read(
        value: &Value,
        read: impl FnOnce(&Tensor) -> Result<f64, TrainError> + Send + 'static,
    ) -> Result<Self, TrainError> {
        let download = value.array()?.begin_snapshot()?;
        Ok(Self(match download.is_ready() {
            true => Number::Known(read(&download.wait()?)?),
            false => Number::Coming(Box::new(move || read(&download.wait()?))),
        }))
    }

    /// The sum of several, in order; the only one is as it is.
    pub(in crate::engine) fn sum(mut measures: Vec<Self>) -> Self {
        match measures.pop() {
            Some(only) if measures.is_empty() => only,
            last => {
                measures.extend(last);
                Self(Number::Coming(Box::new(move || measures.into_iter().map(Self::take).sum())))
            }
        }
    }

    /// The mean of several; of none it is NaN.
    pub fn mean(measures: Vec<Self>) -> Self {
        let count = measures.len() as f64;
        let sum = move || Ok(measures.into_iter().map(Self::take).sum::<Result<f64, TrainError>>()? / count);
        Self(Number::Coming(Box::new(sum)))
    }

    /// The number, for which this waits.
    pub(in crate::engine) fn take(self) -> Result<f64, TrainError> {
        match self.0 {
            Number::Known(number) => Ok(number),
            Number::Coming(wait) => wait(),
        }
    }
}

impl From<f64> for Measure {
    fn from(number: f64) -> Self {
        Self(Number::Known(number))
    }
}

//! Numbers of a step, which a device may still compute.

use candle_core::Tensor;
use phalanx_tensor::{ArrayError, Value};

use crate::engine::error::TrainError;

/// A number that a phase measures. On the CPU it is known at once. A number on a GPU is read after the host has queued the next step, so
/// that neither waits for the other.
#[derive(Debug)]
pub struct Measure(Number);

type Wait = Box<dyn FnOnce() -> Result<f64, TrainError> + Send>;

enum Number {
    Known(f64),
    Coming(Wait),
    /// Another stage of the model has it.
    Elsewhere,
}

impl std::fmt::Debug for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Known(number) => number.fmt(f),
            Self::Coming(_) => f.write_str("coming"),
            Self::Elsewhere => f.write_str("elsewhere"),
        }
    }
}

impl Measure {
    /// Creates a measure of a scalar on the tape, such as a term of a loss.
    ///
    /// # Errors
    /// If it is not floating-point.
    pub fn of(value: &Value) -> Result<Self, TrainError> {
        Self::read(value, |number| match number.elem_count() {
            1 => Ok(f64::from(number.flatten_all()?.to_vec1::<f32>()?[0])),
            _ => Err(TrainError::Setup(format!("a measure should be one number, not {:?}", number.shape()))),
        })
    }

    /// Creates a measure that `read` computes on the host from the elements of a value, f32 and of its shape.
    ///
    /// # Errors
    /// If the elements are not floating-point; and those of `read`, if they are available at once.
    pub fn read(
        value: &Value,
        read: impl FnOnce(&Tensor) -> Result<f64, TrainError> + Send + 'static,
    ) -> Result<Self, TrainError> {
        let array = value.array()?;
        if !array.has_numbers() {
            return Ok(Self::elsewhere());
        }
        let download = array.begin_snapshot()?;
        Ok(Self(match download.is_ready() {
            true => Number::Known(read(&download.wait()?)?),
            false => Number::Coming(Box::new(move || read(&download.wait()?))),
        }))
    }

    /// A number that another stage of the model has.
    pub(in crate::engine) fn elsewhere() -> Self {
        Self(Number::Elsewhere)
    }

    /// True if another stage of the model has the number.
    pub(in crate::engine) fn is_elsewhere(&self) -> bool {
        matches!(self.0, Number::Elsewhere)
    }

    /// Adds up several measures, in order.
    pub(in crate::engine) fn sum(mut measures: Vec<Self>) -> Self {
        if measures.iter().any(Self::is_elsewhere) {
            return Self::elsewhere();
        }
        match measures.pop() {
            Some(only) if measures.is_empty() => only,
            last => {
                measures.extend(last);
                Self(Number::Coming(Box::new(move || measures.into_iter().map(Self::take).sum())))
            }
        }
    }

    /// Returns the mean of several measures; NaN of none.
    pub fn mean(measures: Vec<Self>) -> Self {
        if measures.iter().any(Self::is_elsewhere) {
            return Self::elsewhere();
        }
        let count = measures.len() as f64;
        let sum = move || Ok(measures.into_iter().map(Self::take).sum::<Result<f64, TrainError>>()? / count);
        Self(Number::Coming(Box::new(sum)))
    }

    /// Waits for the number.
    pub(in crate::engine) fn take(self) -> Result<f64, TrainError> {
        match self.0 {
            Number::Known(number) => Ok(number),
            Number::Coming(wait) => wait(),
            Number::Elsewhere => Err(ArrayError::NoNumbers { op: "a measure" }.into()),
        }
    }
}

impl From<f64> for Measure {
    fn from(number: f64) -> Self {
        Self(Number::Known(number))
    }
}

/// Waits for a scalar on the tape, f32, and returns it. In a step use [`Measure::of`], which does not wait.
///
/// # Errors
/// If it is not a scalar, or of another type.
pub fn number(value: &Value) -> Result<f64, TrainError> {
    Ok(f64::from(value.to_host()?.to_scalar::<f32>()?))
}

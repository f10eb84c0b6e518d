//! The columns of a micro-batch that texts fill: it is a part of a batch that was padded to its longest text.

use candle_core::Tensor;
use phalanx_tensor::Value;
use phalanx_trainer::engine::{StepInput, TrainError};

/// The first columns of rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Columns {
    /// The columns of a row.
    pub(super) all: usize,
    /// The columns that are kept.
    pub(super) kept: usize,
}

impl Columns {
    /// Returns the columns of an array [N, T] up to the longest of N lengths.
    pub(super) fn up_to(step: &StepInput<'_>, name: &str, longest: usize) -> Result<Self, TrainError> {
        let (_, all) = step.batch.tensor(name)?.dims2()?;
        Ok(Self { all, kept: longest.clamp(1, all) })
    }

    /// Returns the columns up to the last one with a weight that is not 0.
    pub(super) fn with_weights(weights: &[f32], all: usize) -> Self {
        let last = weights.iter().enumerate().filter(|(_, weight)| **weight != 0.0).map(|(at, _)| at % all);
        Self { all, kept: last.max().map_or(1, |last| last + 1) }
    }

    /// Returns the kept columns of an array [N, T] of the batch.
    pub(super) fn value(self, step: &StepInput<'_>, name: &str) -> Result<Value, TrainError> {
        // Recorded steps of a GPU are told apart by the sizes of their arrays. Ops copy ids from the host themselves.
        step.tape.backend().branch(self.kept as u64)?;
        let kept: Tensor = step.batch.tensor(name)?.narrow(1, 0, self.kept)?.contiguous()?;
        Ok(Value::constant(kept))
    }

    /// Returns the kept columns of rows that follow each other.
    pub(super) fn of<T: Copy>(self, rows: &[T]) -> Vec<T> {
        rows.chunks(self.all.max(1)).flat_map(|row| row[..self.kept].iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_behind_all_texts_are_left_out() {
        let weights = [1.0, 0.0, 0.0, 0.0, 1.0, 0.5, 0.0, 0.0];
        let columns = Columns::with_weights(&weights, 4);
        assert_eq!((columns.all, columns.kept), (4, 2));
        assert_eq!(columns.of(&[1, 2, 3, 4, 5, 6, 7, 8]), [1, 2, 5, 6]);
        assert_eq!(Columns::with_weights(&[0.0; 4], 2).kept, 1);
    }
}

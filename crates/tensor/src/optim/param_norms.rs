//! Norms of whole parameters, of which ranks own parts.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use candle_core::DType;
use phalanx_kernels::ExactSquares;

use super::StateLocation;
use crate::backend::{Array, ComputeDevice};
use crate::store::{FlatStorage, ParamBucket};
use crate::{Context, Result};

/// The sums of squares of the weights and of the direction of each parameter with weight decay.
#[derive(Debug)]
pub(super) struct ParamNorms {
    /// By parameter name, the row of its sums.
    rows: BTreeMap<String, usize>,
    /// Of each row the sums of [`Operand`], f64: numbers, or exact digits.
    sums: FlatStorage,
    is_exact: bool,
}

/// A sum of a parameter.
#[derive(Debug, Clone, Copy)]
pub(super) enum Operand {
    Weights,
    Direction,
}

impl ParamNorms {
    /// Makes sums of 0 for these parameters and those of `model`, on the device that computes the step with state `at`; on the host if
    /// some parameters are there.
    pub(super) fn new(
        params: &[ParamBucket],
        model: &BTreeSet<String>,
        at: &StateLocation,
        is_exact: bool,
    ) -> Result<Self> {
        let trainable = || params.iter().filter(|param| param.trainable());
        let mut names = model.clone();
        for param in trainable() {
            let decayed = |range: &Range<usize>| {
                param.groups().iter().any(|group| group.decay && group.range.contains(&range.start))
            };
            for entry in param.entries().iter().filter(|entry| decayed(&entry.range)) {
                names.insert(entry.name.clone());
            }
        }
        let rows: BTreeMap<String, usize> = names.into_iter().zip(0..).collect();
        let is_host = |param: &ParamBucket| at.device(param).is_host();
        let device = match params.first() {
            Some(first) if !trainable().any(is_host) => first.storage_device().clone(),
            _ => ComputeDevice::host(),
        };
        let sums = FlatStorage::zeros(2 * rows.len() * width(is_exact), DType::F64, &device)?;
        Ok(Self { rows, sums, is_exact })
    }

    /// The sums, which ranks add up in place.
    pub(super) fn sums(&self) -> &Array {
        self.sums.array()
    }

    /// Returns the rows of the parameters inside of `group`, a range of owned elements, each with the range of its owned
    /// elements.
    pub(super) fn rows_of(&self, param: &ParamBucket, group: &Range<usize>) -> Vec<(usize, Range<usize>)> {
        let inside = |range: &Range<usize>| group.start <= range.start && range.end <= group.end;
        let entries = param.owned_entries().into_iter().filter(|entry| inside(&entry.range));
        entries.filter_map(|entry| Some((*self.rows.get(&entry.name)?, entry.range))).collect()
    }

    fn range(&self, (row, operand): (usize, Operand)) -> Range<usize> {
        let width = width(self.is_exact);
        let start = (2 * row + operand as usize) * width;
        start..start + width
    }

    /// Adds the squares of `elements` to a sum.
    pub(super) fn add(&self, sum: (usize, Operand), elements: &Array, context: &Context) -> Result<()> {
        let backend = elements.backend(context);
        let part = match self.is_exact {
            true => backend.exact_squares(elements)?,
            false => backend.sum_of_squares(elements)?,
        };
        let part = if self.sums().is_host() { part.to_host()?.into() } else { part };
        let part = FlatStorage::new(part.reshape(width(self.is_exact))?)?;
        self.sums.narrow(self.range(sum))?.add(&part)
    }

    /// Returns the sums of a row, of the weights and of the direction: scalars of f64 on the device of `weights`.
    pub(super) fn squares(&self, row: usize, weights: &Array, context: &Context) -> Result<[Array; 2]> {
        let value = |operand| -> Result<Array> {
            let range = self.range((row, operand));
            let value = match self.is_exact {
                true => {
                    let digits = self.sums.narrow(range)?;
                    digits.array().backend(context).exact_squares_value(digits.array())?
                }
                false => self.sums.view(range, &().into())?,
            };
            Ok(if value.is_host() { weights.alongside(&value.tensor()?)? } else { value })
        };
        Ok([value(Operand::Weights)?, value(Operand::Direction)?])
    }
}

/// The length of a sum.
fn width(is_exact: bool) -> usize {
    if is_exact { ExactSquares::DIGITS } else { 1 }
}

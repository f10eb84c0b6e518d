//! Values at random indices that are equal on all ranks: selection, residuals and scattering, on the host or on a device.

use std::ops::Range;

use candle_core::DType;
use phalanx_kernels::{clear_indices, gather_indices, random_indices, scatter_add};

use crate::Result;
use crate::slice::{DeviceSlice, FiniteFlag, FlatSlice, RankSplit, StateBuffer, mixed_memory};

/// The drawn entries of a slice.
#[derive(Debug)]
pub(crate) enum RandomEntries {
    /// The indices.
    Host(Vec<u32>),
    /// The stream of random numbers from which a device draws the indices, and the number of entries.
    Device { draw: u64, taken: usize },
}

impl FlatSlice<'_> {
    /// Draws `taken` entries of the slice by the stream `draw` of random numbers.
    pub(crate) fn draw(&self, draw: u64, taken: usize) -> RandomEntries {
        match self {
            Self::Host(numbers) => RandomEntries::Host(random_indices(draw, numbers.len(), taken)),
            Self::Device(_) => RandomEntries::Device { draw, taken },
        }
    }
}

impl RandomEntries {
    /// Returns the values of the entries, in the order of indices.
    pub(crate) fn take(&self, numbers: &FlatSlice<'_>) -> Result<StateBuffer> {
        match (self, numbers) {
            (Self::Host(indices), FlatSlice::Host(numbers)) => {
                let mut taken = vec![0.0; indices.len()];
                gather_indices(numbers, indices, &mut taken)?;
                Ok(StateBuffer::Host(taken))
            }
            (Self::Device { draw, taken }, FlatSlice::Device(DeviceSlice { flat, stream })) => {
                let taken = stream.room(*taken, DType::F32)?;
                stream.codecs()?.take_drawn(*draw, flat.array(), taken.array())?;
                Ok(StateBuffer::Device(taken))
            }
            _ => Err(mixed_memory()),
        }
    }

    /// Writes the values that were not selected to `held`, unless a value is not finite.
    pub(crate) fn keep_rest(
        &self,
        numbers: &FlatSlice<'_>,
        sound: &FiniteFlag,
        held: &mut StateBuffer,
    ) -> Result<()> {
        match (self, numbers, sound, held) {
            (Self::Host(_), _, FiniteFlag::Host(false), _) => Ok(()),
            (Self::Host(indices), FlatSlice::Host(numbers), _, StateBuffer::Host(held)) => {
                held.copy_from_slice(numbers);
                Ok(clear_indices(indices, held)?)
            }
            (
                Self::Device { draw, taken },
                FlatSlice::Device(numbers),
                FiniteFlag::Device(spoiled),
                StateBuffer::Device(held),
            ) => {
                let codecs = numbers.stream.codecs()?;
                codecs.hold(numbers.flat.array(), spoiled.array(), held.array())?;
                Ok(codecs.clear_drawn(*draw, *taken, (held.array(), spoiled.array()))?)
            }
            _ => Err(mixed_memory()),
        }
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Host(indices) => indices.len(),
            Self::Device { taken, .. } => *taken,
        }
    }

    /// Returns the range of entries, in the order of indices, that lie in each rank's part of `len` values.
    pub(crate) fn parts(&self, len: usize, cut: RankSplit) -> Vec<Range<usize>> {
        let of = |indices: &[u32]| {
            let at = |bound: usize| indices.partition_point(|index| (*index as usize) < bound);
            let part = |rank: usize| {
                let part = cut.part(len, rank);
                at(part.start)..at(part.end)
            };
            (0..cut.ranks).map(part).collect()
        };
        match self {
            Self::Host(indices) => of(indices),
            // The host needs the ranges for the lengths of messages; the device draws the same indices itself.
            Self::Device { draw, taken } => of(&random_indices(*draw, len, *taken)),
        }
    }

    /// Adds values to the entries in the range `runs`, which all lie in `own`.
    pub(crate) fn put(
        &self,
        values: &StateBuffer,
        (runs, own): (Range<usize>, Range<usize>),
        numbers: &mut FlatSlice<'_>,
    ) -> Result<()> {
        match (self, values, numbers) {
            (Self::Host(indices), StateBuffer::Host(values), FlatSlice::Host(numbers)) => {
                Ok(scatter_add(&indices[runs], values, numbers)?)
            }
            (
                Self::Device { draw, taken },
                StateBuffer::Device(values),
                FlatSlice::Device(DeviceSlice { flat, stream }),
            ) => {
                let codecs = stream.codecs()?;
                let all = match runs.len() == *taken {
                    true => values.clone(),
                    false => {
                        let all = stream.room(*taken, DType::F32)?;
                        codecs.copy(all.narrow(runs)?.array(), values.array())?;
                        all
                    }
                };
                Ok(codecs.put_drawn(*draw, all.array(), (flat.array(), own))?)
            }
            _ => Err(mixed_memory()),
        }
    }
}

impl StateBuffer {
    /// Returns a slice of these values, on the stream of `stream`.
    pub(crate) fn numbers(&mut self, stream: &FlatSlice<'_>) -> Result<FlatSlice<'_>> {
        match (self, stream) {
            (Self::Host(held), FlatSlice::Host(_)) => Ok(FlatSlice::Host(held)),
            (Self::Device(held), FlatSlice::Device(numbers)) => Ok(numbers.stream.also(held)),
            _ => Err(mixed_memory()),
        }
    }
}

//! Numbers at indices that all ranks draw alike: taken, kept of, and put back, on the host or on a device.

use std::ops::Range;

use candle_core::DType;
use phalanx_kernels::{clear_indices, gather_indices, random_indices, scatter_add};

use super::numbers::{Cut, Held, Numbers, OnDevice, Sound, apart};
use crate::Result;

/// Which numbers were drawn.
#[derive(Debug)]
pub(super) enum Drawn {
    /// Their indices.
    Host(Vec<u32>),
    /// The stream that a device draws them from, and how many.
    Device { draw: u64, taken: usize },
}

impl Numbers<'_> {
    /// Draws `taken` of them.
    pub(super) fn draw(&self, draw: u64, taken: usize) -> Drawn {
        match self {
            Self::Host(numbers) => Drawn::Host(random_indices(draw, numbers.len(), taken)),
            Self::Device(_) => Drawn::Device { draw, taken },
        }
    }
}

impl Drawn {
    /// The numbers, in the order of indices.
    pub(super) fn take(&self, numbers: &Numbers<'_>) -> Result<Held> {
        match (self, numbers) {
            (Self::Host(indices), Numbers::Host(numbers)) => {
                let mut taken = vec![0.0; indices.len()];
                gather_indices(numbers, indices, &mut taken)?;
                Ok(Held::Host(taken))
            }
            (Self::Device { draw, taken }, Numbers::Device(OnDevice { flat, beside })) => {
                let taken = beside.room(*taken, DType::F32)?;
                beside.codecs()?.take_drawn(*draw, flat.array(), taken.array())?;
                Ok(Held::Device(taken))
            }
            _ => Err(apart()),
        }
    }

    /// What was not drawn goes to `held`, unless the numbers are not finite.
    pub(super) fn keep_rest(&self, numbers: &Numbers<'_>, sound: &Sound, held: &mut Held) -> Result<()> {
        match (self, numbers, sound, held) {
            (Self::Host(_), _, Sound::Host(false), _) => Ok(()),
            (Self::Host(indices), Numbers::Host(numbers), _, Held::Host(held)) => {
                held.copy_from_slice(numbers);
                Ok(clear_indices(indices, held)?)
            }
            (
                Self::Device { draw, taken },
                Numbers::Device(numbers),
                Sound::Device(spoiled),
                Held::Device(held),
            ) => {
                let codecs = numbers.beside.codecs()?;
                codecs.hold(numbers.flat.array(), spoiled.array(), held.array())?;
                Ok(codecs.clear_drawn(*draw, *taken, (held.array(), spoiled.array()))?)
            }
            _ => Err(apart()),
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Host(indices) => indices.len(),
            Self::Device { taken, .. } => *taken,
        }
    }

    /// Which of them, in the order of indices, fall into each part of `len` numbers.
    pub(super) fn parts(&self, len: usize, cut: Cut) -> Vec<Range<usize>> {
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
            // Lengths of messages are the host's to know; the indices themselves need not travel to the device.
            Self::Device { draw, taken } => of(&random_indices(*draw, len, *taken)),
        }
    }

    /// Adds values to those `runs` of the drawn numbers, which all lie in `own`.
    pub(super) fn put(
        &self,
        values: &Held,
        (runs, own): (Range<usize>, Range<usize>),
        numbers: &mut Numbers<'_>,
    ) -> Result<()> {
        match (self, values, numbers) {
            (Self::Host(indices), Held::Host(values), Numbers::Host(numbers)) => {
                Ok(scatter_add(&indices[runs], values, numbers)?)
            }
            (
                Self::Device { draw, taken },
                Held::Device(values),
                Numbers::Device(OnDevice { flat, beside }),
            ) => {
                let codecs = beside.codecs()?;
                let all = match runs.len() == *taken {
                    true => values.clone(),
                    false => {
                        let all = beside.room(*taken, DType::F32)?;
                        codecs.copy(all.narrow(runs)?.array(), values.array())?;
                        all
                    }
                };
                Ok(codecs.put_drawn(*draw, all.array(), (flat.array(), own))?)
            }
            _ => Err(apart()),
        }
    }
}

impl Held {
    /// These as numbers to work on, where `beside` has its own.
    pub(super) fn numbers(&mut self, beside: &Numbers<'_>) -> Result<Numbers<'_>> {
        match (self, beside) {
            (Self::Host(held), Numbers::Host(_)) => Ok(Numbers::Host(held)),
            (Self::Device(held), Numbers::Device(numbers)) => Ok(numbers.beside.also(held)),
            _ => Err(apart()),
        }
    }
}

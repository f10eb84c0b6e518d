//! The numbers that a codec works on, where they lie: on the host as a slice, on a device as memory that its own codecs know.
//!
//! Algorithms are written once, over what is here.

use std::ops::Range;

use candle_core::DType;
use phalanx_kernels::Run;
use phalanx_tensor::FlatStorage;

use super::beside::Beside;
use super::bucket::Keeps;
use crate::buffer::with_singles;
use crate::{Result, ShardingError};

/// Numbers of f32: gradients, or sums of them.
#[derive(Debug)]
pub enum Numbers<'a> {
    /// On the host.
    Host(&'a mut [f32]),
    /// In a device's memory.
    Device(OnDevice),
}

/// Numbers of f32 in a device's memory, and the codecs that work on them there.
#[derive(Debug, Clone)]
pub struct OnDevice {
    pub(super) flat: FlatStorage,
    pub(super) beside: Beside,
}

impl Beside {
    /// Other numbers of the device, for the same work.
    pub(crate) fn also(&self, flat: &FlatStorage) -> Numbers<'static> {
        Numbers::Device(OnDevice { flat: self.hold(flat.clone()), beside: self.clone() })
    }
}

/// Numbers that a codec keeps from step to step, where it works on them.
#[derive(Debug, Clone)]
pub(super) enum Held {
    Host(Vec<f32>),
    Device(FlatStorage),
}

/// Whether numbers are finite.
#[derive(Debug)]
pub(super) enum Sound {
    Host(bool),
    /// What is not 0 if they are not.
    Device(FlatStorage),
}

/// How numbers are shared out: a part for each rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    pub(crate) keeps: Keeps,
    pub(crate) ranks: usize,
}

impl Cut {
    /// All numbers are one part.
    pub(super) const WHOLE: Self = Self { keeps: Keeps::Leader, ranks: 1 };

    /// The part of a rank.
    pub(super) fn part(self, len: usize, rank: usize) -> Range<usize> {
        self.keeps.part(len, self.ranks, rank)
    }

    /// How many parts are not empty for lack of a rank that takes them.
    pub(super) fn parts(self) -> usize {
        if self.keeps == Keeps::Leader { 1 } else { self.ranks }
    }
}

impl<'a> From<&'a mut [f32]> for Numbers<'a> {
    fn from(numbers: &'a mut [f32]) -> Self {
        Self::Host(numbers)
    }
}

impl<'a> Numbers<'a> {
    /// Those of a device's memory, which its codecs begin to work on after what was computed until now.
    pub(crate) fn beside(flat: &FlatStorage) -> Result<(Self, Beside)> {
        let beside = Beside::begin(flat)?;
        Ok((Self::Device(OnDevice { flat: flat.clone(), beside: beside.clone() }), beside))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(numbers) => numbers.len(),
            Self::Device(numbers) => numbers.flat.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers of the host, for a codec that works there.
    ///
    /// # Errors
    /// [`ShardingError::Codec`] naming the codec, if they lie on a device.
    pub fn on_host(self, codec: &str) -> Result<&'a mut [f32]> {
        match self {
            Self::Host(numbers) => Ok(numbers),
            Self::Device(_) => {
                Err(ShardingError::codec(codec, "encodes on processors, not in a GPU's memory"))
            }
        }
    }

    /// Some of them.
    pub(crate) fn part(&mut self, range: Range<usize>) -> Result<Numbers<'_>> {
        Ok(match self {
            Self::Host(numbers) => Numbers::Host(&mut numbers[range]),
            Self::Device(OnDevice { flat, beside }) => {
                Numbers::Device(OnDevice { flat: flat.narrow(range)?, beside: beside.clone() })
            }
        })
    }

    /// Overwrites memory by them.
    pub(crate) fn copy_to(&self, to: &FlatStorage) -> Result<()> {
        match self {
            Self::Host(numbers) => Ok(with_singles(to, |to| to.copy_from_slice(numbers))?),
            Self::Device(numbers) => Ok(numbers.beside.codecs()?.copy(to.array(), numbers.flat.array())?),
        }
    }

    /// Adds what was held back of them. If a sum is not finite all become NaN.
    pub(super) fn feed_back(&mut self, held: &Held) -> Result<Sound> {
        match (self, held) {
            (Self::Host(numbers), Held::Host(held)) => {
                numbers.iter_mut().zip(held).for_each(|(number, held)| *number += held);
                let sound = finite(numbers);
                if !sound {
                    numbers.fill(f32::NAN);
                }
                Ok(Sound::Host(sound))
            }
            (Self::Device(numbers), Held::Device(held)) => {
                let spoiled = numbers.beside.codecs()?.feed_back(numbers.flat.array(), held.array())?;
                Ok(Sound::Device(numbers.beside.hold(FlatStorage::new(spoiled)?)))
            }
            _ => Err(apart()),
        }
    }

    /// Adds runs of what was held to those of them that the runs go to.
    pub(super) fn add_runs(&mut self, held: &Held, runs: &[Run]) -> Result<()> {
        match (self, held) {
            (Self::Host(numbers), Held::Host(held)) => {
                for Run { from, to, len } in runs.iter().copied() {
                    let pairs = numbers[to..to + len].iter_mut().zip(&held[from..from + len]);
                    pairs.for_each(|(number, held)| *number += held);
                }
                Ok(())
            }
            (Self::Device(OnDevice { flat, beside }), Held::Device(held)) => {
                let held = beside.hold(held.clone());
                Ok(beside.codecs()?.move_runs(runs, (held.array(), flat.array()), true, None)?)
            }
            _ => Err(apart()),
        }
    }

    /// So many zeros that a codec keeps, where these are.
    pub(super) fn zeros(&self, len: usize) -> Result<Held> {
        Ok(match self {
            Self::Host(_) => Held::Host(vec![0.0; len]),
            Self::Device(numbers) => {
                let codecs = numbers.beside.codecs()?;
                let zeros = codecs.room(len, DType::F32)?;
                codecs.clear(&zeros)?;
                Held::Device(FlatStorage::new(zeros)?)
            }
        })
    }

    /// What a codec keeps, where these are: of a checkpoint it comes on the host.
    pub(super) fn bring(&self, held: Held) -> Result<Held> {
        Ok(match (self, held) {
            (Self::Device(numbers), Held::Host(held)) => {
                let len = held.len();
                let there = FlatStorage::new(numbers.beside.codecs()?.room(len, DType::F32)?)?;
                there.put(&candle_core::Tensor::from_vec(held, len, &candle_core::Device::Cpu)?)?;
                // What was computed until now is what has brought it.
                numbers.beside.codecs()?.begin()?;
                Held::Device(there)
            }
            (Self::Host(_), Held::Device(held)) => Held::Host(Held::Device(held).read()?),
            (_, held) => held,
        })
    }
}

impl From<Vec<f32>> for Held {
    fn from(held: Vec<f32>) -> Self {
        Self::Host(held)
    }
}

impl Held {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Host(held) => held.len(),
            Self::Device(held) => held.len(),
        }
    }

    /// The numbers, copied from the device if they lie there, for which this waits.
    pub(super) fn read(&self) -> Result<Vec<f32>> {
        match self {
            Self::Host(held) => Ok(held.clone()),
            Self::Device(held) => Ok(held.to_host()?.to_vec1()?),
        }
    }

    /// The numbers on the host.
    pub(super) fn into_host(self) -> Result<Vec<f32>> {
        match self {
            Self::Host(held) => Ok(held),
            device @ Self::Device(_) => device.read(),
        }
    }
}

/// The error for numbers of which some lie on the host and some on a device.
pub(super) fn apart() -> ShardingError {
    ShardingError::Step("a codec was given numbers of which some lie on the host and some on a device")
}

/// Whether all numbers are finite.
pub(super) fn finite(values: &[f32]) -> bool {
    phalanx_kernels::largest_magnitude(&phalanx_kernels::Context::new(1), values).is_finite()
}

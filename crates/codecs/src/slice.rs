//! The numbers that a codec works on, where they lie: on the host as a slice, on a device as memory that its own codecs know.
//!
//! Algorithms are written once, over what is here.

use std::ops::Range;

use candle_core::DType;
use phalanx_kernels::Run;
use phalanx_tensor::FlatStorage;

use crate::bucket::SumPlacement;
use crate::buffer::with_singles;
use crate::stream::CodecStream;
use crate::{CodecError, Result};

/// Numbers of f32: gradients, or sums of them.
#[derive(Debug)]
pub enum FlatSlice<'a> {
    /// On the host.
    Host(&'a mut [f32]),
    /// In a device's memory.
    Device(DeviceSlice),
}

/// Numbers of f32 in a device's memory, and the codecs that work on them there.
#[derive(Debug, Clone)]
pub struct DeviceSlice {
    pub(crate) flat: FlatStorage,
    pub(crate) stream: CodecStream,
}

impl CodecStream {
    /// Other numbers of the device, for the same work.
    pub fn also(&self, flat: &FlatStorage) -> FlatSlice<'static> {
        FlatSlice::Device(DeviceSlice { flat: self.hold(flat.clone()), stream: self.clone() })
    }
}

/// Numbers that a codec keeps from step to step, where it works on them.
#[derive(Debug, Clone)]
pub(crate) enum StateBuffer {
    Host(Vec<f32>),
    Device(FlatStorage),
}

/// True if all values are finite; on a device the flag lies there.
#[derive(Debug)]
pub(crate) enum FiniteFlag {
    Host(bool),
    /// A number that is not 0 if a value is not finite.
    Device(FlatStorage),
}

/// The division of values among ranks, a part for each rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RankSplit {
    pub(crate) keeps: SumPlacement,
    pub(crate) ranks: usize,
}

impl RankSplit {
    /// All numbers are one part.
    pub(crate) const WHOLE: Self = Self { keeps: SumPlacement::Root, ranks: 1 };

    /// The part of a rank.
    pub(crate) fn part(self, len: usize, rank: usize) -> Range<usize> {
        self.keeps.part(len, self.ranks, rank)
    }

    /// The number of parts that a rank takes.
    pub(crate) fn parts(self) -> usize {
        if self.keeps == SumPlacement::Root { 1 } else { self.ranks }
    }
}

impl<'a> From<&'a mut [f32]> for FlatSlice<'a> {
    fn from(numbers: &'a mut [f32]) -> Self {
        Self::Host(numbers)
    }
}

impl<'a> FlatSlice<'a> {
    /// Returns a slice of a device's memory, and the stream of its codecs. The stream waits for the work that the device
    /// was given before.
    pub fn on_device(flat: &FlatStorage) -> Result<(Self, CodecStream)> {
        let stream = CodecStream::begin(flat)?;
        Ok((Self::Device(DeviceSlice { flat: flat.clone(), stream: stream.clone() }), stream))
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        match self {
            Self::Host(numbers) => numbers.len(),
            Self::Device(numbers) => numbers.flat.len(),
        }
    }

    /// True if there are no values.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers of the host, for a codec that works there.
    ///
    /// # Errors
    /// [`CodecError::Codec`] naming the codec, if they lie on a device.
    pub fn on_host(self, codec: &str) -> Result<&'a mut [f32]> {
        match self {
            Self::Host(numbers) => Ok(numbers),
            Self::Device(_) => Err(CodecError::codec(codec, "encodes on CPUs, not in a GPU's memory")),
        }
    }

    /// Some of them.
    pub fn part(&mut self, range: Range<usize>) -> Result<FlatSlice<'_>> {
        Ok(match self {
            Self::Host(numbers) => FlatSlice::Host(&mut numbers[range]),
            Self::Device(DeviceSlice { flat, stream }) => {
                FlatSlice::Device(DeviceSlice { flat: flat.narrow(range)?, stream: stream.clone() })
            }
        })
    }

    /// Overwrites memory by them.
    pub fn copy_to(&self, to: &FlatStorage) -> Result<()> {
        match self {
            Self::Host(numbers) => Ok(with_singles(to, |to| to.copy_from_slice(numbers))?),
            Self::Device(numbers) => Ok(numbers.stream.codecs()?.copy(to.array(), numbers.flat.array())?),
        }
    }

    /// Adds what was held back of them. If a sum is not finite all become NaN.
    pub(crate) fn feed_back(&mut self, held: &StateBuffer) -> Result<FiniteFlag> {
        match (self, held) {
            (Self::Host(numbers), StateBuffer::Host(held)) => {
                numbers.iter_mut().zip(held).for_each(|(number, held)| *number += held);
                let sound = finite(numbers);
                if !sound {
                    numbers.fill(f32::NAN);
                }
                Ok(FiniteFlag::Host(sound))
            }
            (Self::Device(numbers), StateBuffer::Device(held)) => {
                let spoiled = numbers.stream.codecs()?.feed_back(numbers.flat.array(), held.array())?;
                Ok(FiniteFlag::Device(numbers.stream.hold(FlatStorage::new(spoiled)?)))
            }
            _ => Err(mixed_memory()),
        }
    }

    /// Adds runs of what was held to those of them that the runs go to.
    pub(crate) fn add_runs(&mut self, held: &StateBuffer, runs: &[Run]) -> Result<()> {
        match (self, held) {
            (Self::Host(numbers), StateBuffer::Host(held)) => {
                for Run { from, to, len } in runs.iter().copied() {
                    let pairs = numbers[to..to + len].iter_mut().zip(&held[from..from + len]);
                    pairs.for_each(|(number, held)| *number += held);
                }
                Ok(())
            }
            (Self::Device(DeviceSlice { flat, stream }), StateBuffer::Device(held)) => {
                let held = stream.hold(held.clone());
                Ok(stream.codecs()?.move_runs(runs, (held.array(), flat.array()), true, None)?)
            }
            _ => Err(mixed_memory()),
        }
    }

    /// Returns `len` zeros for a codec's state, in the same memory.
    pub(crate) fn zeros(&self, len: usize) -> Result<StateBuffer> {
        Ok(match self {
            Self::Host(_) => StateBuffer::Host(vec![0.0; len]),
            Self::Device(numbers) => {
                let codecs = numbers.stream.codecs()?;
                let zeros = codecs.room(len, DType::F32)?;
                codecs.clear(&zeros)?;
                StateBuffer::Device(FlatStorage::new(zeros)?)
            }
        })
    }

    /// Moves codec state to the memory of these values; state restored from a checkpoint is on the host.
    pub(crate) fn bring(&self, held: StateBuffer) -> Result<StateBuffer> {
        Ok(match (self, held) {
            (Self::Device(numbers), StateBuffer::Host(held)) => {
                let len = held.len();
                let there = FlatStorage::new(numbers.stream.codecs()?.room(len, DType::F32)?)?;
                there.put(&candle_core::Tensor::from_vec(held, len, &candle_core::Device::Cpu)?)?;
                // What was computed until now is what has brought it.
                numbers.stream.codecs()?.begin()?;
                StateBuffer::Device(there)
            }
            (Self::Host(_), StateBuffer::Device(held)) => {
                StateBuffer::Host(StateBuffer::Device(held).read()?)
            }
            (_, held) => held,
        })
    }
}

impl From<Vec<f32>> for StateBuffer {
    fn from(held: Vec<f32>) -> Self {
        Self::Host(held)
    }
}

impl StateBuffer {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Host(held) => held.len(),
            Self::Device(held) => held.len(),
        }
    }

    /// The numbers, copied from the device if they lie there, for which this waits.
    pub(crate) fn read(&self) -> Result<Vec<f32>> {
        match self {
            Self::Host(held) => Ok(held.clone()),
            Self::Device(held) => Ok(held.to_host()?.to_vec1()?),
        }
    }

    /// The numbers on the host.
    pub(crate) fn into_host(self) -> Result<Vec<f32>> {
        match self {
            Self::Host(held) => Ok(held),
            device @ Self::Device(_) => device.read(),
        }
    }
}

/// The error for numbers of which some lie on the host and some on a device.
pub(crate) fn mixed_memory() -> CodecError {
    CodecError::MixedMemory
}

/// True if all values are finite.
pub(crate) fn finite(values: &[f32]) -> bool {
    phalanx_kernels::largest_magnitude(&phalanx_kernels::Context::new(1), values).is_finite()
}

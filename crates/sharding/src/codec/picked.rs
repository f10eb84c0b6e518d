//! The entries that are sent of many numbers: picked, made messages, taken away from what is kept, and added up, on the host or on a
//! device.

use std::ops::Range;

use candle_core::DType;
use phalanx_kernels::{
    ChunkFormat, ChunkKind, accumulate_momentum, clear_indices, gather_indices, scatter_add, top_k,
};
use phalanx_tensor::FlatStorage;
use phalanx_tensor::backend::{DeviceCodecs, PackedMessages};

use super::beside::Beside;
use super::bucket::Keeps;
use super::entries::{Entries, Values};
use super::messages::{Messages, Packed};
use super::numbers::{Cut, Held, Numbers, OnDevice, Sound, apart, finite};
use crate::Result;

/// Entries that were picked.
#[derive(Debug)]
pub(super) enum Picked {
    Host {
        indices: Vec<u32>,
    },
    /// Their indices behind their count, and what their messages say of them, if that is not what they are.
    Device {
        indices: FlatStorage,
        taken: usize,
        said: Option<FlatStorage>,
        beside: Beside,
    },
}

/// Where the pieces of a message lie in a device's memory: the count and indices, then the numbers, as f32 or in chunks.
#[derive(Debug, Clone, Copy)]
struct Layout {
    indices: usize,
    /// What numbers become, and the bytes from one message to the next.
    chunks: Option<(ChunkFormat, usize)>,
    taken: usize,
}

impl Layout {
    /// What is read at once begins at a multiple of so many bytes.
    const ALIGNED: usize = 16;

    fn of(wire: &Entries, codecs: &dyn DeviceCodecs, taken: usize) -> Self {
        let chunks = match wire.values {
            Values::Plain => None,
            Values::Int8(chunk) => {
                let format = ChunkFormat { kind: ChunkKind::Int8, chunk };
                Some((format, codecs.stride(format, taken, 1)))
            }
        };
        Self { indices: codecs.index_bytes(taken), chunks, taken }
    }

    fn stride(&self) -> usize {
        let numbers = self.chunks.map_or(4 * self.taken, |(_, stride)| stride);
        (self.indices + numbers).next_multiple_of(Self::ALIGNED)
    }

    fn indices(&self, message: &FlatStorage) -> Result<FlatStorage> {
        Ok(message.narrow(0..self.indices)?)
    }

    fn numbers(&self, message: &FlatStorage) -> Result<FlatStorage> {
        let bytes = self.chunks.map_or(4 * self.taken, |(_, stride)| stride);
        Ok(message.narrow(self.indices..self.indices + bytes)?)
    }

    /// The numbers of a message: where they lie in it, or decoded to `room`.
    fn read(
        &self,
        message: &FlatStorage,
        room: Option<&FlatStorage>,
        beside: &Beside,
    ) -> Result<FlatStorage> {
        let bytes = self.numbers(message)?;
        let (Some((format, stride)), Some(room)) = (self.chunks, room) else { return Ok(bytes) };
        let messages = PackedMessages { format, bytes: bytes.array(), stride };
        beside.codecs()?.decode(messages, (1, 1), room.array())?;
        Ok(room.clone())
    }

    /// Room for decoded numbers, if there is anything to decode.
    fn room(&self, beside: &Beside) -> Result<Option<FlatStorage>> {
        Ok(self.chunks.map(|_| beside.room(self.taken, DType::F32)).transpose()?)
    }
}

impl Entries {
    /// The `taken` numbers of largest magnitude as messages: on the host to all, or to each rank what falls into its part; on a device
    /// to all.
    pub(super) fn pick(
        &self,
        numbers: &Numbers<'_>,
        taken: usize,
        (cut, rank): (Cut, usize),
    ) -> Result<(Picked, Messages)> {
        match numbers {
            Numbers::Host(numbers) => {
                let (mut indices, mut values) = (Vec::new(), vec![0.0; taken]);
                top_k(&self.context, numbers, taken, &mut indices)?;
                gather_indices(numbers, &indices, &mut values)?;
                let of = |to: usize| {
                    let part = cut.part(numbers.len(), to);
                    let at = |bound: usize| indices.partition_point(|index| (*index as usize) < bound);
                    let range = at(part.start)..at(part.end);
                    self.message(&indices[range.clone()], &values[range])
                };
                let messages = match cut.keeps {
                    Keeps::All => vec![self.message(&indices, &values)?],
                    Keeps::Shard | Keeps::Leader => (0..cut.ranks).map(of).collect::<Result<_>>()?,
                };
                Ok((Picked::Host { indices }, Messages::Host(messages)))
            }
            Numbers::Device(OnDevice { flat, beside }) => {
                let codecs = beside.codecs()?;
                let layout = Layout::of(self, codecs, taken);
                let stride = layout.stride();
                let among = beside.room(stride * cut.ranks, DType::U8)?;
                let bytes = among.narrow(rank * stride..(rank + 1) * stride)?;
                let (indices, place) = (layout.indices(&bytes)?, layout.numbers(&bytes)?);
                let exact = layout.room(beside)?;
                let to = (indices.array(), exact.as_ref().unwrap_or(&place).array());
                beside.hold(FlatStorage::new(codecs.largest((flat.array(), taken), to)?)?);
                let mut said = None;
                if let (Some((format, stride)), Some(exact)) = (layout.chunks, &exact) {
                    let messages = PackedMessages { format, bytes: place.array(), stride };
                    codecs.encode((exact.array(), 1), (0, 0), messages)?;
                    said = Some(layout.read(&bytes, Some(exact), beside)?);
                }
                let packed = Packed { bytes, stride, beside: beside.clone(), among: Some(among) };
                let beside = beside.clone();
                Ok((Picked::Device { indices, taken, said, beside }, Messages::Device(packed)))
            }
        }
    }

    /// What messages have left out of the numbers goes to `held`, unless these are not finite.
    pub(super) fn keep_rest(
        &self,
        numbers: &Numbers<'_>,
        (picked, messages): (&Picked, &Messages),
        (sound, held): (&Sound, &mut Held),
    ) -> Result<()> {
        match (numbers, messages, sound, &mut *held) {
            (Numbers::Host(_), _, Sound::Host(false), _) => return Ok(()),
            (Numbers::Host(numbers), Messages::Host(messages), _, Held::Host(held)) => {
                held.copy_from_slice(numbers);
                if self.values != Values::Plain {
                    for message in messages {
                        let (indices, values) = self.entries_of(message, numbers.len())?;
                        indices.iter().zip(values).for_each(|(at, value)| held[*at as usize] -= value);
                    }
                    return Ok(());
                }
            }
            (Numbers::Device(numbers), _, Sound::Device(spoiled), Held::Device(held)) => {
                numbers.beside.codecs()?.hold(numbers.flat.array(), spoiled.array(), held.array())?;
            }
            _ => return Err(apart()),
        }
        picked.take_from(sound, held)
    }

    /// Overwrites numbers `own` by what messages of `taken` entries each say of them, added up in the order of ranks.
    pub(super) fn add_up(
        &self,
        messages: &Messages,
        taken: usize,
        (numbers, own): (&mut Numbers<'_>, Range<usize>),
    ) -> Result<()> {
        numbers.part(own.clone())?.clear()?;
        match (numbers, messages) {
            (Numbers::Host(numbers), Messages::Host(messages)) => {
                for message in messages {
                    let (indices, values) = self.entries_of(message, numbers.len())?;
                    scatter_add(&indices, &values, numbers)?;
                }
                Ok(())
            }
            (
                Numbers::Device(OnDevice { flat, .. }),
                Messages::Device(Packed { bytes, stride, beside, .. }),
            ) => {
                let codecs = beside.codecs()?;
                let layout = Layout::of(self, codecs, taken);
                let room = layout.room(beside)?;
                for start in (0..bytes.len()).step_by((*stride).max(1)) {
                    let message = bytes.narrow(start..start + stride)?;
                    let values = layout.read(&message, room.as_ref(), beside)?;
                    let entries = (layout.indices(&message)?, values);
                    let to = (flat.array(), own.clone());
                    codecs.scatter((entries.0.array(), entries.1.array()), taken, to)?;
                }
                Ok(())
            }
            _ => Err(apart()),
        }
    }
}

impl Picked {
    /// Makes what is held of these entries 0, or what their messages do not say of them, unless the numbers are not finite.
    pub(super) fn take_from(&self, sound: &Sound, held: &mut Held) -> Result<()> {
        self.taken_from(sound, held, true)
    }

    /// Makes what is held of these entries 0, unless the numbers are not finite.
    pub(super) fn clear(&self, sound: &Sound, held: &mut Held) -> Result<()> {
        self.taken_from(sound, held, false)
    }

    fn taken_from(&self, sound: &Sound, held: &mut Held, as_said: bool) -> Result<()> {
        match (self, sound, held) {
            (Self::Host { .. }, Sound::Host(false), _) => Ok(()),
            (Self::Host { indices }, Sound::Host(true), Held::Host(held)) => {
                Ok(clear_indices(indices, held)?)
            }
            (Self::Device { indices, taken, said, beside }, Sound::Device(spoiled), Held::Device(held)) => {
                let said = said.as_ref().filter(|_| as_said).map(FlatStorage::array);
                let of = (held.array(), spoiled.array());
                Ok(beside.codecs()?.take_away((indices.array(), said), *taken, of)?)
            }
            _ => Err(apart()),
        }
    }
}

impl Numbers<'_> {
    /// Makes all of them 0.
    pub(super) fn clear(&mut self) -> Result<()> {
        match self {
            Self::Host(numbers) => {
                numbers.fill(0.0);
                Ok(())
            }
            Self::Device(OnDevice { flat, beside }) => Ok(beside.codecs()?.clear(flat.array())?),
        }
    }

    /// velocity ← momentum·velocity + gradients, sum ← sum + velocity, and these gradients become the sum. If they are not finite they
    /// become NaN, and the others stay.
    pub(super) fn gather_momentum(
        &mut self,
        (velocity, sum): (&mut Held, &mut Held),
        momentum: f32,
        context: &phalanx_kernels::Context,
    ) -> Result<Sound> {
        match (self, velocity, sum) {
            (Self::Host(gradients), Held::Host(velocity), Held::Host(sum)) => {
                let sound = finite(gradients);
                if sound {
                    accumulate_momentum(context, momentum, gradients, velocity, sum)?;
                    gradients.copy_from_slice(sum);
                } else {
                    gradients.fill(f32::NAN);
                }
                Ok(Sound::Host(sound))
            }
            (Self::Device(OnDevice { flat, beside }), Held::Device(velocity), Held::Device(sum)) => {
                let of = (velocity.array(), sum.array());
                let spoiled = beside.codecs()?.gather_momentum(flat.array(), of, momentum)?;
                Ok(Sound::Device(beside.hold(FlatStorage::new(spoiled)?)))
            }
            _ => Err(apart()),
        }
    }
}

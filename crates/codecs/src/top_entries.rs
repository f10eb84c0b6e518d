//! Selects the largest entries, encodes them, subtracts them from residuals, and sums received entries, on the host or
//! on a device.

use std::ops::Range;

use candle_core::DType;
use phalanx_kernels::{
    ChunkFormat, ChunkKind, accumulate_momentum, clear_indices, gather_indices, scatter_add, top_k,
};
use phalanx_tensor::FlatStorage;
use phalanx_tensor::backend::{DeviceCodecs, PackedMessages};

use crate::Result;
use crate::bucket::SumPlacement;
use crate::entries::{Entries, ValueFormat};
use crate::messages::{Messages, Packed};
use crate::slice::{DeviceSlice, FiniteFlag, FlatSlice, RankSplit, StateBuffer, finite, mixed_memory};
use crate::stream::CodecStream;

/// The selected entries.
#[derive(Debug)]
pub(crate) enum TopEntries {
    Host {
        indices: Vec<u32>,
    },
    /// Their count and indices, and their decoded values if the message is lossy.
    Device {
        indices: FlatStorage,
        taken: usize,
        said: Option<FlatStorage>,
        stream: CodecStream,
    },
}

/// The layout of a message in a device's memory: the count and indices, then the values, as f32 or in chunks.
#[derive(Debug, Clone, Copy)]
struct EncodedLayout {
    indices: usize,
    /// The format of encoded values, and the stride of messages in bytes.
    chunks: Option<(ChunkFormat, usize)>,
    taken: usize,
}

impl EncodedLayout {
    /// The alignment of reads, in bytes.
    const ALIGNED: usize = 16;

    fn of(wire: &Entries, codecs: &dyn DeviceCodecs, taken: usize) -> Self {
        let chunks = match wire.values {
            ValueFormat::F32 => None,
            ValueFormat::Int8(chunk) => {
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

    /// Returns the values of a message: in place, or decoded to `room`.
    fn read(
        &self,
        message: &FlatStorage,
        room: Option<&FlatStorage>,
        stream: &CodecStream,
    ) -> Result<FlatStorage> {
        let bytes = self.numbers(message)?;
        let (Some((format, stride)), Some(room)) = (self.chunks, room) else { return Ok(bytes) };
        let messages = PackedMessages { format, bytes: bytes.array(), stride };
        stream.codecs()?.decode(messages, (1, 1), room.array())?;
        Ok(room.clone())
    }

    /// Returns memory for decoded values, if values are encoded.
    fn room(&self, stream: &CodecStream) -> Result<Option<FlatStorage>> {
        Ok(self.chunks.map(|_| stream.room(self.taken, DType::F32)).transpose()?)
    }
}

impl Entries {
    /// Encodes the `taken` numbers of largest magnitude as messages. On the host there is one message for all ranks, or
    /// one for each rank's part; on a device one for all.
    pub(crate) fn pick(
        &self,
        numbers: &FlatSlice<'_>,
        taken: usize,
        (cut, rank): (RankSplit, usize),
    ) -> Result<(TopEntries, Messages)> {
        match numbers {
            FlatSlice::Host(numbers) => {
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
                    SumPlacement::All => vec![self.message(&indices, &values)?],
                    SumPlacement::Shard | SumPlacement::Root => {
                        (0..cut.ranks).map(of).collect::<Result<_>>()?
                    }
                };
                Ok((TopEntries::Host { indices }, Messages::Host(messages)))
            }
            FlatSlice::Device(DeviceSlice { flat, stream }) => {
                let codecs = stream.codecs()?;
                let layout = EncodedLayout::of(self, codecs, taken);
                let stride = layout.stride();
                let among = stream.room(stride * cut.ranks, DType::U8)?;
                let bytes = among.narrow(rank * stride..(rank + 1) * stride)?;
                let (indices, place) = (layout.indices(&bytes)?, layout.numbers(&bytes)?);
                let exact = layout.room(stream)?;
                let to = (indices.array(), exact.as_ref().unwrap_or(&place).array());
                stream.hold(FlatStorage::new(codecs.largest((flat.array(), taken), to)?)?);
                let mut said = None;
                if let (Some((format, stride)), Some(exact)) = (layout.chunks, &exact) {
                    let messages = PackedMessages { format, bytes: place.array(), stride };
                    codecs.encode((exact.array(), 1), (0, 0), messages)?;
                    said = Some(layout.read(&bytes, Some(exact), stream)?);
                }
                let packed = Packed { bytes, stride, stream: stream.clone(), among: Some(among) };
                let stream = stream.clone();
                Ok((TopEntries::Device { indices, taken, said, stream }, Messages::Device(packed)))
            }
        }
    }

    /// Writes the values without their sent part to `held`, unless a value is not finite.
    pub(crate) fn keep_rest(
        &self,
        numbers: &FlatSlice<'_>,
        (picked, messages): (&TopEntries, &Messages),
        (sound, held): (&FiniteFlag, &mut StateBuffer),
    ) -> Result<()> {
        match (numbers, messages, sound, &mut *held) {
            (FlatSlice::Host(_), _, FiniteFlag::Host(false), _) => return Ok(()),
            (FlatSlice::Host(numbers), Messages::Host(messages), _, StateBuffer::Host(held)) => {
                held.copy_from_slice(numbers);
                if self.values != ValueFormat::F32 {
                    for message in messages {
                        let (indices, values) = self.entries_of(message, numbers.len())?;
                        indices.iter().zip(values).for_each(|(at, value)| held[*at as usize] -= value);
                    }
                    return Ok(());
                }
            }
            (FlatSlice::Device(numbers), _, FiniteFlag::Device(spoiled), StateBuffer::Device(held)) => {
                numbers.stream.codecs()?.hold(numbers.flat.array(), spoiled.array(), held.array())?;
            }
            _ => return Err(mixed_memory()),
        }
        picked.take_from(sound, held)
    }

    /// Overwrites numbers `own` by the sum of messages of `taken` entries each, in the order of ranks.
    pub(crate) fn add_up(
        &self,
        messages: &Messages,
        taken: usize,
        (numbers, own): (&mut FlatSlice<'_>, Range<usize>),
    ) -> Result<()> {
        numbers.part(own.clone())?.clear()?;
        match (numbers, messages) {
            (FlatSlice::Host(numbers), Messages::Host(messages)) => {
                for message in messages {
                    let (indices, values) = self.entries_of(message, numbers.len())?;
                    scatter_add(&indices, &values, numbers)?;
                }
                Ok(())
            }
            (
                FlatSlice::Device(DeviceSlice { flat, .. }),
                Messages::Device(Packed { bytes, stride, stream, .. }),
            ) => {
                let codecs = stream.codecs()?;
                let layout = EncodedLayout::of(self, codecs, taken);
                let room = layout.room(stream)?;
                for start in (0..bytes.len()).step_by((*stride).max(1)) {
                    let message = bytes.narrow(start..start + stride)?;
                    let values = layout.read(&message, room.as_ref(), stream)?;
                    let entries = (layout.indices(&message)?, values);
                    let to = (flat.array(), own.clone());
                    codecs.scatter((entries.0.array(), entries.1.array()), taken, to)?;
                }
                Ok(())
            }
            _ => Err(mixed_memory()),
        }
    }
}

impl TopEntries {
    /// Replaces the residuals of these entries by their rounding errors, or 0. If a value is not finite, residuals
    /// stay.
    pub(crate) fn take_from(&self, sound: &FiniteFlag, held: &mut StateBuffer) -> Result<()> {
        self.taken_from(sound, held, true)
    }

    /// Sets the residuals of these entries to 0. If a value is not finite, residuals stay.
    pub(crate) fn clear(&self, sound: &FiniteFlag, held: &mut StateBuffer) -> Result<()> {
        self.taken_from(sound, held, false)
    }

    fn taken_from(&self, sound: &FiniteFlag, held: &mut StateBuffer, as_said: bool) -> Result<()> {
        match (self, sound, held) {
            (Self::Host { .. }, FiniteFlag::Host(false), _) => Ok(()),
            (Self::Host { indices }, FiniteFlag::Host(true), StateBuffer::Host(held)) => {
                Ok(clear_indices(indices, held)?)
            }
            (
                Self::Device { indices, taken, said, stream },
                FiniteFlag::Device(spoiled),
                StateBuffer::Device(held),
            ) => {
                let said = said.as_ref().filter(|_| as_said).map(FlatStorage::array);
                let of = (held.array(), spoiled.array());
                Ok(stream.codecs()?.take_away((indices.array(), said), *taken, of)?)
            }
            _ => Err(mixed_memory()),
        }
    }
}

impl FlatSlice<'_> {
    /// Sets all numbers to 0.
    pub(crate) fn clear(&mut self) -> Result<()> {
        match self {
            Self::Host(numbers) => {
                numbers.fill(0.0);
                Ok(())
            }
            Self::Device(DeviceSlice { flat, stream }) => Ok(stream.codecs()?.clear(flat.array())?),
        }
    }

    /// Accumulates momentum: velocity ← momentum·velocity + gradients, sum ← sum + velocity. The gradients become the
    /// sum. If a value is not finite, they become NaN and the state stays.
    pub(crate) fn gather_momentum(
        &mut self,
        (velocity, sum): (&mut StateBuffer, &mut StateBuffer),
        momentum: f32,
        context: &phalanx_kernels::Context,
    ) -> Result<FiniteFlag> {
        match (self, velocity, sum) {
            (Self::Host(gradients), StateBuffer::Host(velocity), StateBuffer::Host(sum)) => {
                let sound = finite(gradients);
                if sound {
                    accumulate_momentum(context, momentum, gradients, velocity, sum)?;
                    gradients.copy_from_slice(sum);
                } else {
                    gradients.fill(f32::NAN);
                }
                Ok(FiniteFlag::Host(sound))
            }
            (
                Self::Device(DeviceSlice { flat, stream }),
                StateBuffer::Device(velocity),
                StateBuffer::Device(sum),
            ) => {
                let of = (velocity.array(), sum.array());
                let spoiled = stream.codecs()?.gather_momentum(flat.array(), of, momentum)?;
                Ok(FiniteFlag::Device(stream.hold(FlatStorage::new(spoiled)?)))
            }
            _ => Err(mixed_memory()),
        }
    }
}

//! Messages of quantised numbers: made of numbers, sent, and made numbers again, on the host or on a device.

use candle_core::DType;
use phalanx_kernels::{ChunkFormat, mixed_with};
use phalanx_tensor::FlatStorage;
use phalanx_tensor::backend::PackedMessages;

use crate::quantisers::Quantiser;
use crate::slice::{DeviceSlice, FiniteFlag, FlatSlice, RankSplit, StateBuffer, mixed_memory};
use crate::stream::CodecStream;
use crate::{CodecError, Result};

/// Messages by part, or by the rank that they come from.
#[derive(Debug)]
pub(crate) enum Messages {
    Host(Vec<Vec<u8>>),
    Device(Packed),
}

/// Messages in a device's memory.
#[derive(Debug)]
pub(crate) struct Packed {
    pub(crate) bytes: FlatStorage,
    /// Where each begins after the one before.
    pub(crate) stride: usize,
    pub(crate) stream: CodecStream,
    /// The memory for the messages of all ranks, if this message is to be gathered.
    pub(crate) among: Option<FlatStorage>,
}

impl Packed {
    fn as_array(&self, format: ChunkFormat) -> PackedMessages<'_> {
        PackedMessages { format, bytes: self.bytes.array(), stride: self.stride }
    }
}

/// The format of a quantiser's messages on devices.
fn format_of(quantiser: &dyn Quantiser) -> Result<ChunkFormat> {
    let wrong = || CodecError::codec(quantiser.name(), "encodes on CPUs, not in a GPU's memory");
    quantiser.format().ok_or_else(wrong)
}

impl FlatSlice<'_> {
    /// A message for each part. Random numbers of part `p` are those of stream `mixed_with(draw, p)`.
    pub(crate) fn encode(&self, quantiser: &dyn Quantiser, cut: RankSplit, draw: u64) -> Result<Messages> {
        match self {
            Self::Host(numbers) => {
                let message = |to: usize| {
                    let part = &numbers[cut.part(numbers.len(), to)];
                    let mut message = Vec::with_capacity(quantiser.message_len(part.len()));
                    quantiser.encode(part, mixed_with(draw, to as u64), &mut message)?;
                    Ok(message)
                };
                Ok(Messages::Host((0..cut.ranks).map(message).collect::<Result<_>>()?))
            }
            Self::Device(numbers) => {
                let (codecs, format) = (numbers.stream.codecs()?, format_of(quantiser)?);
                let stride = codecs.stride(format, numbers.flat.len(), cut.parts());
                let bytes = numbers.stream.room(stride * cut.parts(), DType::U8)?;
                let packed = Packed { bytes, stride, stream: numbers.stream.clone(), among: None };
                codecs.encode((numbers.flat.array(), cut.parts()), (draw, 0), packed.as_array(format))?;
                Ok(Messages::Device(packed))
            }
        }
    }

    /// One message of this rank's part of `len` numbers, for all ranks. Its random numbers are those of stream
    /// `mixed_with(draw, rank)`.
    pub(crate) fn encode_own(
        &self,
        quantiser: &dyn Quantiser,
        (len, rank, ranks): (usize, usize, usize),
        draw: u64,
    ) -> Result<Messages> {
        match self {
            Self::Host(numbers) => {
                let mut message = Vec::with_capacity(quantiser.message_len(numbers.len()));
                quantiser.encode(numbers, mixed_with(draw, rank as u64), &mut message)?;
                Ok(Messages::Host(vec![message]))
            }
            Self::Device(numbers) => {
                let (codecs, format) = (numbers.stream.codecs()?, format_of(quantiser)?);
                let stride = codecs.stride(format, len, ranks);
                let among = numbers.stream.room(stride * ranks, DType::U8)?;
                let bytes = among.narrow(rank * stride..(rank + 1) * stride)?;
                let packed = Packed { bytes, stride, stream: numbers.stream.clone(), among: Some(among) };
                let draw = (draw, rank as u64);
                codecs.encode((numbers.flat.array(), 1), draw, packed.as_array(format))?;
                Ok(Messages::Device(packed))
            }
        }
    }

    /// Overwrites all of the numbers by what messages of as many ranks say of them, added up in f32 in the order of ranks.
    pub(crate) fn add_up(&mut self, quantiser: &dyn Quantiser, messages: &Messages) -> Result<()> {
        match (self, messages) {
            (Self::Host(numbers), Messages::Host(messages)) => {
                let decode =
                    |(from, message): (usize, &Vec<u8>)| quantiser.decode(message, numbers, from > 0);
                messages.iter().enumerate().try_for_each(decode)
            }
            (Self::Device(DeviceSlice { flat, .. }), _) if flat.is_empty() => Ok(()),
            (Self::Device(DeviceSlice { flat, stream }), Messages::Device(packed)) => {
                let format = format_of(quantiser)?;
                let sources = packed.bytes.len() / packed.stride.max(1);
                Ok(stream.codecs()?.decode(packed.as_array(format), (1, sources), flat.array())?)
            }
            _ => Err(mixed_memory()),
        }
    }

    /// Overwrites each part of the numbers by what its message says.
    pub(crate) fn decode(
        &mut self,
        quantiser: &dyn Quantiser,
        messages: &Messages,
        cut: RankSplit,
    ) -> Result<()> {
        match (self, messages) {
            (Self::Host(numbers), Messages::Host(messages)) => {
                for (from, message) in messages.iter().enumerate() {
                    let part = cut.part(numbers.len(), from);
                    quantiser.decode(message, &mut numbers[part], false)?;
                }
                Ok(())
            }
            (Self::Device(DeviceSlice { flat, stream }), Messages::Device(packed)) => {
                let format = format_of(quantiser)?;
                Ok(stream.codecs()?.decode(packed.as_array(format), (cut.parts(), 1), flat.array())?)
            }
            _ => Err(mixed_memory()),
        }
    }

    /// Computes the residual: the values minus their decoded messages. If the values are not finite, the residual stays as
    /// it was.
    pub(crate) fn errors(
        &self,
        quantiser: &dyn Quantiser,
        messages: &Messages,
        cut: RankSplit,
        (sound, held): (&FiniteFlag, &mut StateBuffer),
    ) -> Result<()> {
        match (self, messages, sound, held) {
            (Self::Host(_), Messages::Host(_), FiniteFlag::Host(false), _) => Ok(()),
            (
                Self::Host(numbers),
                Messages::Host(messages),
                FiniteFlag::Host(true),
                StateBuffer::Host(held),
            ) => {
                held.fill(0.0);
                for (to, message) in messages.iter().enumerate() {
                    let part = cut.part(numbers.len(), to);
                    quantiser.decode(message, &mut held[part.clone()], false)?;
                    held[part.clone()].iter_mut().zip(&numbers[part]).for_each(|(held, number)| {
                        *held = number - *held;
                    });
                }
                Ok(())
            }
            (
                Self::Device(DeviceSlice { flat, stream }),
                Messages::Device(packed),
                FiniteFlag::Device(spoiled),
                StateBuffer::Device(held),
            ) => {
                let (messages, of) = (packed.as_array(format_of(quantiser)?), (flat.array(), cut.parts()));
                Ok(stream.codecs()?.errors(messages, of, spoiled.array(), held.array())?)
            }
            _ => Err(mixed_memory()),
        }
    }
}

//! Quantisers: messages of integers, levels or signs, and lossless messages.

use std::sync::Arc;

use candle_core::DType;
use phalanx_kernels::{
    ChunkFormat, ChunkKind, Context, compress_lossless, decompress_lossless, dequantise_int4,
    dequantise_int8, dequantise_stochastic, int4_len, lossless_bound, quantise_int4, quantise_int8,
    quantise_stochastic, scales_len, sign_decode, sign_encode, sign_len,
};

use crate::{CodecError, Result};

/// Turns numbers into a message and back.
pub(crate) trait Quantiser: std::fmt::Debug + Send + Sync {
    fn name(&self) -> &'static str;

    /// The format of messages, if devices support it.
    fn format(&self) -> Option<ChunkFormat> {
        None
    }

    /// Returns the element type of messages that are only rounded numbers.
    fn rounds_to(&self) -> Option<DType> {
        None
    }

    /// Returns the most bytes of a message of `len` numbers. Lossless messages may be shorter.
    fn message_len(&self, len: usize) -> usize;

    /// Appends a message. `draw` is a stream of random numbers for it.
    fn encode(&self, values: &[f32], draw: u64, out: &mut Vec<u8>) -> Result<()>;

    /// Decodes a message to `out`, or adds it to `out`.
    fn decode(&self, message: &[u8], out: &mut [f32], add: bool) -> Result<()>;
}

/// Integers or signs in chunks of numbers, each with a scale.
#[derive(Debug, Clone)]
pub(crate) struct Chunks {
    format: ChunkFormat,
    context: Arc<Context>,
}

impl Chunks {
    pub(crate) fn new(format: ChunkFormat) -> Self {
        Self { format, context: Arc::new(Context::new(1)) }
    }
}

impl Quantiser for Chunks {
    fn name(&self) -> &'static str {
        self.format.kind.name()
    }

    fn format(&self) -> Option<ChunkFormat> {
        Some(self.format)
    }

    fn message_len(&self, len: usize) -> usize {
        self.format.message_len(len)
    }

    fn encode(&self, values: &[f32], draw: u64, out: &mut Vec<u8>) -> Result<()> {
        let (len, context, ChunkFormat { kind, chunk }) = (values.len(), &self.context, self.format);
        let mut scales = vec![0.0; scales_len(len, chunk)];
        let mut bytes = Vec::new();
        match kind {
            ChunkKind::Int8 | ChunkKind::Qsgd => {
                let mut whole = vec![0_i8; len];
                match kind {
                    ChunkKind::Int8 => quantise_int8(context, values, chunk, &mut scales, &mut whole)?,
                    _ => quantise_stochastic(
                        context,
                        (values, chunk),
                        (ChunkFormat::LEVELS, draw),
                        &mut scales,
                        &mut whole,
                    )?,
                }
                bytes.extend(whole.iter().map(|q| q.cast_unsigned()));
            }
            ChunkKind::Int4 => {
                bytes.resize(int4_len(len), 0);
                quantise_int4(context, values, chunk, &mut scales, &mut bytes)?;
            }
            ChunkKind::Sign => {
                bytes.resize(sign_len(len), 0);
                sign_encode(context, values, chunk, &mut scales, &mut bytes)?;
            }
        }
        put_numbers(&scales, out);
        out.extend(bytes);
        Ok(())
    }

    fn decode(&self, message: &[u8], out: &mut [f32], add: bool) -> Result<()> {
        if message.len() != self.message_len(out.len()) {
            return Err(bad_message(self.name(), message, out.len()));
        }
        let (scales, bytes) = message.split_at(self.format.scale_bytes(out.len()));
        let (scales, context, chunk) = (numbers(scales), &self.context, self.format.chunk);
        let signed = || bytes.iter().map(|byte| byte.cast_signed()).collect::<Vec<i8>>();
        Ok(match self.format.kind {
            ChunkKind::Int8 => dequantise_int8(context, (&scales, &signed()), chunk, out, add),
            ChunkKind::Qsgd => {
                dequantise_stochastic(context, (&scales, &signed()), (chunk, ChunkFormat::LEVELS), out, add)
            }
            ChunkKind::Int4 => dequantise_int4(context, (&scales, bytes), chunk, out, add),
            ChunkKind::Sign => sign_decode(context, (&scales, bytes), chunk, out, add),
        }?)
    }
}

/// The numbers without loss, their exponents entropy-coded.
#[derive(Debug, Clone)]
pub(crate) struct Lossless {
    context: Arc<Context>,
}

impl Lossless {
    pub(crate) fn new() -> Self {
        Self { context: Arc::new(Context::new(1)) }
    }
}

impl Quantiser for Lossless {
    fn name(&self) -> &'static str {
        "lossless"
    }

    fn message_len(&self, len: usize) -> usize {
        lossless_bound(len)
    }

    fn encode(&self, values: &[f32], _: u64, out: &mut Vec<u8>) -> Result<()> {
        compress_lossless(&self.context, values, out);
        Ok(())
    }

    fn decode(&self, message: &[u8], out: &mut [f32], add: bool) -> Result<()> {
        if !add {
            return Ok(decompress_lossless(&self.context, message, out)?);
        }
        let mut values = vec![0.0; out.len()];
        decompress_lossless(&self.context, message, &mut values)?;
        out.iter_mut().zip(values).for_each(|(out, value)| *out += value);
        Ok(())
    }
}

/// Appends numbers as bytes.
pub(crate) fn put_numbers(numbers: &[f32], out: &mut Vec<u8>) {
    numbers.iter().for_each(|number| out.extend(number.to_le_bytes()));
}

/// Bytes as numbers.
pub(crate) fn numbers(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

pub(crate) fn bad_message(codec: &str, message: &[u8], len: usize) -> CodecError {
    CodecError::codec(
        codec,
        format!("got a message of {} bytes that is not one of {len} numbers", message.len()),
    )
}

//! Numbers with their indices as a message.

use std::sync::Arc;

use phalanx_kernels::{
    Context, dequantise_int8, gather_indices, quantise_int8, scales_len, scatter_add, top_k,
};

use crate::Result;
use crate::quantisers::{Quantiser, bad_message, numbers, put_numbers};

/// The format of the values in a message of entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ValueFormat {
    F32,
    /// Integers of 8 bits, with a scale for each chunk of this length.
    Int8(usize),
}

/// Messages of some of many numbers: how many there are, their indices, and their values.
#[derive(Debug, Clone)]
pub(crate) struct Entries {
    /// The codec that sends them.
    pub(crate) codec: &'static str,
    pub(crate) values: ValueFormat,
    pub(crate) context: Arc<Context>,
}

impl Entries {
    pub(crate) fn message(&self, indices: &[u32], values: &[f32]) -> Result<Vec<u8>> {
        let mut message = Vec::with_capacity(self.message_len(indices.len()));
        message.extend((indices.len() as u32).to_le_bytes());
        indices.iter().for_each(|index| message.extend(index.to_le_bytes()));
        match self.values {
            ValueFormat::F32 => put_numbers(values, &mut message),
            ValueFormat::Int8(chunk) => {
                let mut scales = vec![0.0; scales_len(values.len(), chunk)];
                let mut whole = vec![0_i8; values.len()];
                quantise_int8(&self.context, values, chunk, &mut scales, &mut whole)?;
                put_numbers(&scales, &mut message);
                message.extend(whole.iter().map(|q| q.cast_unsigned()));
            }
        }
        Ok(message)
    }

    pub(crate) fn message_len(&self, entries: usize) -> usize {
        4 + 4 * entries
            + match self.values {
                ValueFormat::F32 => 4 * entries,
                ValueFormat::Int8(chunk) => 4 * scales_len(entries, chunk) + entries,
            }
    }

    /// The entries of a message.
    pub(crate) fn entries_of(&self, message: &[u8], len: usize) -> Result<(Vec<u32>, Vec<f32>)> {
        let wrong = || bad_message(self.codec, message, len);
        let (count, rest) = message.split_first_chunk::<4>().ok_or_else(wrong)?;
        let count = u32::from_le_bytes(*count) as usize;
        if message.len() != self.message_len(count) {
            return Err(wrong());
        }
        let (indices, rest) = rest.split_at(4 * count);
        let indices = indices.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        let values = match self.values {
            ValueFormat::F32 => numbers(rest),
            ValueFormat::Int8(chunk) => {
                let (scales, whole) = rest.split_at(4 * scales_len(count, chunk));
                let whole: Vec<i8> = whole.iter().map(|byte| byte.cast_signed()).collect();
                let mut values = vec![0.0; count];
                dequantise_int8(&self.context, (&numbers(scales), &whole), chunk, &mut values, false)?;
                values
            }
        };
        Ok((indices, values))
    }
}

/// Returns the number of entries that are a part `density` of `len`, at least one.
pub(crate) fn entries(density: f64, len: usize) -> usize {
    ((len as f64 * density).ceil() as usize).clamp(1.min(len), len)
}

/// The entries of largest magnitude in place of numbers.
#[derive(Debug)]
pub(crate) struct TopKQuantiser {
    pub(crate) density: f64,
    pub(crate) wire: Entries,
}

impl Quantiser for TopKQuantiser {
    fn name(&self) -> &'static str {
        self.wire.codec
    }

    fn message_len(&self, len: usize) -> usize {
        self.wire.message_len(entries(self.density, len))
    }

    fn encode(&self, values: &[f32], _: u64, out: &mut Vec<u8>) -> Result<()> {
        let mut indices = Vec::new();
        top_k(&self.wire.context, values, entries(self.density, values.len()), &mut indices)?;
        let mut largest = vec![0.0; indices.len()];
        gather_indices(values, &indices, &mut largest)?;
        out.extend(self.wire.message(&indices, &largest)?);
        Ok(())
    }

    fn decode(&self, message: &[u8], out: &mut [f32], add: bool) -> Result<()> {
        let (indices, values) = self.wire.entries_of(message, out.len())?;
        if !add {
            out.fill(0.0);
        }
        Ok(scatter_add(&indices, &values, out)?)
    }
}

//! Chunk codecs of gradients and parameters: values that share a scale by chunks, quantised to few bits.
//!
//! The kernels run on [`Stream::Communication`], concurrently with compute.

use phalanx_kernels::{ChunkFormat, ChunkKind};

use super::grid::{check, check_type, launch, narrow_size, over};
use super::sources::CODEC_CHUNKS;
use crate::launch::Launch;
use crate::{ElementType, Gpu, GpuError, Result, Slice, Stream};

/// The alignment of messages in bytes.
const ALIGNED: usize = 16;

/// Chunks per block, one warp for each.
const CHUNKS: usize = 8;

/// Messages of consecutive parts of an array, in one allocation: part `p` of `P` is elements `p·len/P .. (p + 1)·len/P`.
#[derive(Debug, Clone, Copy)]
pub struct ChunkMessages<'a> {
    /// The format of a message.
    pub format: ChunkFormat,
    /// The bytes.
    pub bytes: &'a Slice,
    /// Bytes from one message to the next: [`ChunkMessages::stride`].
    pub stride: usize,
}

impl ChunkMessages<'_> {
    /// Returns the bytes from one message to the next for `len` values in `parts` parts.
    pub fn stride(format: ChunkFormat, len: usize, parts: usize) -> usize {
        format.message_len(len.div_ceil(parts.max(1))).next_multiple_of(ALIGNED)
    }

    fn check(&self, function: &'static str, len: usize, (parts, sources): (usize, usize)) -> Result<()> {
        let Self { format, bytes, stride } = *self;
        check(function, "messages", bytes, ElementType::U8, stride * parts * sources)?;
        if !format.chunk.is_multiple_of(8) || format.chunk == 0 {
            let problem = format!("chunks of {}; give a multiple of 8", format.chunk);
            return Err(GpuError::argument(function, problem));
        }
        let needed = Self::stride(format, len, parts);
        if stride < needed || !stride.is_multiple_of(4) {
            let problem = format!("a stride of {stride} bytes; messages need {needed}");
            return Err(GpuError::argument(function, problem));
        }
        if !bytes.address().is_multiple_of(4) {
            return Err(GpuError::argument(function, "messages that do not begin at a multiple of 4 bytes"));
        }
        Ok(())
    }

    fn launch<'k>(&self, gpu: &'k Gpu, kernel: &'k str, grid: [usize; 3]) -> Launch<'k> {
        launch(gpu, &CODEC_CHUNKS, kernel, grid).on(Stream::Communication)
    }

    /// Returns the grid of a kernel with a thread for each eight values.
    fn words(len: usize, parts: usize) -> [usize; 3] {
        over(len.div_ceil(parts.max(1)).div_ceil(8) * parts, 1)
    }
}

fn name(action: &str, kind: ChunkKind) -> String {
    format!("{action}_{}", kind.name())
}

/// Encodes each of `parts` parts of `values` as a message. The random numbers of part `p` are those of the stream
/// `phalanx_kernels::mixed_with(draw.0, draw.1 + p)`.
///
/// # Errors
/// If the values are not f32, or the messages have another length.
pub fn encode_chunks(
    gpu: &Gpu,
    (values, parts): (&Slice, usize),
    draw: (u64, u64),
    messages: ChunkMessages<'_>,
) -> Result<()> {
    const FUNCTION: &str = "encode_chunks";
    check_type(FUNCTION, "values", values, ElementType::F32)?;
    messages.check(FUNCTION, values.len(), (parts, 1))?;
    let ChunkFormat { kind, chunk } = messages.format;
    let chunks = values.len().div_ceil(parts.max(1)).div_ceil(chunk) * parts;
    let kernel = name("encode", kind);
    messages
        .launch(gpu, &kernel, [1; 3])
        .blocks([chunks.div_ceil(CHUNKS).min(1 << 16), 1, 1], [CHUNKS * 32, 1, 1])
        .slice(values)
        .number(values.len() as i64)
        .number(narrow_size(FUNCTION, parts)?)
        .number(narrow_size(FUNCTION, chunk)?)
        .number(draw.0)
        .number(draw.1)
        .slice(messages.bytes)
        .number(messages.stride as i64)
        .run()
}

/// Decodes `sources` messages for each of `parts` parts, and writes their sum to `to`. They are contiguous, and added in f32 in
/// their order.
///
/// # Errors
/// If `to` is not f32, or the messages have another length.
pub fn decode_chunks(
    gpu: &Gpu,
    messages: ChunkMessages<'_>,
    (parts, sources): (usize, usize),
    to: &Slice,
) -> Result<()> {
    const FUNCTION: &str = "decode_chunks";
    check_type(FUNCTION, "to", to, ElementType::F32)?;
    messages.check(FUNCTION, to.len(), (parts, sources))?;
    if sources == 0 {
        return Err(GpuError::argument(FUNCTION, "no messages"));
    }
    let ChunkFormat { kind, chunk } = messages.format;
    let kernel = name("decode", kind);
    messages
        .launch(gpu, &kernel, ChunkMessages::words(to.len(), parts))
        .slice(messages.bytes)
        .number(messages.stride as i64)
        .number(narrow_size(FUNCTION, parts)?)
        .number(narrow_size(FUNCTION, sources)?)
        .number(narrow_size(FUNCTION, chunk)?)
        .slice(to)
        .number(to.len() as i64)
        .run()
}

/// Writes the quantisation errors of messages to `to`: values minus decoded values. Leaves `to` unchanged if the flag `invalid`
/// is set ([`add_residual`]).
///
/// # Errors
/// If lengths or types do not match, or the messages have another length.
pub fn chunk_errors(
    gpu: &Gpu,
    messages: ChunkMessages<'_>,
    (values, parts): (&Slice, usize),
    invalid: &Slice,
    to: &Slice,
) -> Result<()> {
    const FUNCTION: &str = "chunk_errors";
    check_type(FUNCTION, "values", values, ElementType::F32)?;
    check(FUNCTION, "invalid", invalid, ElementType::U32, 1)?;
    check(FUNCTION, "to", to, ElementType::F32, values.len())?;
    messages.check(FUNCTION, values.len(), (parts, 1))?;
    let ChunkFormat { kind, chunk } = messages.format;
    let kernel = name("errors", kind);
    messages
        .launch(gpu, &kernel, ChunkMessages::words(to.len(), parts))
        .slice(messages.bytes)
        .number(messages.stride as i64)
        .number(narrow_size(FUNCTION, parts)?)
        .number(narrow_size(FUNCTION, chunk)?)
        .slice(values)
        .slice(invalid)
        .slice(to)
        .number(to.len() as i64)
        .run()
}

/// Adds the residual of earlier messages to `values` (error feedback). Sets the flag `invalid`, which must be 0 before, if a sum
/// is not finite.
///
/// # Errors
/// If lengths or types do not match.
pub fn add_residual(gpu: &Gpu, values: &Slice, residual: &Slice, invalid: &Slice) -> Result<()> {
    const FUNCTION: &str = "add_residual";
    check_type(FUNCTION, "values", values, ElementType::F32)?;
    check(FUNCTION, "residual", residual, ElementType::F32, values.len())?;
    check(FUNCTION, "invalid", invalid, ElementType::U32, 1)?;
    launch(gpu, &CODEC_CHUNKS, "add_residual_f32", over(values.len(), 4))
        .on(Stream::Communication)
        .slice(values)
        .slice(residual)
        .slice(invalid)
        .number(values.len() as i64)
        .run()
}

/// Overwrites values by NaN if the flag `invalid` is set, so that all receivers see it.
///
/// # Errors
/// If types do not match.
pub fn poison(gpu: &Gpu, values: &Slice, invalid: &Slice) -> Result<()> {
    const FUNCTION: &str = "poison";
    check_type(FUNCTION, "values", values, ElementType::F32)?;
    check(FUNCTION, "invalid", invalid, ElementType::U32, 1)?;
    launch(gpu, &CODEC_CHUNKS, "poison_f32", over(values.len(), 1))
        .on(Stream::Communication)
        .slice(values)
        .slice(invalid)
        .number(values.len() as i64)
        .run()
}

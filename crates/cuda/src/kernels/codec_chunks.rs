//! Gradients and parameters on their way between ranks: numbers that share a scale by chunks, as fewer bits, and back.
//!
//! These run on [`Stream::Communication`], beside what is computed.

use phalanx_kernels::{ChunkFormat, ChunkKind};

use super::grid::{check, check_type, launch, narrow_size, over};
use super::sources::CODEC_CHUNKS;
use crate::launch::Launch;
use crate::{ElementType, Gpu, GpuError, Result, Slice, Stream};

/// Where messages begin: what is read at once is at an address that is aligned.
const ALIGNED: usize = 16;

/// Chunks that a block has at a time, a warp for each.
const CHUNKS: usize = 8;

/// Messages of the parts of some numbers, in one piece of memory: part `p` of `P` of `len` numbers is elements
/// `p·len/P .. (p + 1)·len/P`.
#[derive(Debug, Clone, Copy)]
pub struct ChunkMessages<'a> {
    /// What a message is.
    pub format: ChunkFormat,
    /// The bytes.
    pub bytes: &'a Slice,
    /// Where each message begins after the one before; [`ChunkMessages::stride`].
    pub stride: usize,
}

impl ChunkMessages<'_> {
    /// Bytes from one message to the next where `len` numbers are in `parts`.
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
            let problem = format!("messages at every {stride} bytes; they take {needed}");
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

    /// The grid of a kernel with a thread for each eight numbers.
    fn words(len: usize, parts: usize) -> [usize; 3] {
        over(len.div_ceil(parts.max(1)).div_ceil(8) * parts, 1)
    }
}

fn name(action: &str, kind: ChunkKind) -> String {
    format!("{action}_{}", kind.name())
}

/// Writes a message for each of `parts` parts of `values`. Random numbers of part `p` are those of the stream
/// `phalanx_kernels::mixed_with(draw.0, draw.1 + p)`.
///
/// # Errors
/// If the values are not f32, or the messages' memory is not what they take.
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

/// Overwrites each of `parts` parts of `to` by what `sources` messages say of it, which follow each other, added up in f32 in their
/// order.
///
/// # Errors
/// If `to` is not of f32, or the messages' memory is not what they take.
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

/// Overwrites `to` by what the messages of `parts` parts have taken from `values`; leaves it as it is if those are spoiled
/// ([`feed_back`]).
///
/// # Errors
/// If lengths or types do not go together, or the messages' memory is not what they take.
pub fn chunk_errors(
    gpu: &Gpu,
    messages: ChunkMessages<'_>,
    (values, parts): (&Slice, usize),
    spoiled: &Slice,
    to: &Slice,
) -> Result<()> {
    const FUNCTION: &str = "chunk_errors";
    check_type(FUNCTION, "values", values, ElementType::F32)?;
    check(FUNCTION, "spoiled", spoiled, ElementType::U32, 1)?;
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
        .slice(spoiled)
        .slice(to)
        .number(to.len() as i64)
        .run()
}

/// Adds to `values` what was held back of them. If a sum is not finite the flag `spoiled`, which is 0 before, becomes 1.
///
/// # Errors
/// If lengths or types do not go together.
pub fn feed_back(gpu: &Gpu, values: &Slice, held: &Slice, spoiled: &Slice) -> Result<()> {
    const FUNCTION: &str = "feed_back";
    check_type(FUNCTION, "values", values, ElementType::F32)?;
    check(FUNCTION, "held", held, ElementType::F32, values.len())?;
    check(FUNCTION, "spoiled", spoiled, ElementType::U32, 1)?;
    launch(gpu, &CODEC_CHUNKS, "feed_back_f32", over(values.len(), 4))
        .on(Stream::Communication)
        .slice(values)
        .slice(held)
        .slice(spoiled)
        .number(values.len() as i64)
        .run()
}

/// Overwrites values by NaN if they are spoiled, so that all who get them see it.
///
/// # Errors
/// If types do not go together.
pub fn spoil(gpu: &Gpu, values: &Slice, spoiled: &Slice) -> Result<()> {
    const FUNCTION: &str = "spoil";
    check_type(FUNCTION, "values", values, ElementType::F32)?;
    check(FUNCTION, "spoiled", spoiled, ElementType::U32, 1)?;
    launch(gpu, &CODEC_CHUNKS, "spoil_f32", over(values.len(), 1))
        .on(Stream::Communication)
        .slice(values)
        .slice(spoiled)
        .number(values.len() as i64)
        .run()
}

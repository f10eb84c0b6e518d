//! Codecs of gradients and parameters on a GPU, on the communication stream.

use std::ops::Range;

use candle_core::DType;
use phalanx_cuda::kernels::{self, ChunkMessages, RandomEntries};
use phalanx_cuda::{ElementType, Stream, Timer};
use phalanx_kernels::ChunkFormat;

use super::{Cuda, element_type};
use crate::Result;
use crate::backend::{
    Array, ChunkCodecs, CodecQueue, FeedbackCodecs, MemoryKind, PackedMessages, SparseCodecs, Stopwatch,
    Upload, counted_as,
};

const OP: &str = "a codec";

impl Cuda {
    fn messages<'a>(&self, messages: PackedMessages<'a>) -> Result<ChunkMessages<'a>> {
        let PackedMessages { format, bytes, stride } = messages;
        let array: &super::CudaArray = bytes.device(OP, super::NAME)?;
        Ok(ChunkMessages { format, bytes: array.slice()?, stride })
    }
}

impl Stopwatch for Timer {
    fn note(&mut self) -> Result<()> {
        Ok(Self::record(self, Stream::Communication)?)
    }

    fn note_computing(&mut self) -> Result<()> {
        Ok(Self::record(self, Stream::Compute)?)
    }

    fn seconds(&self, wait: bool) -> Result<Option<Vec<f64>>> {
        Ok(Self::seconds(self, wait)?)
    }
}

impl CodecQueue for Cuda {
    fn begin(&self) -> Result<()> {
        Ok(self.gpu().device().wait(Stream::Communication, Stream::Compute)?)
    }

    fn done(&self) -> Result<Upload> {
        let event = self.gpu().device().record_event(Stream::Communication)?;
        Ok(Upload::pending(move || Ok(event.make_wait(Stream::Compute)?)))
    }

    fn stopwatch(&self) -> Result<Box<dyn Stopwatch>> {
        Ok(Box::new(Timer::new(self.gpu().device())?))
    }

    fn room(&self, len: usize, dtype: DType) -> Result<Array> {
        let dtype = element_type(OP, dtype)?;
        let slice = counted_as(MemoryKind::Gradients, || self.gpu().unwritten(dtype, len))?;
        Ok(self.array(slice, len))
    }

    fn clear(&self, to: &Array) -> Result<()> {
        Ok(self.slice(OP, to)?.zero_on(Stream::Communication)?)
    }

    fn copy(&self, to: &Array, from: &Array) -> Result<()> {
        Ok(self.slice(OP, to)?.copy_from_on(self.slice(OP, from)?, Stream::Communication)?)
    }

    fn convert(&self, to: &Array, from: &Array) -> Result<()> {
        let (to, from) = (self.slice(OP, to)?, self.slice(OP, from)?);
        Ok(kernels::convert_on(self.gpu(), from, to, Stream::Communication)?)
    }
}

impl ChunkCodecs for Cuda {
    fn stride(&self, format: ChunkFormat, len: usize, parts: usize) -> usize {
        ChunkMessages::stride(format, len, parts)
    }

    fn encode(
        &self,
        (values, parts): (&Array, usize),
        draw: (u64, u64),
        messages: PackedMessages<'_>,
    ) -> Result<()> {
        let values = (self.slice(OP, values)?, parts);
        Ok(kernels::encode_chunks(self.gpu(), values, draw, self.messages(messages)?)?)
    }

    fn decode(&self, messages: PackedMessages<'_>, of: (usize, usize), to: &Array) -> Result<()> {
        Ok(kernels::decode_chunks(self.gpu(), self.messages(messages)?, of, self.slice(OP, to)?)?)
    }

    fn errors(
        &self,
        messages: PackedMessages<'_>,
        (values, parts): (&Array, usize),
        spoiled: &Array,
        to: &Array,
    ) -> Result<()> {
        let (values, spoiled, to) = (self.slice(OP, values)?, self.slice(OP, spoiled)?, self.slice(OP, to)?);
        Ok(kernels::chunk_errors(self.gpu(), self.messages(messages)?, (values, parts), spoiled, to)?)
    }
}

impl FeedbackCodecs for Cuda {
    fn feed_back(&self, values: &Array, held: &Array) -> Result<Array> {
        let (values, held) = (self.slice(OP, values)?, self.slice(OP, held)?);
        let spoiled = self.gpu().unwritten(ElementType::U32, 1)?;
        spoiled.zero_on(Stream::Communication)?;
        kernels::add_residual(self.gpu(), values, held, &spoiled)?;
        kernels::poison(self.gpu(), values, &spoiled)?;
        Ok(self.array(spoiled, 1))
    }

    fn hold(&self, values: &Array, spoiled: &Array, held: &Array) -> Result<()> {
        let (values, spoiled, held) =
            (self.slice(OP, values)?, self.slice(OP, spoiled)?, self.slice(OP, held)?);
        Ok(kernels::store_residual(self.gpu(), values, spoiled, held)?)
    }

    fn gather_momentum(
        &self,
        gradients: &Array,
        (velocity, sum): (&Array, &Array),
        momentum: f32,
    ) -> Result<Array> {
        let spoiled = self.gpu().unwritten(ElementType::U32, 1)?;
        spoiled.zero_on(Stream::Communication)?;
        let of = (self.slice(OP, velocity)?, self.slice(OP, sum)?);
        kernels::accumulate_momentum(self.gpu(), self.slice(OP, gradients)?, of, momentum, &spoiled)?;
        Ok(self.array(spoiled, 1))
    }
}

impl SparseCodecs for Cuda {
    fn index_bytes(&self, entries: usize) -> usize {
        kernels::index_bytes(entries)
    }

    fn largest(
        &self,
        (values, taken): (&Array, usize),
        (indices, numbers): (&Array, &Array),
    ) -> Result<Array> {
        let values = self.slice(OP, values)?;
        let scratch = self.gpu().unwritten(ElementType::U32, kernels::top_k_words(values.len()))?;
        let to = (self.slice(OP, indices)?, self.slice(OP, numbers)?);
        kernels::top_k(self.gpu(), (values, taken), to, &scratch)?;
        let len = scratch.len();
        Ok(self.array(scratch, len))
    }

    fn scatter(
        &self,
        (indices, numbers): (&Array, &Array),
        taken: usize,
        (to, range): (&Array, Range<usize>),
    ) -> Result<()> {
        let entries = (self.slice(OP, indices)?, self.slice(OP, numbers)?);
        Ok(kernels::scatter(self.gpu(), entries, taken, (self.slice(OP, to)?, range))?)
    }

    fn take_away(
        &self,
        (indices, numbers): (&Array, Option<&Array>),
        taken: usize,
        (of, spoiled): (&Array, &Array),
    ) -> Result<()> {
        let entries = (self.slice(OP, indices)?, self.slice_if(OP, numbers)?);
        let of = (self.slice(OP, of)?, self.slice(OP, spoiled)?);
        Ok(kernels::subtract_entries(self.gpu(), entries, taken, of)?)
    }

    fn take_drawn(&self, draw: u64, values: &Array, numbers: &Array) -> Result<()> {
        let (values, numbers) = (self.slice(OP, values)?, self.slice(OP, numbers)?);
        Ok(RandomEntries { draw, count: numbers.len() }.gather(self.gpu(), values, numbers)?)
    }

    fn clear_drawn(&self, draw: u64, taken: usize, (of, spoiled): (&Array, &Array)) -> Result<()> {
        let (of, spoiled) = (self.slice(OP, of)?, self.slice(OP, spoiled)?);
        Ok(RandomEntries { draw, count: taken }.clear(self.gpu(), of, spoiled)?)
    }

    fn put_drawn(&self, draw: u64, numbers: &Array, (to, range): (&Array, Range<usize>)) -> Result<()> {
        let (numbers, to) = (self.slice(OP, numbers)?, self.slice(OP, to)?);
        Ok(RandomEntries { draw, count: numbers.len() }.add(self.gpu(), numbers, (to, range))?)
    }
}

//! The engine over NCCL: host buffers go through device memory, and ranks agree on each operation through the host.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaSlice};

use super::bootstrap;
use super::calls::{self, Call, Member};
use super::channel::Channel;
use super::memory::{Span, SpanMut, lend_bytes};
use super::staging::Staging;
use super::watch::Watch;
use crate::algorithms::gathered;
use crate::buffer::{SliceMut, on_slice};
use crate::dtype::DType;
use crate::engine::{Backend, Lifetime as _};
use crate::error::Result;
use crate::operation::{Kind, Scope, Tag};

/// One communicator over NCCL.
pub(super) struct NcclEngine {
    pub(super) channel: Arc<Channel>,
    staging: Staging,
    pub(super) sent: u64,
    pub(super) received: u64,
    /// This crate's engine among the same ranks, for agreement, counting, records and failures.
    pub(super) host: Backend,
}

/// Exchanges a message of every rank through the host. Each message names its operation, so ranks that disagree get an error here,
/// before the GPU is used.
pub(super) fn exchange(host: &mut Backend, own: &[u8]) -> Result<Vec<Vec<u8>>> {
    if host.is_direct() {
        return host.direct_gather(own, None);
    }
    let all = host.all_ranks();
    gathered::all_gather(host, &all, own)
}

/// Encodes and decodes lengths.
pub(super) fn written(lengths: impl IntoIterator<Item = usize>) -> Vec<u8> {
    lengths.into_iter().flat_map(|length| (length as u64).to_le_bytes()).collect()
}

pub(super) fn read(message: &[u8]) -> Vec<usize> {
    let (words, _) = message.as_chunks::<8>();
    words.iter().map(|word| u64::from_le_bytes(*word) as usize).collect()
}

/// Splits received bytes by rank.
pub(super) fn cut(bytes: &[u8], parts: &[Range<usize>]) -> Vec<Vec<u8>> {
    parts.iter().map(|part| bytes[part.clone()].to_vec()).collect()
}

impl NcclEngine {
    /// Opens NCCL's communicator among the ranks of `host`.
    pub(super) fn open(mut host: Backend, context: Arc<CudaContext>) -> Result<Self> {
        let member = Member { rank: host.rank, world_size: host.world_size };
        let begun = host.enter_as(Scope::World, Tag::new(Kind::Setup, DType::U8, 0));
        let opened = begun
            .and_then(|()| bootstrap::id(member.rank, &context, |own| exchange(&mut host, own)))
            .and_then(|id| Channel::open(context, &id, member, Watch::of(&host)));
        host.end(opened.as_ref().err());
        Ok(Self { channel: opened?, staging: Staging::default(), sent: 0, received: 0, host })
    }

    /// Returns the operation that was begun.
    pub(super) fn operation(&self) -> &'static str {
        self.host.tag.kind.name()
    }

    pub(super) fn member(&self) -> Member {
        self.channel.member
    }

    /// True if this rank is the root.
    pub(super) fn is(&self, root: usize) -> bool {
        self.host.rank == root
    }

    /// Runs the calls of `plan` on the first `bytes` bytes of device memory, as elements of a type, until the GPU is done.
    fn act(
        &mut self,
        memory: &mut CudaSlice<u8>,
        bytes: usize,
        dtype: DType,
        plan: impl for<'a> FnOnce(SpanMut<'a>) -> Result<Vec<Call<'a>>>,
    ) -> Result<()> {
        let (name, member) = (self.operation(), self.member());
        let event = {
            let (all, _noted) = lend_bytes(memory, self.channel.stream());
            let calls = plan(all.part(0..bytes).of_type(dtype))?;
            self.channel.enqueue(name, &calls)?;
            for (sent, received) in calls.iter().map(|call| call.moved(member)) {
                self.sent += sent;
                self.received += received;
            }
            self.channel.record(name)?
        };
        self.channel.finish(&event, name)
    }

    /// Runs the current operation in place, on a copy of the buffer whose elements `back` return.
    pub(super) fn in_memory(&mut self, values: SliceMut<'_>, back: Range<usize>) -> Result<()> {
        exchange(&mut self.host, &[])?;
        let (tag, member) = (self.host.tag, self.member());
        let (name, stream, dtype) = (self.operation(), self.channel.stream().clone(), values.dtype());
        let bytes: &mut [u8] = on_slice!(values, |values| bytemuck::cast_slice_mut(values));
        let loaded = self.staging.load(&stream, bytes.len(), &[bytes]);
        let mut memory = loaded.map_err(|error| self.channel.link.driver(name, error))?;
        self.act(&mut memory, bytes.len(), dtype, |all| calls::of(tag, member, all, None))?;
        let back = back.start * dtype.size()..back.end * dtype.size();
        let unloaded = self.staging.unload(&stream, memory, back.clone(), &mut bytes[back]);
        unloaded.map_err(|error| self.channel.link.driver(name, error))
    }

    /// Runs an operation that sends `own` and receives a number of bytes.
    pub(super) fn through_memory(
        &mut self,
        own: &[&[u8]],
        incoming: usize,
        plan: impl for<'a> FnOnce(Span<'a>, SpanMut<'a>) -> Vec<Call<'a>>,
    ) -> Result<Vec<u8>> {
        let (name, stream) = (self.operation(), self.channel.stream().clone());
        let outgoing = own.iter().map(|piece| piece.len()).sum();
        let (out, inn) = (0..outgoing, outgoing..outgoing + incoming);
        let loaded = self.staging.load(&stream, inn.end, own);
        let mut memory = loaded.map_err(|error| self.channel.link.driver(name, error))?;
        self.act(&mut memory, inn.end, DType::U8, |all| {
            Ok(plan(all.part(out).read(), all.part(inn.clone())))
        })?;
        let mut got = vec![0; incoming];
        let unloaded = self.staging.unload(&stream, memory, inn, &mut got);
        unloaded.map_err(|error| self.channel.link.driver(name, error))?;
        Ok(got)
    }

    /// Returns the length at position `at` in the message of each rank.
    pub(super) fn lengths(&self, told: &[Vec<u8>], at: usize) -> Result<Vec<usize>> {
        told.iter().enumerate().map(|(rank, message)| self.length(&read(message), rank, at)).collect()
    }

    /// Returns the length that a rank has sent for this one.
    pub(super) fn length(&self, lengths: &[usize], from: usize, at: usize) -> Result<usize> {
        let told = lengths.get(at).copied();
        told.ok_or_else(|| self.host.mismatch(from, format!("{} parts", lengths.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    #[test]
    fn lengths_come_back_as_they_were_sent() {
        assert_eq!(read(&written([0, 7, 1 << 40])), [0, 7, 1 << 40]);
        assert_eq!(read(&[1, 2, 3]), Vec::<usize>::new());
        assert_eq!(cut(&[1, 2, 3], &[0..1, 1..1, 1..3]), [vec![1], Vec::new(), vec![2, 3]]);
    }

    #[test]
    fn ranks_that_disagree_are_told_before_the_gpu_is_asked() {
        let ranks = threads(2).expect("threads");
        let running: Vec<_> = ranks
            .into_iter()
            .map(|world| {
                std::thread::spawn(move || {
                    world.all_gatherv::<u8>(&[]).expect("sound");
                    let mut host = world.backend_twin("test").expect("sound");
                    let tag = Tag::new(Kind::AllReduce, DType::F32, 8 + world.rank());
                    host.enter_as(Scope::World, Tag::new(Kind::Setup, DType::U8, 0)).expect("sound");
                    let met = exchange(&mut host, &[world.rank() as u8]);
                    assert_eq!(met, Ok(vec![vec![0], vec![1]]));
                    host.enter_as(Scope::World, tag).expect("sound");
                    let result = exchange(&mut host, &[]);
                    host.end(result.as_ref().err());
                    result.expect_err("lengths differ").to_string()
                })
            })
            .collect();
        let texts: Vec<_> = running.into_iter().map(|rank| rank.join().expect("no panic")).collect();
        let named = |text: &String| text.contains("of 8 elements") && text.contains("of 9 elements");
        assert!(texts.iter().any(named), "{texts:?}");
    }
}

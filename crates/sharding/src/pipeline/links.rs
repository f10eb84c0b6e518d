//! Messages between the chunks of a pipeline.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use candle_core::{DType, Device, Shape, Tensor};
use phalanx_collectives::{Clock, Communicator};
use phalanx_tensor::host::with_host_bytes;
use phalanx_tensor::{Array, ComputeDevice, StageMessages, StageShare};

use super::device_pairs::DevicePairs;
use super::message::MessageTag;
use crate::{Result, ShardingError};

/// The settings of one rank of a pipeline.
#[derive(Debug, Clone)]
pub struct PipelineOptions {
    /// The element type of parameters.
    pub dtype: DType,
    /// Messages go by the channels from this one on.
    pub first_channel: u32,
    /// The clock that waiting is timed by.
    pub clock: Clock,
    /// The ways of messages in the memory of GPUs, if arrays lie there.
    pub pairs: Option<Arc<DevicePairs>>,
    /// The part of this rank in passes that read numbers while one of a stage is under way.
    pub shared: Option<Arc<StageShare>>,
}

/// The bytes before the elements of a message: value and micro-batch.
const HEADER: usize = 16;

/// The ways between chunks. Each has a channel of its own, whose messages arrive in order.
#[derive(Debug)]
pub(super) struct StageLinks {
    others: OtherStages,
    /// By chunk, its rank.
    places: Vec<usize>,
    /// Messages between chunks of this rank.
    own: Mutex<BTreeMap<MessageTag, VecDeque<Array>>>,
    /// The clock that waiting is timed by.
    clock: Clock,
    traffic: Mutex<StageTraffic>,
    pairs: Option<Arc<DevicePairs>>,
}

/// The other ranks of a pipeline.
#[derive(Debug)]
enum OtherStages {
    /// The ranks along the pipeline, and the first channel of their messages.
    Ranks(Communicator, u32),
    /// They are played to this rank: their values are arrays without numbers of this device.
    Played(usize, ComputeDevice),
}

/// The messages of a rank to other stages so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StageTraffic {
    /// Bytes sent.
    pub bytes_sent: u64,
    /// Bytes received.
    pub bytes_received: u64,
    /// The time in which passes waited for messages: the bubble, and what messages take. On GPUs the host does not know.
    pub waited: Duration,
}

impl StageLinks {
    pub(super) fn new(comm: Communicator, places: Vec<usize>, options: PipelineOptions) -> Self {
        let PipelineOptions { first_channel, clock, pairs, .. } = options;
        let (own, traffic) = (Mutex::default(), Mutex::default());
        Self { others: OtherStages::Ranks(comm, first_channel), places, own, clock, traffic, pairs }
    }

    /// The ways of a rank to others that are played, whose values have no numbers.
    pub(super) fn played(rank: usize, places: Vec<usize>, device: &ComputeDevice) -> Self {
        let (own, traffic) = (Mutex::default(), Mutex::default());
        let others = OtherStages::Played(rank, device.clone());
        Self { others, places, own, clock: Clock::default(), traffic, pairs: None }
    }

    fn rank(&self) -> usize {
        match &self.others {
            OtherStages::Ranks(comm, _) => comm.rank(),
            OtherStages::Played(rank, _) => *rank,
        }
    }

    /// The messages so far.
    pub(super) fn traffic(&self) -> StageTraffic {
        *self.traffic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, change: impl FnOnce(&mut StageTraffic)) {
        change(&mut self.traffic.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The time by the clock of waiting.
    pub(super) fn now(&self) -> Duration {
        self.clock.now()
    }

    /// Tells all ranks that this one gives up.
    pub(super) fn abort(&self, reason: &str) {
        if let OtherStages::Ranks(comm, _) = &self.others {
            comm.abort(reason);
        }
    }

    /// The number of a way among all.
    fn way(&self, tag: MessageTag) -> u32 {
        (tag.from * self.places.len() + tag.to) as u32
    }

    /// Sends an array.
    pub(super) fn send(&self, tag: MessageTag, array: &Array) -> Result<()> {
        let to = self.places[tag.to];
        if to == self.rank() {
            let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
            own.entry(tag).or_default().push_back(array.clone());
            return Ok(());
        }
        if let Some(pairs) = &self.pairs {
            self.count(|traffic| traffic.bytes_sent += bytes_of(array.shape(), array.dtype()));
            return pairs.send(tag, array);
        }
        let OtherStages::Ranks(comm, first_channel) = &self.others else {
            self.count(|traffic| traffic.bytes_sent += bytes_of(array.shape(), array.dtype()));
            return Ok(());
        };
        let host = array.contiguous()?.host("send to another stage")?.flatten_all()?;
        let mut bytes = Vec::new();
        with_host_bytes(&host, |elements| {
            bytes.reserve_exact(HEADER + elements.len());
            bytes.extend((tag.value as u64).to_le_bytes());
            bytes.extend((tag.micro as u64).to_le_bytes());
            bytes.extend_from_slice(elements);
        })?;
        self.count(|traffic| traffic.bytes_sent += bytes.len() as u64);
        comm.send_next(to, first_channel + self.way(tag), &bytes).map_err(|error| tag.lost("sending", &error))
    }

    /// Ends the messages of a step.
    pub(super) fn finish(&self) -> Result<()> {
        self.pairs.as_ref().map_or(Ok(()), |pairs| pairs.finish())
    }

    /// Waits for an array.
    pub(super) fn receive(&self, tag: MessageTag, shape: &Shape, dtype: DType) -> Result<Array> {
        if self.places[tag.from] == self.rank() {
            let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
            let array = own.get_mut(&tag).and_then(VecDeque::pop_front);
            return array
                .ok_or_else(|| ShardingError::Pipeline(format!("{tag} was not made before it is used")));
        }
        if let Some(pairs) = &self.pairs {
            self.count(|traffic| traffic.bytes_received += bytes_of(shape, dtype));
            return pairs.receive(tag, shape, dtype);
        }
        let (comm, first_channel) = match &self.others {
            OtherStages::Ranks(comm, first_channel) => (comm, first_channel),
            OtherStages::Played(_, device) => {
                self.count(|traffic| traffic.bytes_received += bytes_of(shape, dtype));
                return Ok(device.full(0.0, shape.clone(), dtype)?);
            }
        };
        let begun = self.clock.now();
        let coming = comm.recv_next(first_channel + self.way(tag));
        let bytes = coming.map_err(|error| tag.lost("waiting for", &error))?;
        let waited = self.clock.now().saturating_sub(begun);
        self.count(|traffic| {
            traffic.bytes_received += bytes.len() as u64;
            traffic.waited += waited;
        });
        let number = |at: usize| {
            let bytes = bytes.get(at..at + 8)?.try_into().ok()?;
            usize::try_from(u64::from_le_bytes(bytes)).ok()
        };
        let expected = HEADER + shape.elem_count() * dtype.size_in_bytes();
        let found = (number(0), number(8), bytes.len());
        if found != (Some(tag.value), Some(tag.micro), expected) {
            let (Some(value), Some(micro), len) = found else {
                return Err(ShardingError::Pipeline(format!(
                    "{tag} has {} bytes, and no header",
                    bytes.len()
                )));
            };
            let other = MessageTag { value, micro, ..tag };
            return Err(ShardingError::Pipeline(format!(
                "{tag} was expected in {expected} bytes, and {other} came in {len}"
            )));
        }
        Ok(Tensor::from_raw_buffer(&bytes[HEADER..], dtype, shape.dims(), &Device::Cpu)?.into())
    }
}

/// The bytes of an array.
fn bytes_of(shape: &Shape, dtype: DType) -> u64 {
    (shape.elem_count() * dtype.size_in_bytes()) as u64
}

/// The messages of a chunk's forward pass over a micro-batch.
#[derive(Debug)]
pub(super) struct ForwardMessages {
    pub(super) links: Arc<StageLinks>,
    /// By value, the chunk that computes it.
    pub(super) from: Arc<BTreeMap<usize, usize>>,
    pub(super) chunk: usize,
    pub(super) micro: usize,
}

impl StageMessages for ForwardMessages {
    fn receive(
        &self,
        number: usize,
        shape: &Shape,
        dtype: DType,
    ) -> std::result::Result<Array, Box<dyn std::error::Error + Send + Sync>> {
        let from = self.from.get(&number).copied().unwrap_or_default();
        let tag = MessageTag { from, to: self.chunk, value: number, micro: self.micro };
        Ok(self.links.receive(tag, shape, dtype)?)
    }
}

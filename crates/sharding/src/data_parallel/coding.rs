//! Gradients by a codec: bucket by bucket, on a thread beside the one that trains.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use phalanx_collectives::{CommStats, Communicator};
use phalanx_tensor::host::HostSliceMut;
use phalanx_tensor::{FlatParam, FlatStorage, TensorError};

use super::worker::{Pending, Worker};
use crate::Result;
use crate::codec::{GradCodec, Keeps, Peers, Route, Sum};

/// A codec, and the ranks that it sums over.
#[derive(Debug)]
pub(super) struct Coding {
    shared: Arc<Shared>,
    worker: Worker,
    /// How long the thread that trains has waited.
    waited: Mutex<Duration>,
}

/// What both threads know.
#[derive(Debug)]
struct Shared {
    codec: Arc<dyn GradCodec>,
    route: Route,
    /// The ranks that share what is sharded, and those of other groups that hold the same shards.
    shards: Communicator,
    replicas: Option<Communicator>,
    /// By bucket.
    sums: Vec<Vec<Sum>>,
}

impl Coding {
    /// `shards` and `replicas` are for gradients alone, so that nothing else comes between them.
    ///
    /// # Errors
    /// If the system refuses the thread.
    pub(super) fn new(
        codec: Arc<dyn GradCodec>,
        route: Route,
        (shards, replicas): (Communicator, Option<Communicator>),
        params: &[FlatParam],
        beside: bool,
    ) -> Result<Self> {
        let sums = params.iter().map(|param| route.sums(param, params.len())).collect();
        let shared = Shared { codec, route, shards, replicas, sums };
        Ok(Self {
            shared: Arc::new(shared),
            worker: Worker::start("codec", beside)?,
            waited: Mutex::default(),
        })
    }

    /// The codec.
    pub(super) fn codec(&self) -> &dyn GradCodec {
        &*self.shared.codec
    }

    /// Sums a bucket's gradients: into `shard`, the elements that this rank owns, or where they lie.
    pub(super) fn start(&self, bucket: usize, full: FlatStorage, shard: Option<FlatStorage>) -> Pending<()> {
        let shared = self.shared.clone();
        self.worker.run(move || shared.sum(bucket, &full, shard.as_ref()))
    }

    /// Waits for a bucket.
    ///
    /// # Errors
    /// The codec's and those of communication.
    pub(super) fn wait(&self, pending: Pending<()>) -> Result<()> {
        let start = Instant::now();
        let result = pending.wait();
        *self.waited.lock().unwrap_or_else(PoisonError::into_inner) += start.elapsed();
        result
    }

    /// Bytes of the messages of a bucket.
    pub(super) fn message_bytes(&self, bucket: usize) -> u64 {
        self.shared.sums[bucket].iter().map(|sum| sum.bytes(self.codec()).message).sum()
    }

    /// Bytes that the codec keeps for buckets.
    pub(super) fn state_bytes(&self, buckets: &[usize]) -> u64 {
        let sums = buckets.iter().flat_map(|bucket| &self.shared.sums[*bucket]);
        sums.map(|sum| sum.bytes(self.codec()).state).sum()
    }

    /// What communication has cost. Exposed is what the thread that trains has waited; the codec's thread waits beside it.
    pub(super) fn stats(&self) -> CommStats {
        let shards = self.shared.shards.stats();
        let all = self.shared.replicas.iter().map(Communicator::stats).fold(shards, |sum, part| sum + part);
        let waited = *self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        CommStats { seconds_exposed: waited.as_secs_f64(), ..all }
    }
}

impl Shared {
    fn sum(&self, bucket: usize, full: &FlatStorage, shard: Option<&FlatStorage>) -> Result<()> {
        let sums = &self.sums[bucket];
        let (rank, ranks) = self.route.shard;
        with_singles(full, |gradients| {
            let [first, between @ ..] = sums.as_slice() else { return Ok(()) };
            self.run(first, gradients, &self.shards)?;
            let own = first.among.keeps.part(gradients.len(), ranks, rank);
            for (sum, replicas) in between.iter().zip(&self.replicas) {
                self.run(sum, &mut gradients[own.clone()], replicas)?;
            }
            match shard {
                None => Ok(()),
                Some(shard) => with_singles(shard, |shard| shard.copy_from_slice(&gradients[own])),
            }
        })?
    }

    fn run(&self, sum: &Sum, gradients: &mut [f32], comm: &Communicator) -> Result<()> {
        let mut peers = Peers::new(comm, self.route.algorithm);
        let keeps: Keeps = sum.among.keeps;
        match sum.coded {
            true => self.codec.reduce(&sum.bucket, gradients, keeps, &mut peers),
            false => peers.sum(gradients, keeps),
        }
    }
}

/// Opens flat memory of f32.
fn with_singles<R>(flat: &FlatStorage, f: impl FnOnce(&mut [f32]) -> R) -> Result<R> {
    let opened = flat.with_slice_mut(|slice| match slice {
        HostSliceMut::F32(values) => Some(f(values)),
        HostSliceMut::F64(_) => None,
    })?;
    Ok(opened
        .ok_or_else(|| TensorError::Unsupported { op: "codec", what: "gradients other than f32".into() })?)
}

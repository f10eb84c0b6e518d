//! Rounded parameters, gathered on a background thread, or on a device by a stream of its own.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use phalanx_collectives::{Algorithm, CommStats, Communicator};
use phalanx_tensor::FlatStorage;

use crate::Result;
use crate::background::{Pending, Worker};
use phalanx_codecs::buffer::with_singles;
use phalanx_codecs::{FlatSlice, Peers, PendingWork, RoundedGather, WeightRounding};

/// Gathers shards rounded (as ZeRO++ does, Wang et al. 2023): every rank, the owner too, computes with the same rounded weights,
/// while the owner updates its own exact ones.
#[derive(Debug)]
pub(super) struct WeightGather {
    shared: Arc<Shared>,
    worker: Worker,
    /// The time that the training thread has waited.
    waited: Mutex<Duration>,
}

#[derive(Debug)]
struct Shared {
    comm: Communicator,
    gather: RoundedGather,
}

impl WeightGather {
    /// Among the ranks of a communicator that is for this alone.
    ///
    /// # Errors
    /// [`ShardingError::Codec`] if a chunk has no elements, or the system refuses the thread.
    pub(super) fn new(comm: Communicator, rounding: WeightRounding, background: bool) -> Result<Self> {
        let shared = Arc::new(Shared { comm, gather: RoundedGather::new(rounding)? });
        Ok(Self { shared, worker: Worker::start("weights", background)?, waited: Mutex::default() })
    }

    /// Gathers the shards of all ranks into `full`.
    pub(super) fn start(&self, full: FlatStorage, shard: FlatStorage) -> Pending<PendingWork> {
        let shared = self.shared.clone();
        self.worker.run(move || shared.gather(&full, &shard))
    }

    /// Waits until a bucket is there.
    ///
    /// # Errors
    /// Errors of communication.
    pub(super) fn wait(&self, pending: Pending<PendingWork>) -> Result<()> {
        let start = Instant::now();
        let result = pending.wait().and_then(|working| Ok(working.arrive()?));
        *self.waited.lock().unwrap_or_else(PoisonError::into_inner) += start.elapsed();
        result
    }

    /// Returns the cost of communication; exposed is the wait of the training thread.
    pub(super) fn stats(&self) -> CommStats {
        let waited = *self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        CommStats { seconds_exposed: waited.as_secs_f64(), ..self.shared.comm.stats() }
    }
}

impl Shared {
    fn gather(&self, full: &FlatStorage, shard: &FlatStorage) -> Result<PendingWork> {
        if full.array().is_host() {
            with_singles(shard, |shard| {
                with_singles(full, |full| self.gather_slice(full.into(), &shard.into()))
            })???;
            return Ok(PendingWork::over());
        }
        let (full, background) = FlatSlice::on_device(full)?;
        self.gather_slice(full, &background.also(shard))?;
        Ok(background.end()?)
    }

    fn gather_slice(&self, full: FlatSlice<'_>, shard: &FlatSlice<'_>) -> Result<()> {
        let mut peers = Peers::new(&self.comm, Algorithm::Auto);
        Ok(self.gather.gather(full, shard, &mut peers)?)
    }
}

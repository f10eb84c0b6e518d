//! Parameters gathered rounded, on a thread beside the one that trains, or where they lie in a device's memory by that device beside
//! what it computes.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use phalanx_collectives::{Algorithm, CommStats, Communicator};
use phalanx_tensor::FlatStorage;

use crate::Result;
use crate::beside::{Pending, Worker};
use crate::buffer::with_singles;
use crate::codec::{Cut, Keeps, Numbers, Peers, Quantiser, WeightRounding, Working};

/// Gathers shards rounded (as ZeRO++ does, Wang et al. 2023): every rank, the owner too, computes with the same rounded weights,
/// while the owner updates its own exact ones.
#[derive(Debug)]
pub(super) struct WeightGather {
    shared: Arc<Shared>,
    worker: Worker,
    /// How long the thread that trains has waited.
    waited: Mutex<Duration>,
}

#[derive(Debug)]
struct Shared {
    comm: Communicator,
    /// What they become.
    quantiser: Box<dyn Quantiser>,
}

impl WeightGather {
    /// Among the ranks of a communicator that is for this alone.
    ///
    /// # Errors
    /// [`ShardingError::Codec`] if a chunk has no elements, or the system refuses the thread.
    pub(super) fn new(comm: Communicator, rounding: WeightRounding, beside: bool) -> Result<Self> {
        let shared = Arc::new(Shared { comm, quantiser: rounding.quantiser()? });
        Ok(Self { shared, worker: Worker::start("weights", beside)?, waited: Mutex::default() })
    }

    /// Gathers the shards of all ranks into `full`.
    pub(super) fn start(&self, full: FlatStorage, shard: FlatStorage) -> Pending<Working> {
        let shared = self.shared.clone();
        self.worker.run(move || shared.gather(&full, &shard))
    }

    /// Waits until a bucket is there.
    ///
    /// # Errors
    /// Those of communication.
    pub(super) fn wait(&self, pending: Pending<Working>) -> Result<()> {
        let start = Instant::now();
        let result = pending.wait().and_then(|working| Ok(working.arrive()?));
        *self.waited.lock().unwrap_or_else(PoisonError::into_inner) += start.elapsed();
        result
    }

    /// What communication has cost; exposed is what the thread that trains has waited.
    pub(super) fn stats(&self) -> CommStats {
        let waited = *self.waited.lock().unwrap_or_else(PoisonError::into_inner);
        CommStats { seconds_exposed: waited.as_secs_f64(), ..self.shared.comm.stats() }
    }
}

impl Shared {
    fn gather(&self, full: &FlatStorage, shard: &FlatStorage) -> Result<Working> {
        if full.array().is_host() {
            with_singles(shard, |shard| {
                with_singles(full, |full| self.gather_numbers(full.into(), &shard.into()))
            })???;
            return Ok(Working::over());
        }
        let (full, beside) = Numbers::beside(full)?;
        self.gather_numbers(full, &beside.also(shard))?;
        Ok(beside.end()?)
    }

    fn gather_numbers(&self, mut full: Numbers<'_>, shard: &Numbers<'_>) -> Result<()> {
        let (rank, ranks) = (self.comm.rank(), self.comm.world_size());
        let mut peers = Peers::new(&self.comm, Algorithm::Auto);
        if let (Numbers::Device(_), Some(dtype)) = (&full, self.quantiser.rounds_to()) {
            return full.gather_rounded(shard, dtype, &mut peers);
        }
        let own = shard.encode_own(&*self.quantiser, (full.len(), rank, ranks), 0)?;
        let messages = peers.gather(own)?;
        full.decode(&*self.quantiser, &messages, Cut { keeps: Keeps::Shard, ranks })
    }
}

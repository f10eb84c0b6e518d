//! Parameters gathered as integers of 8 bits, on a thread beside the one that trains.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use phalanx_collectives::{Algorithm, CommStats, Communicator};
use phalanx_kernels::{Context, dequantise_int8, quantise_int8, scales_len};
use phalanx_tensor::FlatStorage;

use super::coding::with_singles;
use crate::beside::{Pending, Worker};
use crate::codec::Peers;
use crate::traffic::{chunk, int8_len};
use crate::{Result, ShardingError};

/// Gathers shards quantised (as ZeRO++ does, Wang et al. 2023): every rank, the owner too, computes with the same rounded
/// weights, while the owner updates its own exact ones.
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
    /// Numbers that share a scale.
    chunk: usize,
    context: Context,
}

impl WeightGather {
    /// Among the ranks of a communicator that is for this alone.
    ///
    /// # Errors
    /// [`ShardingError::Codec`] if a chunk has no elements, or the system refuses the thread.
    pub(super) fn new(comm: Communicator, chunk: usize, beside: bool) -> Result<Self> {
        if chunk == 0 {
            return Err(ShardingError::codec("int8", "weights share a scale in chunks of at least 1, not 0"));
        }
        let shared = Arc::new(Shared { comm, chunk, context: Context::new(1) });
        Ok(Self { shared, worker: Worker::start("weights", beside)?, waited: Mutex::default() })
    }

    /// Gathers the shards of all ranks into `full`.
    pub(super) fn start(&self, full: FlatStorage, shard: FlatStorage) -> Pending<()> {
        let shared = self.shared.clone();
        self.worker.run(move || shared.gather(&full, &shard))
    }

    /// Waits until a bucket is there.
    ///
    /// # Errors
    /// Those of communication.
    pub(super) fn wait(&self, pending: Pending<()>) -> Result<()> {
        let start = Instant::now();
        let result = pending.wait();
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
    fn gather(&self, full: &FlatStorage, shard: &FlatStorage) -> Result<()> {
        let message = with_singles(shard, |shard| {
            let mut scales = vec![0.0; scales_len(shard.len(), self.chunk)];
            let mut whole = vec![0_i8; shard.len()];
            quantise_int8(&self.context, shard, self.chunk, &mut scales, &mut whole)?;
            let mut message = Vec::with_capacity(int8_len(shard.len(), self.chunk) as usize);
            scales.iter().for_each(|scale| message.extend(scale.to_le_bytes()));
            message.extend(whole.iter().map(|q| q.cast_unsigned()));
            Ok::<_, ShardingError>(message)
        })??;
        let messages = Peers::new(&self.comm, Algorithm::Auto).all_gather(&message)?;
        with_singles(full, |full| {
            let len = full.len();
            for (rank, message) in messages.iter().enumerate() {
                let part = &mut full[chunk(len, messages.len(), rank)];
                if message.len() as u64 != int8_len(part.len(), self.chunk) {
                    let problem =
                        format!("got {} bytes of rank {rank} for {} weights", message.len(), part.len());
                    return Err(ShardingError::codec("int8", problem));
                }
                let (scales, whole) = message.split_at(4 * scales_len(part.len(), self.chunk));
                let scales: Vec<f32> =
                    scales.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
                let whole: Vec<i8> = whole.iter().map(|byte| byte.cast_signed()).collect();
                dequantise_int8(&self.context, (&scales, &whole), self.chunk, part, false)?;
            }
            Ok(())
        })?
    }
}

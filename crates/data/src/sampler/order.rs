//! The order of the samples in an epoch.

use super::SamplerConfig;
use crate::error::{DataError, Result};
use crate::rng::{Purpose, rng_for, shuffle};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// The order of the samples in an epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// The order of the dataset, in all epochs.
    Sequential,
    /// A random permutation, different in each epoch.
    Shuffled,
    /// Chunks in random order, shuffled within a window of several chunks at a time.
    Windows(Chunks),
}

/// The chunks of samples that are stored contiguously, and the window in which they are shuffled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunks {
    /// The number of samples in each chunk, in the order of the dataset; see
    /// [`Dataset::chunks`](crate::Dataset::chunks).
    pub lengths: Arc<[usize]>,
    /// The number of chunks that are shuffled and read together. With all chunks the order is as random as
    /// [`Order::Shuffled`].
    pub window: usize,
}

impl Order {
    /// Checks that the chunks cover `len` samples.
    pub(super) fn check(&self, len: usize) -> Result<()> {
        let Self::Windows(Chunks { lengths, window }) = self else { return Ok(()) };
        if *window == 0 {
            return Err(DataError::config("sampler.window", "a window needs at least 1 chunk"));
        }
        let sum: usize = lengths.iter().sum();
        if sum != len || lengths.contains(&0) {
            let reason = format!("chunks of {sum} samples, or empty chunks, for a dataset of {len}");
            return Err(DataError::config("sampler.chunks", reason));
        }
        Ok(())
    }
}

/// The number of cached windows: the current one, and one for each thread that is ahead or behind.
const CACHED: usize = 4;

/// The shuffled samples of one window.
#[derive(Debug)]
struct ShuffledWindow {
    epoch: u64,
    /// The number of the window; 0 if an epoch is one window.
    number: usize,
    samples: Arc<[usize]>,
}

/// The order of the chunks in an epoch.
#[derive(Debug, Clone)]
struct ChunkOrder {
    epoch: u64,
    /// The chunks in the order of the epoch.
    chunks: Arc<[usize]>,
    /// The first position of each window in the epoch, and the length of the epoch.
    begins: Arc<[usize]>,
}

/// The orders of the samples in each epoch, computed on demand.
#[derive(Debug)]
pub(super) struct EpochOrders {
    len: usize,
    seed: u64,
    order: Order,
    /// The first sample of each chunk.
    first: Vec<usize>,
    chunk_orders: Mutex<VecDeque<ChunkOrder>>,
    windows: Mutex<VecDeque<ShuffledWindow>>,
}

impl EpochOrders {
    pub(super) fn new(config: &SamplerConfig) -> Self {
        let first = match &config.order {
            Order::Windows(Chunks { lengths, .. }) => {
                lengths.iter().scan(0, |next, length| Some(std::mem::replace(next, *next + length))).collect()
            }
            Order::Sequential | Order::Shuffled => Vec::new(),
        };
        let (len, seed, order) = (config.len, config.seed, config.order.clone());
        Self { len, seed, order, first, chunk_orders: Mutex::default(), windows: Mutex::default() }
    }

    /// Returns the sample at a position below the length.
    pub(super) fn at(&self, epoch: u64, position: usize) -> usize {
        match &self.order {
            Order::Sequential => position,
            Order::Shuffled => self.cached(epoch, 0, || self.shuffled(epoch))[position],
            Order::Windows(chunks) => {
                let order = self.chunk_order(epoch, chunks);
                let window = order.begins.partition_point(|begin| *begin <= position) - 1;
                self.window(chunks, &order, window)[position - order.begins[window]]
            }
        }
    }

    /// Returns the samples at a range of positions up to the length.
    pub(super) fn slice(&self, epoch: u64, positions: Range<usize>) -> Vec<usize> {
        positions.map(|position| self.at(epoch, position)).collect()
    }

    fn shuffled(&self, epoch: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len).collect();
        shuffle(&mut rng_for(self.seed, Purpose::Shuffle, epoch, 0), &mut order);
        order
    }

    /// Returns the samples of a window, shuffled.
    fn window(
        &self,
        Chunks { lengths, window }: &Chunks,
        chunk_order: &ChunkOrder,
        number: usize,
    ) -> Arc<[usize]> {
        self.cached(chunk_order.epoch, number, || {
            let end = ((number + 1) * window).min(chunk_order.chunks.len());
            let mut order: Vec<usize> = chunk_order.chunks[number * window..end]
                .iter()
                .flat_map(|chunk| self.first[*chunk]..self.first[*chunk] + lengths[*chunk])
                .collect();
            // Index 0 shuffles whole epochs.
            shuffle(
                &mut rng_for(self.seed, Purpose::Shuffle, chunk_order.epoch, 1 + number as u64),
                &mut order,
            );
            order
        })
    }

    fn chunk_order(&self, epoch: u64, Chunks { lengths, window }: &Chunks) -> ChunkOrder {
        let mut chunk_orders = self.chunk_orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = chunk_orders.iter().find(|order| order.epoch == epoch) {
            return found.clone();
        }
        let mut chunks: Vec<usize> = (0..lengths.len()).collect();
        shuffle(&mut rng_for(self.seed, Purpose::ChunkOrder, epoch, 0), &mut chunks);
        let mut begins = vec![0];
        for together in chunks.chunks(*window) {
            let samples: usize = together.iter().map(|chunk| lengths[*chunk]).sum();
            begins.push(begins[begins.len() - 1] + samples);
        }
        let order = ChunkOrder { epoch, chunks: chunks.into(), begins: begins.into() };
        chunk_orders.push_front(order.clone());
        chunk_orders.truncate(CACHED);
        order
    }

    /// Returns a window from the cache, or computes it.
    fn cached(&self, epoch: u64, number: usize, make: impl FnOnce() -> Vec<usize>) -> Arc<[usize]> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let found = windows.iter().position(|window| (window.epoch, window.number) == (epoch, number));
        if let Some(window) = found.and_then(|at| windows.remove(at)) {
            let samples = Arc::clone(&window.samples);
            windows.push_front(window);
            return samples;
        }
        let samples: Arc<[usize]> = make().into();
        windows.push_front(ShuffledWindow { epoch, number, samples: Arc::clone(&samples) });
        // A whole epoch is large, and the previous one is seldom needed.
        windows.truncate(if matches!(self.order, Order::Shuffled) { 1 } else { CACHED });
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::{DistributedSampler, Tail};

    fn sampler(lengths: &[usize], window: usize) -> Result<DistributedSampler> {
        DistributedSampler::new(SamplerConfig {
            len: 20,
            world_size: 1,
            rank: 0,
            global_batch: 3,
            micro_batches: 1,
            seed: 5,
            order: Order::Windows(Chunks { lengths: lengths.into(), window }),
            tail: Tail::Ragged,
        })
    }

    #[test]
    fn an_epoch_keeps_to_a_window_of_chunkes() {
        let lengths = [4, 5, 3, 6, 2];
        let sampler = sampler(&lengths, 2).unwrap();
        let chunk_of = |sample: usize| {
            let ends = [4, 9, 12, 18, 20];
            ends.iter().position(|end| sample < *end).unwrap()
        };
        let mut mixed = false;
        for epoch in 0..8 {
            let order = sampler.permutation(epoch);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, (0..20).collect::<Vec<_>>());
            // The number of chunks that are begun and not finished.
            let mut left = lengths;
            let open = order.iter().map(|sample| {
                left[chunk_of(*sample)] -= 1;
                (0..lengths.len()).filter(|at| (1..lengths[*at]).contains(&left[*at])).count()
            });
            let most = open.max();
            assert!(most <= Some(2), "{order:?}");
            mixed |= most == Some(2);
        }
        assert!(mixed, "two chunks are shuffled together");
        assert_ne!(sampler.permutation(0), sampler.permutation(1));
        assert_eq!(sampler.permutation(1), sampler.clone().permutation(1));
    }

    #[test]
    fn chunkes_of_another_dataset_are_refused() {
        assert!(sampler(&[10, 10], 1).is_ok());
        for (lengths, window) in [(vec![10, 9], 1), (vec![20, 0], 1), (vec![10, 10], 0)] {
            assert!(sampler(&lengths, window).is_err(), "{lengths:?}");
        }
    }
}

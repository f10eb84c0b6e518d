//! The order of the samples in an epoch.

use super::{SamplerConfig, balanced_range};
use crate::error::{DataError, Result};
use crate::rng::{Purpose, rng_for, shuffle};
use std::collections::{BTreeMap, VecDeque};
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
    /// A random permutation, different in each epoch, whose micro-batches have samples of similar lengths.
    SimilarLengths(SampleLengths),
}

/// The lengths of samples, for micro-batches that need little padding.
///
/// A step has the samples that it has in a [shuffled](Order::Shuffled) epoch, so its gradient is the same. They are sorted by length before
/// they are cut into micro-batches, whose samples are again in the order of the epoch, so that all ranks have about equal work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleLengths {
    /// The length of each sample; see [`Dataset::lengths`](crate::Dataset::lengths).
    pub lengths: Arc<[u32]>,
}

impl SampleLengths {
    /// Sorts the samples of each step.
    fn sort(&self, config: &SamplerConfig, order: &mut [usize]) {
        for step in order.chunks_mut(config.global_batch.max(1)) {
            let place: BTreeMap<usize, usize> =
                step.iter().enumerate().map(|(at, sample)| (*sample, at)).collect();
            step.sort_by_key(|sample| self.lengths[*sample]);
            let total = step.len();
            for number in 0..config.micro_batches {
                let samples = &mut step[balanced_range(total, config.micro_batches, number)];
                // In the order of the epoch, so that no rank has the longer ones.
                samples.sort_by_key(|sample| place[sample]);
            }
        }
    }
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
        if let Self::SimilarLengths(SampleLengths { lengths }) = self
            && lengths.len() != len
        {
            let reason = format!("{} lengths for a dataset of {len}", lengths.len());
            return Err(DataError::config("sampler.lengths", reason));
        }
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
    config: SamplerConfig,
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
            Order::Sequential | Order::Shuffled | Order::SimilarLengths(_) => Vec::new(),
        };
        Self { config: config.clone(), first, chunk_orders: Mutex::default(), windows: Mutex::default() }
    }

    /// Returns the sample at a position below the length.
    pub(super) fn at(&self, epoch: u64, position: usize) -> usize {
        match &self.config.order {
            Order::Sequential => position,
            Order::Shuffled | Order::SimilarLengths(_) => {
                self.cached(epoch, 0, || self.shuffled(epoch))[position]
            }
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
        let mut order: Vec<usize> = (0..self.config.len).collect();
        shuffle(&mut rng_for(self.config.seed, Purpose::Shuffle, epoch, 0), &mut order);
        if let Order::SimilarLengths(lengths) = &self.config.order {
            lengths.sort(&self.config, &mut order);
        }
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
                &mut rng_for(self.config.seed, Purpose::Shuffle, chunk_order.epoch, 1 + number as u64),
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
        shuffle(&mut rng_for(self.config.seed, Purpose::ChunkOrder, epoch, 0), &mut chunks);
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
        windows.truncate(if matches!(self.config.order, Order::Windows(_)) { CACHED } else { 1 });
        samples
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampler::{DistributedSampler, MicroBatchRange, Tail};

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
    fn steps_keep_their_samples_and_micro_batches_have_similar_lengths() {
        let lengths: Arc<[u32]> = (0..1003_u32).map(|sample| sample * 7919 % 97).collect();
        let sampler = |order: Order, world_size: usize, rank: usize| {
            let tail = Tail::Ragged;
            let config = SamplerConfig {
                len: 1003,
                world_size,
                rank,
                global_batch: 32,
                micro_batches: 4,
                seed: 5,
                order,
                tail,
            };
            DistributedSampler::new(config).unwrap()
        };
        let similar = || Order::SimilarLengths(SampleLengths { lengths: lengths.clone() });
        let sorted = |mut samples: Vec<usize>| {
            samples.sort_unstable();
            samples
        };
        let mut unsorted = 0;
        for step in 0..sampler(similar(), 1, 0).steps_per_epoch() {
            let plain = sorted(sampler(Order::Shuffled, 1, 0).global_indices(3, step).unwrap());
            let whole = sampler(similar(), 1, 0).global_indices(3, step).unwrap();
            assert_eq!(sorted(whole.clone()), plain, "a step keeps its samples");
            let mut ranges = Vec::new();
            let micro_batches = sampler(similar(), 1, 0).samples(3, step).unwrap().micro_batches;
            for MicroBatchRange { positions, .. } in
                micro_batches.iter().filter(|own| !own.positions.is_empty())
            {
                let of = || whole[positions.clone()].iter().map(|sample| lengths[*sample]);
                ranges.push((of().min().unwrap_or(0), of().max().unwrap_or(0)));
                unsorted += usize::from(!of().is_sorted());
            }
            assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{ranges:?}");
            // The place of a sample in its step, by which dropout is drawn, does not depend on the world.
            assert_eq!(sampler(similar(), 4, 2).global_indices(3, step).unwrap(), whole);
        }
        assert!(unsorted > 100, "no rank has the longer ones");
    }

    #[test]
    fn chunkes_of_another_dataset_are_refused() {
        assert!(sampler(&[10, 10], 1).is_ok());
        for (lengths, window) in [(vec![10, 9], 1), (vec![20, 0], 1), (vec![10, 10], 0)] {
            assert!(sampler(&lengths, window).is_err(), "{lengths:?}");
        }
    }
}

//! In which order an epoch takes the samples.

use super::SamplerConfig;
use crate::error::{DataError, Result};
use crate::rng::{Purpose, rng_for, shuffle};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// In which order an epoch takes the samples.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// In that of the dataset, in all epochs.
    Sequential,
    /// In any order, another one in each epoch.
    Shuffled,
    /// Chunks of samples in any order, and in any order within some chunks at a time.
    Windows(Chunks),
}

/// Samples that lie together on a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunks {
    /// How many samples each chunk has, in the order of the dataset: those of
    /// [`Dataset::chunks`](crate::Dataset::chunks).
    pub lengths: Arc<[usize]>,
    /// How many chunks are shuffled together. As many of them are read at the same time; with all of them the order is as
    /// random as [`Order::Shuffled`].
    pub window: usize,
}

impl Order {
    /// Checks that it is one of `len` samples.
    pub(super) fn check(&self, len: usize) -> Result<()> {
        let Self::Windows(Chunks { lengths, window }) = self else { return Ok(()) };
        if *window == 0 {
            return Err(DataError::config("sampler.window", "a window needs at least 1 chunk"));
        }
        let sum: usize = lengths.iter().sum();
        if sum != len || lengths.contains(&0) {
            let reason = format!("chunks of {sum} samples, or empty ones, where the dataset has {len}");
            return Err(DataError::config("sampler.chunks", reason));
        }
        Ok(())
    }
}

/// How many parts of an epoch are kept: the one in use, and one for each thread that is ahead of it or behind.
const KEPT: usize = 4;

/// A part of an epoch's order.
#[derive(Debug)]
struct Part {
    epoch: u64,
    /// Which window it is; 0 where an epoch is one part.
    number: usize,
    samples: Arc<[usize]>,
}

/// The order of the chunks in an epoch.
#[derive(Debug, Clone)]
struct Plan {
    epoch: u64,
    /// The chunks in the order of the epoch.
    chunks: Arc<[usize]>,
    /// The first position in the epoch of each window, and the epoch's length.
    begins: Arc<[usize]>,
}

/// The orders of epochs, made as they are needed.
#[derive(Debug)]
pub(super) struct Orders {
    len: usize,
    seed: u64,
    order: Order,
    /// The first sample of each chunk.
    first: Vec<usize>,
    plans: Mutex<VecDeque<Plan>>,
    parts: Mutex<VecDeque<Part>>,
}

impl Orders {
    pub(super) fn new(config: &SamplerConfig) -> Self {
        let first = match &config.order {
            Order::Windows(Chunks { lengths, .. }) => {
                lengths.iter().scan(0, |next, length| Some(std::mem::replace(next, *next + length))).collect()
            }
            Order::Sequential | Order::Shuffled => Vec::new(),
        };
        let (len, seed, order) = (config.len, config.seed, config.order.clone());
        Self { len, seed, order, first, plans: Mutex::default(), parts: Mutex::default() }
    }

    /// The sample at a position below the length.
    pub(super) fn at(&self, epoch: u64, position: usize) -> usize {
        match &self.order {
            Order::Sequential => position,
            Order::Shuffled => self.part(epoch, 0, || self.shuffled(epoch))[position],
            Order::Windows(chunks) => {
                let plan = self.plan(epoch, chunks);
                let window = plan.begins.partition_point(|begin| *begin <= position) - 1;
                self.window(chunks, &plan, window)[position - plan.begins[window]]
            }
        }
    }

    /// The samples at some positions, of which the last is at most the length.
    pub(super) fn slice(&self, epoch: u64, positions: Range<usize>) -> Vec<usize> {
        positions.map(|position| self.at(epoch, position)).collect()
    }

    fn shuffled(&self, epoch: u64) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len).collect();
        shuffle(&mut rng_for(self.seed, Purpose::Shuffle, epoch, 0), &mut order);
        order
    }

    /// The samples of a window in their order.
    fn window(&self, Chunks { lengths, window }: &Chunks, plan: &Plan, number: usize) -> Arc<[usize]> {
        self.part(plan.epoch, number, || {
            let end = ((number + 1) * window).min(plan.chunks.len());
            let mut order: Vec<usize> = plan.chunks[number * window..end]
                .iter()
                .flat_map(|chunk| self.first[*chunk]..self.first[*chunk] + lengths[*chunk])
                .collect();
            // Number 0 is that of whole epochs.
            shuffle(&mut rng_for(self.seed, Purpose::Shuffle, plan.epoch, 1 + number as u64), &mut order);
            order
        })
    }

    fn plan(&self, epoch: u64, Chunks { lengths, window }: &Chunks) -> Plan {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = plans.iter().find(|plan| plan.epoch == epoch) {
            return found.clone();
        }
        let mut chunks: Vec<usize> = (0..lengths.len()).collect();
        shuffle(&mut rng_for(self.seed, Purpose::ChunkOrder, epoch, 0), &mut chunks);
        let mut begins = vec![0];
        for together in chunks.chunks(*window) {
            let samples: usize = together.iter().map(|chunk| lengths[*chunk]).sum();
            begins.push(begins[begins.len() - 1] + samples);
        }
        let plan = Plan { epoch, chunks: chunks.into(), begins: begins.into() };
        plans.push_front(plan.clone());
        plans.truncate(KEPT);
        plan
    }

    /// A part that was used lately, or a new one.
    fn part(&self, epoch: u64, number: usize, make: impl FnOnce() -> Vec<usize>) -> Arc<[usize]> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        let found = parts.iter().position(|part| (part.epoch, part.number) == (epoch, number));
        if let Some(part) = found.and_then(|at| parts.remove(at)) {
            let samples = Arc::clone(&part.samples);
            parts.push_front(part);
            return samples;
        }
        let samples: Arc<[usize]> = make().into();
        parts.push_front(Part { epoch, number, samples: Arc::clone(&samples) });
        // A whole epoch is large, and the one before it is seldom asked for.
        parts.truncate(if matches!(self.order, Order::Shuffled) { 1 } else { KEPT });
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
            // How many chunks have been begun and not been finished.
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

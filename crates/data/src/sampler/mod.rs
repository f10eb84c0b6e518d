//! Distributed sampling: the samples of each rank at each step.
//!
//! An epoch is one permutation of the dataset, the same on all ranks. Step k is the slice [k·B, (k+1)·B) of it, where B
//! is the *global* batch, and each rank takes a contiguous part of that slice. So the samples of a step and their order
//! do not depend on the number of ranks. (PyTorch's `DistributedSampler` strides through the permutation instead, so
//! its batches change with the world size.)
//!
//! For samples that are stored in chunks, such as tar archives, an epoch can shuffle within a few chunks at a time:
//! [`Order::Windows`]. Of samples of different lengths, a micro-batch can have similar ones: [`Order::SimilarLengths`].
//!
//! A step with micro-batches is first cut into these, and each of them is divided among the ranks. So the samples that
//! are normalised together do not depend on the number of ranks, either.

mod order;

use crate::choices::choices;
use crate::error::{DataError, Result};
use order::EpochOrders;
pub use order::{Chunks, Order, SampleLengths};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The treatment of an incomplete last batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tail {
    /// Fills the last batch from the start of the permutation; [`RankSamples::valid`] counts the real samples.
    Pad,
    /// Drops the last batch, as usual in training.
    #[default]
    Drop,
    /// Keeps the smaller batch; ranks may receive different numbers of samples, or none.
    Ragged,
}

choices! { Tail: "sampler.tail" { Drop = "drop", Pad = "pad", Ragged = "ragged" } }

/// The settings of a [`DistributedSampler`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SamplerConfig {
    /// The number of samples in the dataset.
    pub len: usize,
    /// The number of ranks that share each batch.
    pub world_size: usize,
    /// The rank, below the world size.
    pub rank: usize,
    /// The number of samples per step over all ranks.
    pub global_batch: usize,
    /// The number of micro-batches of each step, which the ranks share; 1 for whole steps.
    pub micro_batches: usize,
    /// The seed of the permutations.
    pub seed: u64,
    /// The order of the samples in an epoch.
    pub order: Order,
    /// The treatment of an incomplete last batch.
    pub tail: Tail,
}

/// The samples of one rank in one micro-batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MicroBatchRange {
    /// The positions of the samples in the global batch; may be empty.
    pub positions: Range<usize>,
    /// The number of ranks, from the first, with real samples of this micro-batch.
    pub ranks: usize,
}

/// The samples of one rank in one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RankSamples {
    /// The samples to load, in order.
    pub indices: Vec<usize>,
    /// The number of real samples, from the first; the others are padding ([`Tail::Pad`]).
    pub valid: usize,
    /// The micro-batches in order.
    pub micro_batches: Vec<MicroBatchRange>,
    /// The number of real samples in the global batch.
    pub global_samples: usize,
}

/// Assigns samples to ranks; see the [module](self).
///
/// Any step can be requested directly, so resuming costs nothing.
#[derive(Debug)]
pub struct DistributedSampler {
    config: SamplerConfig,
    orders: EpochOrders,
}

impl Clone for DistributedSampler {
    fn clone(&self) -> Self {
        Self { config: self.config.clone(), orders: EpochOrders::new(&self.config) }
    }
}

impl DistributedSampler {
    /// Checks the settings.
    ///
    /// # Errors
    /// If the dataset is empty; the batch, the micro-batches or the world size is 0; the rank is out of range;
    /// [`Tail::Drop`] would leave no batch; or the chunks do not cover a dataset of this length.
    pub fn new(config: SamplerConfig) -> Result<Self> {
        let SamplerConfig { len, world_size, rank, global_batch, .. } = config;
        if len == 0 {
            return Err(DataError::config("sampler.len", "the dataset is empty"));
        }
        if global_batch == 0 {
            return Err(DataError::config("sampler.global_batch", "a batch needs at least 1 sample"));
        }
        if config.micro_batches == 0 {
            return Err(DataError::config("sampler.micro_batches", "a step needs at least 1 micro-batch"));
        }
        if rank >= world_size {
            return Err(DataError::config(
                "sampler.rank",
                format!("rank {rank} is not in a world of {world_size}"),
            ));
        }
        if config.tail == Tail::Drop && global_batch > len {
            return Err(DataError::config(
                "sampler.global_batch",
                format!(
                    "a batch of {global_batch} is larger than the dataset of {len}, so dropping the partial batch leaves none"
                ),
            ));
        }
        config.order.check(len)?;
        Ok(Self { orders: EpochOrders::new(&config), config })
    }

    /// Returns the settings.
    #[must_use]
    pub fn config(&self) -> &SamplerConfig {
        &self.config
    }

    /// Returns the steps per epoch, which are the same on all ranks.
    #[must_use]
    pub fn steps_per_epoch(&self) -> usize {
        match self.config.tail {
            Tail::Drop => self.config.len / self.config.global_batch,
            Tail::Pad | Tail::Ragged => self.config.len.div_ceil(self.config.global_batch),
        }
    }

    /// Returns the order of an epoch, a permutation of `0..len`. It takes memory and, with windows, time; a sampler
    /// itself computes only what it needs.
    #[must_use]
    pub fn permutation(&self, epoch: u64) -> Vec<usize> {
        self.orders.slice(epoch, 0..self.config.len)
    }

    /// Returns the indices of a step's real samples over all ranks, in the order of the global batch.
    ///
    /// # Errors
    /// If the epoch has no such step.
    pub fn global_indices(&self, epoch: u64, step: usize) -> Result<Vec<usize>> {
        self.check_step(step)?;
        let begin = step * self.config.global_batch;
        let end = (begin + self.config.global_batch).min(self.config.len);
        Ok(self.orders.slice(epoch, begin..end))
    }

    fn check_step(&self, step: usize) -> Result<()> {
        let steps = self.steps_per_epoch();
        if step < steps {
            return Ok(());
        }
        Err(DataError::config("step", format!("step {step} is not in 0..{steps} of an epoch")))
    }

    /// Returns the samples of this rank in a step.
    ///
    /// # Errors
    /// If the epoch has no such step.
    pub fn samples(&self, epoch: u64, step: usize) -> Result<RankSamples> {
        let SamplerConfig { len, world_size, rank, global_batch, micro_batches, .. } = self.config;
        self.check_step(step)?;
        let begin = step * global_batch;
        let global_samples = global_batch.min(len - begin);
        let global = if self.config.tail == Tail::Pad { global_batch } else { global_samples };
        let of_micro_batch = |number| {
            let whole = balanced_range(global, micro_batches, number);
            let of_rank = |rank| {
                let own = balanced_range(whole.len(), world_size, rank);
                whole.start + own.start..whole.start + own.end
            };
            let has_real = |rank: &usize| !of_rank(*rank).is_empty() && of_rank(*rank).start < global_samples;
            MicroBatchRange { positions: of_rank(rank), ranks: (0..world_size).take_while(has_real).count() }
        };
        let micro_batches: Vec<MicroBatchRange> = (0..micro_batches).map(of_micro_batch).collect();
        let positions = micro_batches.iter().flat_map(|own| own.positions.clone());
        Ok(RankSamples {
            // Only padding wraps around to the start.
            indices: positions
                .clone()
                .map(|position| self.orders.at(epoch, (begin + position) % len))
                .collect(),
            valid: positions.filter(|position| *position < global_samples).count(),
            micro_batches: micro_batches.clone(),
            global_samples,
        })
    }
}

/// Returns range `number` of `ranges` contiguous ranges that cover `0..total`, with sizes that differ by at most one.
fn balanced_range(total: usize, ranges: usize, number: usize) -> Range<usize> {
    let (size, larger) = (total / ranges, total % ranges);
    // The first `larger` ranges have one more.
    let begin = number * size + number.min(larger);
    begin..begin + size + usize::from(number < larger)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config(len: usize, global_batch: usize, tail: Tail) -> SamplerConfig {
        SamplerConfig {
            len,
            world_size: 1,
            rank: 0,
            global_batch,
            micro_batches: 1,
            seed: 7,
            order: Order::Shuffled,
            tail,
        }
    }

    fn samples_of(
        config: &SamplerConfig,
        world_size: usize,
        rank: usize,
        epoch: u64,
        step: usize,
    ) -> RankSamples {
        let config = SamplerConfig { world_size, rank, ..config.clone() };
        DistributedSampler::new(config).unwrap().samples(epoch, step).unwrap()
    }

    #[test]
    fn padding_repeats_from_the_start_and_is_counted() {
        let config = SamplerConfig { order: Order::Sequential, ..config(5, 4, Tail::Pad) };
        let expected = RankSamples {
            indices: vec![4, 0],
            valid: 1,
            micro_batches: vec![MicroBatchRange { positions: 0..2, ranks: 1 }],
            global_samples: 1,
        };
        assert_eq!(samples_of(&config, 2, 0, 0, 1), expected);
        let expected = RankSamples {
            indices: vec![1, 2],
            valid: 0,
            micro_batches: vec![MicroBatchRange { positions: 2..4, ranks: 1 }],
            global_samples: 1,
        };
        assert_eq!(samples_of(&config, 2, 1, 0, 1), expected);
    }

    #[test]
    fn a_batch_larger_than_the_dataset_can_be_padded() {
        let config = SamplerConfig { order: Order::Sequential, ..config(2, 5, Tail::Pad) };
        let got = samples_of(&config, 1, 0, 0, 0);
        assert_eq!(
            got,
            RankSamples {
                indices: vec![0, 1, 0, 1, 0],
                valid: 2,
                micro_batches: vec![MicroBatchRange { positions: 0..5, ranks: 1 }],
                global_samples: 2
            }
        );
    }

    #[test]
    fn impossible_settings_are_refused() {
        let good = config(8, 4, Tail::Drop);
        assert!(DistributedSampler::new(good.clone()).is_ok());
        for bad in [
            SamplerConfig { len: 0, ..good.clone() },
            SamplerConfig { global_batch: 0, ..good.clone() },
            SamplerConfig { rank: 1, ..good.clone() },
            SamplerConfig { world_size: 0, ..good.clone() },
            SamplerConfig { micro_batches: 0, ..good.clone() },
            SamplerConfig { global_batch: 9, ..good.clone() },
        ] {
            assert!(DistributedSampler::new(bad.clone()).is_err(), "{bad:?}");
        }
        assert!(DistributedSampler::new(good).unwrap().samples(0, 2).is_err());
    }

    #[test]
    fn epochs_and_seeds_have_their_own_order() {
        let sampler = DistributedSampler::new(config(64, 8, Tail::Drop)).unwrap();
        assert_ne!(sampler.permutation(0), sampler.permutation(1));
        let other = DistributedSampler::new(SamplerConfig { seed: 8, ..config(64, 8, Tail::Drop) }).unwrap();
        assert_ne!(sampler.permutation(0), other.permutation(0));
    }

    proptest! {
        #[test]
        fn ranks_together_see_what_one_rank_sees(
            len in 1_usize..80, batch in 1_usize..20, world in 1_usize..9, epoch in 0_u64..4, seed: u64,
            tail in prop_oneof![Just(Tail::Pad), Just(Tail::Drop), Just(Tail::Ragged)], kind in 0..3, window in 1_usize..4,
            micro_batches in 1_usize..4,
        ) {
            prop_assume!(tail != Tail::Drop || batch <= len);
            let chunks = [len / 3, len / 5, len - len / 3 - len / 5].into_iter().filter(|number| *number > 0).collect();
            let order = match kind {
                0 => Order::Sequential,
                1 => Order::Shuffled,
                _ => Order::Windows(Chunks { lengths: chunks, window }),
            };
            let config = SamplerConfig { len, world_size: 1, rank: 0, global_batch: batch, micro_batches, seed, order, tail };
            let alone = DistributedSampler::new(config.clone()).unwrap();
            let mut seen = Vec::new();
            for step in 0..alone.steps_per_epoch() {
                let whole = alone.samples(epoch, step).unwrap();
                prop_assert_eq!(&alone.global_indices(epoch, step).unwrap(), &whole.indices[..whole.valid]);
                let ranks: Vec<RankSamples> = (0..world).map(|rank| samples_of(&config, world, rank, epoch, step)).collect();
                let (mut indices, mut taken) = (Vec::new(), vec![0; world]);
                for number in 0..micro_batches {
                    let (mut next, mut sizes) = (whole.micro_batches[number].positions.start, Vec::new());
                    for (rank, taken_by) in ranks.iter().enumerate() {
                        let own = taken_by.micro_batches[number].positions.clone();
                        let has_real = !own.is_empty() && own.start < whole.global_samples;
                        prop_assert_eq!(rank < taken_by.micro_batches[number].ranks, has_real);
                        prop_assert_eq!(own.start, next);
                        next = own.end;
                        sizes.push(own.len());
                        indices.extend_from_slice(&taken_by.indices[taken[rank]..taken[rank] + own.len()]);
                        taken[rank] += own.len();
                    }
                    prop_assert_eq!(next, whole.micro_batches[number].positions.end);
                    prop_assert!(sizes.iter().max().unwrap() - sizes.iter().min().unwrap() <= 1);
                    // Ranks without samples come last.
                    prop_assert!(sizes.is_sorted_by(|a, b| a >= b));
                }
                prop_assert_eq!(&indices, &whole.indices);
                prop_assert!(ranks.iter().all(|own| own.global_samples == whole.global_samples));
                prop_assert_eq!(ranks.iter().map(|own| own.valid).sum::<usize>(), whole.valid);
                prop_assert_eq!(whole.valid, whole.global_samples);
                seen.extend_from_slice(&whole.indices[..whole.valid]);
            }
            // In an epoch no sample appears twice, and all appear unless the tail is dropped.
            let number = seen.len();
            seen.sort_unstable();
            seen.dedup();
            prop_assert_eq!(seen.len(), number);
            prop_assert_eq!(number, if tail == Tail::Drop { len / batch * batch } else { len });
        }
    }
}

//! The data of a run, of whatever kind: what every rank knows of it, and which of its batches this rank gets.

use std::ops::Range;
use std::sync::Arc;

use phalanx_data::{
    BatchSource, Chunks, DataError, DistributedSampler, Loader, LoaderConfig, Order, SamplerConfig,
    SourceSubset, Tail,
};
use phalanx_sharding::VirtualRanks;
use phalanx_tensor::ComputeDevice;
use serde::{Deserialize, Serialize};

use super::Batch;
use super::feed::{self, Feed, TestBatch};
use super::images::ConfiguredImages;
use super::kept_set::KeptSet;
use crate::config::Config;
use crate::engine::distributed::{Distributed, Share};
use crate::engine::{Plan, TrainError};

/// The training and the test split, as a rank knows them.
pub(in crate::engine) struct Data {
    facts: Facts,
    /// `None` on ranks whose batches come from the first.
    splits: Option<Splits>,
}

/// What every rank knows of the data.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Facts {
    /// Training samples.
    train_len: usize,
    num_classes: usize,
    description: String,
}

/// Where batches come from.
struct Splits {
    train: Prepared,
    test: Prepared,
    loader: LoaderConfig,
    /// `None` for data of one's own.
    images: Option<ConfiguredImages>,
}

/// Where the batches of a split come from.
struct Prepared {
    /// With images as numbers.
    source: Arc<dyn BatchSource>,
    /// With images as what this rank computes on takes: bytes where a device prepares them.
    here: Arc<dyn BatchSource>,
    /// Images that stay in the device's memory.
    kept: Option<Arc<KeptSet>>,
}

impl Prepared {
    /// For what computes on `device`; there `room` bytes may still be taken by images that stay.
    fn new(
        source: Arc<dyn BatchSource>,
        device: &ComputeDevice,
        room: &mut usize,
    ) -> Result<Self, TrainError> {
        if device.is_host() {
            return Ok(Self { here: source.clone(), source, kept: None });
        }
        let bytes_of = |[height, width]: [usize; 2]| {
            source.len().saturating_mul(height).saturating_mul(width).saturating_mul(3)
        };
        let mut kept = None;
        if let Some(size) = source.fixed_images().filter(|size| bytes_of(*size) <= *room) {
            *room -= bytes_of(size);
            kept = Some(Arc::new(KeptSet::new(device, source.len(), size)?));
            tracing::info!("images of {} stay on the GPU: {} bytes", source.name(), bytes_of(size));
        }
        match source.as_bytes(kept.as_ref().map(|kept| kept.held())) {
            Some(here) => Ok(Self { source, here, kept }),
            None => Ok(Self { here: source.clone(), source, kept: None }),
        }
    }
}

impl Data {
    /// Finds the configured images, of which none is decoded yet, unless there are sources of one's own, for training and for
    /// testing. Where the first rank reads for all, it tells the others what they need to know, so every rank calls this at
    /// the same place. Images are prepared by what computes at `place`, which is of one kind on all ranks; of those that are read
    /// again and again `room` bytes may stay in its memory.
    pub(in crate::engine) fn open(
        config: &Config,
        own: Option<Result<[Arc<dyn BatchSource>; 2], TrainError>>,
        distributed: &Distributed,
        device: &ComputeDevice,
        room: usize,
    ) -> Result<Self, TrainError> {
        let Some(fed) = distributed.fed() else {
            return Self::open_here(config, own.transpose()?, device, room);
        };
        if fed.rank() == 0 {
            // The one who reads does not know what the others have kept.
            let this = Self::open_here(config, own.transpose()?, device, 0)?;
            feed::tell(fed, &this.facts)?;
            return Ok(this);
        }
        Ok(Self { facts: feed::hear(fed)?, splits: None })
    }

    fn open_here(
        config: &Config,
        own: Option<[Arc<dyn BatchSource>; 2]>,
        device: &ComputeDevice,
        mut room: usize,
    ) -> Result<Self, TrainError> {
        let loader = LoaderConfig { workers: config.data.workers, prefetch: config.data.prefetch };
        let (train, test, images, facts) = match own {
            Some([train, test]) => {
                let (train_len, description) = (train.len(), train.name().to_owned());
                (train, test, None, Facts { train_len, num_classes: 0, description })
            }
            None => {
                let images = ConfiguredImages::open(config)?;
                let (train, test) = (images.train(), images.test());
                let (num_classes, description) = (images.num_classes(), images.describe());
                let facts = Facts { train_len: train.len(), num_classes, description };
                (train, test, Some(images), facts)
            }
        };
        let train = Prepared::new(train, device, &mut room)?;
        let test = Prepared::new(test, device, &mut room)?;
        Ok(Self { facts, splits: Some(Splits { train, test, loader, images }) })
    }

    /// How many training samples there are.
    pub(in crate::engine) fn train_len(&self) -> usize {
        self.facts.train_len
    }

    /// How many classes there are.
    pub(in crate::engine) fn num_classes(&self) -> usize {
        self.facts.num_classes
    }

    /// What the data are, in words.
    pub(in crate::engine) fn describe(&self) -> String {
        self.facts.description.clone()
    }

    /// `count` captions of the test split, each once if there are enough; none on a rank that reads no data.
    pub(in crate::engine) fn test_captions(&self, count: usize) -> Result<Vec<String>, TrainError> {
        let images = self.splits.as_ref().and_then(|splits| splits.images.as_ref());
        images.map_or_else(|| Ok(Vec::new()), |images| images.test_captions(count))
    }

    /// Which of `count` test samples, chosen evenly, this rank looks at where each is looked at once: a part of them, or all on
    /// the rank that reads for all.
    pub(in crate::engine) fn test_share(&self, distributed: &Distributed, count: usize) -> Range<usize> {
        let Some(splits) = &self.splits else { return 0..0 };
        let count = count.min(splits.test.source.len());
        let (rank, ranks) = match (distributed.fed(), distributed.share()) {
            (Some(_), _) => (0, 1),
            (None, Share { rank: Some(rank), ranks }) => (rank, ranks),
            (None, Share { rank: None, .. }) => return 0..0,
        };
        count * rank / ranks..count * (rank + 1) / ranks
    }

    /// Those at `positions` of `count` test samples, as far as there are so many.
    pub(in crate::engine) fn test_samples(
        &self,
        count: usize,
        positions: Range<usize>,
    ) -> Result<Batch, TrainError> {
        let none = || TrainError::Setup("this rank reads no data".to_owned());
        let test = self.splits.as_ref().ok_or_else(none)?.test.source.clone();
        let count = count.min(test.len());
        let chosen = SourceSubset::take(test, count, 0)?;
        let positions = positions.start..positions.end.min(count);
        Batch::try_from(chosen.batch(&positions.collect::<Vec<_>>(), 0, &|| true)?)
    }

    /// The training batches of one rank from step `step` on, where it has this part of them.
    pub(in crate::engine) fn feed(
        &self,
        config: &Config,
        plan: &Plan,
        distributed: &Distributed,
        share: Share,
        step: u64,
    ) -> Result<Feed, TrainError> {
        let (epoch, within) = plan.place(step);
        let within = usize::try_from(within).unwrap_or(usize::MAX);
        let start = (epoch as u64, within);
        let placed = VirtualRanks::new(config.logical_ranks().unwrap_or(share.ranks), share.ranks)?;
        let loader = LoaderConfig { workers: config.data.workers.div_ceil(placed.most()), ..self.loader() };
        let loader_of = |splits: &Splits, rank| {
            let train = &splits.train.here;
            let sampler = DistributedSampler::new(SamplerConfig {
                len: train.len(),
                world_size: placed.shards(),
                rank,
                global_batch: config.train.global_batch,
                micro_batches: config.train.accumulate,
                seed: config.train.seed,
                order: order(&**train, config),
                tail: config.data.tail,
            })?;
            Loader::new(train.clone(), sampler, loader, start)
        };
        let kept = self.splits.as_ref().and_then(|splits| splits.train.kept.clone());
        Ok(Feed::new(self.loaders(distributed, (share.rank, placed), loader_of)?, distributed, kept, placed))
    }

    /// The test batches of one rank, `batch` samples each, over `limit` samples (0 = all). All ranks have as many, of
    /// which the last may not count. Every rank calls this at the same place.
    pub(in crate::engine) fn test_batches(
        &self,
        distributed: &Distributed,
        limit: usize,
        batch: usize,
    ) -> Result<impl Iterator<Item = Result<TestBatch, TrainError>>, TrainError> {
        let loader_of = |splits: &Splits, rank| {
            let (test, sampler) = self.test_sampler(splits, distributed, (limit, batch), rank)?;
            Loader::new(test, sampler, splits.loader, (0, 0))
        };
        let kept = self.splits.as_ref().and_then(|splits| splits.test.kept.clone());
        let Share { rank, ranks } = distributed.share();
        let placed = VirtualRanks::new(ranks, ranks)?;
        feed::once(self.loaders(distributed, (rank, placed), loader_of)?, distributed, kept, placed)
    }

    /// How many of these batches there are, for a rank that has no part of them.
    pub(in crate::engine) fn test_steps(
        &self,
        distributed: &Distributed,
        limit: usize,
        batch: usize,
    ) -> Result<usize, TrainError> {
        let Some(splits) = &self.splits else { return Ok(0) };
        let (_, sampler) = self.test_sampler(splits, distributed, (limit, batch), 0)?;
        Ok(sampler.steps_per_epoch())
    }

    /// `limit` test samples (0 = all), and which of them a rank looks at when, `batch` at a time.
    fn test_sampler(
        &self,
        splits: &Splits,
        distributed: &Distributed,
        (limit, batch): (usize, usize),
        rank: usize,
    ) -> Result<(Arc<dyn BatchSource>, DistributedSampler), DataError> {
        let mut test = splits.test.here.clone();
        if limit > 0 && limit < test.len() {
            test = Arc::new(SourceSubset::take(test, limit, 0)?);
        }
        let sampler = DistributedSampler::new(SamplerConfig {
            len: test.len(),
            world_size: distributed.data_size(),
            rank,
            global_batch: batch.max(1) * distributed.data_size(),
            micro_batches: 1,
            seed: 0,
            order: Order::Sequential,
            tail: Tail::Ragged,
        })?;
        Ok((test, sampler))
    }

    fn loader(&self) -> LoaderConfig {
        self.splits.as_ref().map(|splits| splits.loader).unwrap_or_default()
    }

    /// The loaders of what this rank reads, one for each logical rank: its own samples, those of all ranks, or nothing.
    fn loaders(
        &self,
        distributed: &Distributed,
        (rank, placed): (Option<usize>, VirtualRanks),
        loader_of: impl Fn(&Splits, usize) -> Result<Loader, DataError>,
    ) -> Result<Vec<Loader>, TrainError> {
        let Some(splits) = &self.splits else { return Ok(Vec::new()) };
        let logical = match (distributed.fed(), rank) {
            (Some(_), _) => 0..placed.shards(),
            (None, Some(rank)) => placed.of(rank),
            (None, None) => 0..0,
        };
        Ok(logical.map(|rank| loader_of(splits, rank)).collect::<Result<_, _>>()?)
    }
}

/// The order of an epoch of training: any, or, where samples lie together on a disk, one that keeps to some of these places at a
/// time.
fn order(train: &dyn BatchSource, config: &Config) -> Order {
    match train.chunks() {
        Some(lengths) => {
            Order::Windows(Chunks { lengths: lengths.into(), window: config.data.window.max(1) })
        }
        None => Order::Shuffled,
    }
}

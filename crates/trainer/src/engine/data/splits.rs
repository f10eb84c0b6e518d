//! The data of a run: its facts, and the batches of a rank.

use std::ops::Range;
use std::sync::Arc;

use phalanx_data::{
    BatchSource, Chunks, DataError, DistributedSampler, Loader, LoaderConfig, Order, SampleLengths,
    SamplerConfig, SourceSubset, Tail,
};
use phalanx_sharding::VirtualRanks;
use phalanx_tensor::ComputeDevice;
use serde::{Deserialize, Serialize};

use super::feed::{self, Feed, TestBatch};
use crate::engine::distributed::{Distributed, RankBatch};
use crate::engine::{Plan, TrainError};
use phalanx_batches::{Batch, DeviceCache};
use phalanx_config::Config;
use phalanx_datasets::{ConfiguredImages, DataRecord, mixing};

/// The training and the test split of a rank.
pub(in crate::engine) struct Data {
    facts: Facts,
    /// `None` on ranks whose batches come from the first rank.
    splits: Option<Splits>,
}

/// Facts of the data that all ranks know.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Facts {
    /// Training samples.
    train_len: usize,
    /// The sum of their weights, if `train.tokens` needs it; else 0.
    weight: f64,
    num_classes: usize,
    description: String,
    /// Facts about the files for the user.
    notes: Vec<String>,
}

/// The sources of batches.
struct Splits {
    train: SplitSource,
    /// `None` if the data have no test split.
    test: Option<SplitSource>,
    /// The images that are compared with generated ones.
    examples: Arc<dyn BatchSource>,
    loader: LoaderConfig,
    /// `None` for a user's own data.
    images: Option<ConfiguredImages>,
}

impl Splits {
    /// Returns `limit` test samples (0 = all) of one of the sources of the test split.
    fn test(
        &self,
        limit: usize,
        source: impl Fn(&SplitSource) -> &Arc<dyn BatchSource>,
    ) -> Result<Arc<dyn BatchSource>, DataError> {
        let none = || DataError::NoTestSplit {
            path: self.train.source.name().into(),
            looked_for: "one to evaluate; set data.test_fraction to hold out training images".to_owned(),
        };
        let test = source(self.test.as_ref().ok_or_else(none)?).clone();
        match limit > 0 && limit < test.len() {
            true => Ok(Arc::new(SourceSubset::take(test, limit, 0)?)),
            false => Ok(test),
        }
    }
}

/// The source of the batches of a split.
struct SplitSource {
    /// The source with images as f32.
    source: Arc<dyn BatchSource>,
    /// The source for the device of this rank, with images as bytes if the device prepares them.
    here: Arc<dyn BatchSource>,
    /// Images that are cached on the device.
    cache: Option<Arc<DeviceCache>>,
}

impl SplitSource {
    /// Creates the source for a device, whose cache may use `room` bytes.
    fn new(
        source: Arc<dyn BatchSource>,
        device: &ComputeDevice,
        room: &mut usize,
    ) -> Result<Self, TrainError> {
        if device.is_host() {
            return Ok(Self { here: source.clone(), source, cache: None });
        }
        let bytes_of = |[height, width]: [usize; 2]| {
            source.len().saturating_mul(height).saturating_mul(width).saturating_mul(3)
        };
        let mut cache = None;
        if let Some(size) = source.fixed_images().filter(|size| bytes_of(*size) <= *room) {
            *room -= bytes_of(size);
            cache = Some(Arc::new(DeviceCache::new(device, source.len(), size)?));
            tracing::info!("images of {} stay on the GPU: {} bytes", source.name(), bytes_of(size));
        }
        match source.as_bytes(cache.as_ref().map(|cache| cache.held())) {
            Some(here) => Ok(Self { source, here, cache }),
            None => Ok(Self { here: source.clone(), source, cache: None }),
        }
    }
}

/// Adds up the weights that samples have in the first epoch, if `train.tokens` needs them.
fn weight_of(source: &dyn BatchSource, config: &Config) -> Result<f64, TrainError> {
    if config.train.tokens == 0 {
        return Ok(0.0);
    }
    (0..source.len()).try_fold(0.0, |sum, index| Ok(sum + f64::from(source.weight(index, 0)?)))
}

impl Data {
    /// Opens the configured images without decoding them, or uses a user's own sources for training and testing. If the first rank
    /// loads for all, it sends the facts to the others. Images are prepared on `device`, and cached there in at most `room` bytes. All
    /// ranks call this together.
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
            // The first rank does not know the caches of the others.
            let this = Self::open_here(config, own.transpose()?, device, 0)?;
            feed::send(fed, &this.facts)?;
            return Ok(this);
        }
        Ok(Self { facts: feed::receive(fed)?, splits: None })
    }

    fn open_here(
        config: &Config,
        own: Option<[Arc<dyn BatchSource>; 2]>,
        device: &ComputeDevice,
        mut room: usize,
    ) -> Result<Self, TrainError> {
        let (workers, prefetch) = (config.data.workers, config.data.prefetch);
        let loader = LoaderConfig { workers, prefetch, mixing: None };
        let (train, test, images, facts) = match own {
            Some([train, test]) => {
                let (train_len, description) = (train.len(), train.name().to_owned());
                let weight = weight_of(&*train, config)?;
                let facts = Facts { train_len, weight, num_classes: 0, description, notes: Vec::new() };
                (train, Some(test), None, facts)
            }
            None => {
                let images = ConfiguredImages::open(config)?;
                let (train, test) = (images.train(), images.test());
                let (num_classes, description) = (images.num_classes(), images.describe());
                let notes = images.notes().to_vec();
                let weight = weight_of(&*train, config)?;
                let facts = Facts { train_len: train.len(), weight, num_classes, description, notes };
                (train, test, Some(images), facts)
            }
        };
        let examples = match (&images, &test) {
            (Some(images), _) => images.examples(),
            (None, Some(test)) => test.clone(),
            (None, None) => train.clone(),
        };
        let train = SplitSource::new(train, device, &mut room)?;
        let test = test.map(|test| SplitSource::new(test, device, &mut room)).transpose()?;
        Ok(Self { facts, splits: Some(Splits { train, test, examples, loader, images }) })
    }

    /// Facts about the files for the user.
    pub(in crate::engine) fn notes(&self) -> &[String] {
        &self.facts.notes
    }

    /// The paths of the damaged images that this rank has replaced by others up to now.
    pub(in crate::engine) fn damaged(&self) -> Vec<String> {
        let Some(damaged) = self.images().map(ConfiguredImages::damaged) else { return Vec::new() };
        let paths = [&damaged.train, &damaged.test].into_iter().flat_map(|split| split.paths());
        paths.map(|path| path.display().to_string()).collect()
    }

    /// The configured images, on a rank that loads them.
    pub(in crate::engine) fn images(&self) -> Option<&ConfiguredImages> {
        self.splits.as_ref()?.images.as_ref()
    }

    /// Takes the record of the data. `None` if images are embedded, a user's own, or loaded by another rank.
    pub(in crate::engine) fn record(&self, config: &Config) -> Result<Option<DataRecord>, TrainError> {
        let record = self.images().map(|images| DataRecord::of(images, config));
        Ok(record.transpose()?.flatten())
    }

    /// Plans the training.
    ///
    /// # Errors
    /// [`TrainError::NoStep`] if an epoch has no step.
    pub(in crate::engine) fn plan(&self, config: &Config) -> Result<Plan, TrainError> {
        let (images, batch) = (self.facts.train_len, config.train.global_batch);
        Plan::new(config, images, self.facts.weight).ok_or(TrainError::NoStep { images, batch })
    }

    /// The number of training samples.
    pub(in crate::engine) fn train_len(&self) -> usize {
        self.facts.train_len
    }

    /// The number of classes.
    pub(in crate::engine) fn num_classes(&self) -> usize {
        self.facts.num_classes
    }

    /// Checks that labels mean the classes that a model was trained on. The data may lack the last ones.
    pub(in crate::engine) fn check_classes(&self, trained: &[String]) -> Result<(), TrainError> {
        let Some(images) = self.images().filter(|_| !trained.is_empty()) else { return Ok(()) };
        Ok(images.check_trained(trained)?)
    }

    /// A description of the data.
    pub(in crate::engine) fn describe(&self) -> String {
        self.facts.description.clone()
    }

    /// Returns `count` captions of the test split, or of the training split without one; without repetition if there are enough; none on a rank that loads no data.
    pub(in crate::engine) fn test_captions(&self, count: usize) -> Result<Vec<String>, TrainError> {
        let images = self.splits.as_ref().and_then(|splits| splits.images.as_ref());
        Ok(images.map_or_else(|| Ok(Vec::new()), |images| images.test_captions(count))?)
    }

    /// Returns this rank's part of `count` evenly chosen test samples; all of them on the rank that loads for all.
    pub(in crate::engine) fn test_share(&self, distributed: &Distributed, count: usize) -> Range<usize> {
        let Some(splits) = &self.splits else { return 0..0 };
        let count = count.min(splits.examples.len());
        let (rank, ranks) = match (distributed.fed(), distributed.rank_batch()) {
            (Some(_), _) => (0, 1),
            (None, RankBatch { rank: Some(rank), ranks }) => (rank, ranks),
            (None, RankBatch { rank: None, .. }) => return 0..0,
        };
        count * rank / ranks..count * (rank + 1) / ranks
    }

    /// Returns the samples at `positions` of `count` test samples.
    pub(in crate::engine) fn test_samples(
        &self,
        count: usize,
        positions: Range<usize>,
    ) -> Result<Batch, TrainError> {
        let none = || TrainError::Setup("this rank loads no data".to_owned());
        let examples = self.splits.as_ref().ok_or_else(none)?.examples.clone();
        let count = count.min(examples.len());
        let chosen = SourceSubset::take(examples, count, 0)?;
        let positions = positions.start..positions.end.min(count);
        Ok(Batch::try_from(chosen.batch(&positions.collect::<Vec<_>>(), 0, &|| true)?)?)
    }

    /// Creates the feed of training batches from step `step` on, counted from 0, for this part of each batch.
    pub(in crate::engine) fn feed(
        &self,
        config: &Config,
        plan: &Plan,
        distributed: &Distributed,
        share: RankBatch,
        step: u64,
    ) -> Result<Feed, TrainError> {
        let (epoch, within) = plan.place(step);
        let within = usize::try_from(within).unwrap_or(usize::MAX);
        let start = (epoch as u64, within);
        let placed = VirtualRanks::new(config.logical_ranks().unwrap_or(share.ranks), share.ranks)?;
        let workers = config.data.workers.div_ceil(placed.most());
        let loader = LoaderConfig { workers, mixing: mixing(config), ..self.loader() };
        let loader_of = |splits: &Splits, rank| {
            let train = &splits.train.here;
            let sampler = DistributedSampler::new(SamplerConfig {
                len: train.len(),
                world_size: placed.shards(),
                rank,
                global_batch: config.train.global_batch,
                micro_batches: config.micro_batches(),
                seed: config.train.seed,
                order: order(&**train, config),
                tail: config.data.tail,
            })?;
            Loader::new(train.clone(), sampler, loader, start)
        };
        let cache = self.splits.as_ref().and_then(|splits| splits.train.cache.clone());
        Ok(Feed::new(self.loaders(distributed, (share.rank, placed), loader_of)?, distributed, cache, placed))
    }

    /// Returns this rank's test batches of `batch` samples, over `limit` samples (0 = all). All ranks have equally many, of which the last
    /// may not count. All ranks call this together.
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
        let cache = self.splits.as_ref().and_then(|splits| splits.test.as_ref()?.cache.clone());
        let RankBatch { rank, ranks } = distributed.rank_batch();
        let placed = VirtualRanks::new(ranks, ranks)?;
        feed::once(self.loaders(distributed, (rank, placed), loader_of)?, distributed, cache, placed)
    }

    /// The number of these batches, for a server.
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

    /// Returns `limit` test samples (0 = all), and the sampler of a rank with `batch` samples at a time.
    fn test_sampler(
        &self,
        splits: &Splits,
        distributed: &Distributed,
        (limit, batch): (usize, usize),
        rank: usize,
    ) -> Result<(Arc<dyn BatchSource>, DistributedSampler), DataError> {
        let test = splits.test(limit, |split| &split.here)?;
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

    /// Returns the source of `limit` test samples (0 = all) with images as f32, on a rank that loads data.
    pub(super) fn test_source(&self, limit: usize) -> Result<Arc<dyn BatchSource>, TrainError> {
        let none = || TrainError::Setup("this rank loads no data".to_owned());
        Ok(self.splits.as_ref().ok_or_else(none)?.test(limit, |split| &split.source)?)
    }

    fn loader(&self) -> LoaderConfig {
        self.splits.as_ref().map(|splits| splits.loader).unwrap_or_default()
    }

    /// Returns the loaders of this rank, one for each virtual rank: of its own, of all ranks, or none.
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

/// The order of a training epoch: shuffled, or, for samples in shards, shuffled within windows of some shards, or, for texts of
/// different lengths, with similar ones in a micro-batch.
fn order(train: &dyn BatchSource, config: &Config) -> Order {
    match train.chunks() {
        Some(lengths) => {
            Order::Windows(Chunks { lengths: lengths.into(), window: config.data.window.max(1) })
        }
        None => match train.lengths().filter(|_| config.data.group_by_length) {
            Some(lengths) => Order::SimilarLengths(SampleLengths { lengths: lengths.into() }),
            None => Order::Shuffled,
        },
    }
}
